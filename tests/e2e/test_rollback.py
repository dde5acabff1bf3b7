"""A wrong rewrite is found, rolled back and named; the others are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit import CheckError, OptimizeOptions, optimize
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
  a = Relu(x)   b = Neg(x)   c = Relu(b)   d = Sub(a, c)   e = Softplus(x)
  f = Identity(e)   y = Add(d, f)   z = Relu(e)
}"""


@dataclass(frozen=True)
class ReluToAbs(NodePass):
    """Wrong where the operand may be negative: at `a` and `c`, not at `z`."""

    name: ClassVar[str] = "relu-to-abs"
    ops: ClassVar[Sequence[str]] = ("Relu",)

    def rewrite(self, site: Site) -> None:
        if site.claim("wrong"):
            site.replace(site.op("Abs", [site.input(0)]))


def test_wrong_rewrites_are_rolled_back_and_the_rest_is_kept() -> None:
    options = OptimizeOptions(extra_passes=(ReluToAbs(),), kernels="off")
    optimized = optimize(onnx.parser.parse_model(TEXT), options)
    report = optimized.report
    assert sorted(report.rolled_back) == ["relu-to-abs:wrong:a", "relu-to-abs:wrong:c"]
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    kept = [node.op_type for node in optimized.model.graph]
    assert kept.count("Relu") == 2
    assert kept.count("Abs") == 1
    assert "Identity" not in kept
    assert json.loads(json.dumps(report.to_json()))["rolled_back"] == list(report.rolled_back)


def test_without_verification_nothing_is_rolled_back() -> None:
    options = OptimizeOptions(extra_passes=(ReluToAbs(),), kernels="off", verify=False)
    optimized = optimize(onnx.parser.parse_model(TEXT), options)
    assert optimized.report.rolled_back == ()
    assert [node.op_type for node in optimized.model.graph].count("Abs") == 3


def test_inputs_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, wrong=np.zeros((2, 4), np.float32))
    with pytest.raises(Exception, match="wrong") as caught:
        optimize(onnx.parser.parse_model(TEXT), OptimizeOptions(inputs=inputs, kernels="off"))
    assert not isinstance(caught.value, CheckError)
    assert "\n" not in str(caught.value)

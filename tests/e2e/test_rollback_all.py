"""Where denied rewrites make room for equally wrong ones, everything is rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx.parser

from ortkit import OptimizeOptions, optimize
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)   b = Identity(a)   y = Neg(b) }"""


@dataclass(frozen=True)
class Stubborn(NodePass):
    """Does the same wrong thing under another name where it may not do it under one."""

    name: ClassVar[str] = "stubborn"
    ops: ClassVar[Sequence[str]] = ("Relu",)

    def rewrite(self, site: Site) -> None:
        if any(site.claim(f"wrong{attempt}") for attempt in range(9)):
            site.replace(site.op("Abs", [site.input(0)]))


def test_the_original_is_what_is_left() -> None:
    options = OptimizeOptions(extra_passes=(Stubborn(),), kernels="off")
    optimized = optimize(onnx.parser.parse_model(TEXT), options)
    report = optimized.report
    assert "stubborn:wrong0:a" in report.rolled_back
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert [node.op_type for node in optimized.model.graph] == ["Relu", "Identity", "Neg"]
    assert report.hits == ()

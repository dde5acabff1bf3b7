"""Reshapes of empty tensors: what took them before a pass takes them afterwards."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from ortkit.graph.io.text import from_text
from ortkit.passes.merge_reshapes import MergeReshapes
from ortkit.passes.simplify_reshape import SimplifyReshape
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from tests.passes.graphs import run

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
NUMBERS = "<int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] rest = {-1}>"
SIZES = "b = Shape<start = 0, end = 1>(x) s = Shape<start = 1, end = 2>(x)"
#: Of x [n, m, 4], whose first two sizes are symbolic.
TARGETS = {
    "rows": "r = Mul(b, s) t = Concat<axis = 0>(r, four)",
    "of images": "r = Mul(s, four) t = Concat<axis = 0>(b, r)",
    "one more": "t = Concat<axis = 0>(b, one, s, four)",
    "heads": "t = Concat<axis = 0>(b, s, two, two)",
    "turned": "r = Mul(s, two) t = Concat<axis = 0>(b, two, r)",
    "whole": "r = Mul(b, s) q = Mul(r, four) t = Concat<axis = 0>(q)",
    "inferred": "t = Concat<axis = 0>(b, rest, two)",
}


def assert_takes_what_it_took(text: str) -> None:
    """Run a model on tensors of several sizes, before and after both passes."""
    before = ir.to_proto(from_text(text))
    passes = (SimplifyReshape(), MergeReshapes())
    result = Pipeline(passes).run(from_text(text), RewriteOptions())
    after = ir.to_proto(result.model)
    for sizes in product((0, 1, 3), (1, 5)):
        x = np.arange(np.prod(sizes) * 4, dtype=np.float32).reshape(*sizes, 4)
        want, got = _tried(before, x), _tried(after, x)
        if want is not None:
            assert got is not None, sizes
            assert got.shape == want.shape
            assert np.array_equal(got, want)


def _tried(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray | None:
    try:
        return run(model, {"x": x})[0]
    except (Fail, RuntimeException):
        return None


@pytest.mark.parametrize("name", TARGETS)
def test_computed_targets(name: str) -> None:
    assert_takes_what_it_took(f"""{HEAD}
        g (float[n, m, 4] x) => (y) {NUMBERS} {{
          {SIZES} {TARGETS[name]} z = Reshape(x, t) y = Neg(z)
        }}""")


@pytest.mark.parametrize(
    "chain",
    [
        "a = Unsqueeze(x, one) z = Unsqueeze(a, one)",
        "a = Unsqueeze(x, one) b = Unsqueeze(a, two) z = Flatten<axis = 1>(b)",
        "a = Unsqueeze(x, two) z = Flatten<axis = 2>(a)",
    ],
)
def test_chains(chain: str) -> None:
    assert_takes_what_it_took(
        f"{HEAD} g (float[n, m, 4] x) => (y) {NUMBERS} {{ {chain} y = Neg(z) }}"
    )

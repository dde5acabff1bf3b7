"""Reshapes of empty tensors: what took them before a pass takes them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from ortkit.graph.io.text import from_text
from ortkit.passes.lower_einsum import LowerEinsum
from ortkit.passes.merge_reshapes import MergeReshapes
from ortkit.passes.merge_strided_slices import MergeStridedSlices
from ortkit.passes.simplify_reshape import SimplifyReshape
from ortkit.passes.simplify_transpose import SimplifyTranspose
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import Pass
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


def assert_takes_what_it_took(text: str, *passes: Pass, second: Sequence[int] = (1, 5)) -> None:
    """Run a model on x [n, m, 4] of several sizes, before and after passes."""
    before = ir.to_proto(from_text(text))
    chosen = passes or (SimplifyReshape(), MergeReshapes())
    result = Pipeline(chosen).run(from_text(text), RewriteOptions(level=3))
    after = ir.to_proto(result.model)
    for sizes in product((0, 1, 3), second):
        x = np.arange(np.prod(sizes) * 4, dtype=np.float32).reshape(*sizes, 4)
        want, got = _tried(before, x), _tried(after, x)
        if want is not None:
            assert got is not None, sizes
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5)


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


@pytest.mark.parametrize(
    "chain",
    [
        # Rows of [s, n * 2], and back in another order: -1 beside the length would do it.
        """r = Mul(b, two) h = Concat<axis = 0>(b, s, two, two) p = Reshape(x, h)
           q = Transpose<perm = [0, 2, 1, 3]>(p) t = Concat<axis = 0>(r, s, two)
           u = Reshape(q, t) z = Transpose<perm = [1, 0, 2]>(u)""",
        """p = Transpose<perm = [1, 0, 2]>(x) r = Mul(b, two) t = Concat<axis = 0>(s, r, two)
           q = Reshape(p, t) z = Transpose<perm = [0, 2, 1]>(q)""",
    ],
)
def test_chains_of_transposes(chain: str) -> None:
    assert_takes_what_it_took(
        f"{HEAD} g (float[n, m, 4] x) => (y) {NUMBERS} {{ {SIZES} {chain} y = Neg(z) }}",
        SimplifyTranspose(),
        SimplifyReshape(),
        second=(0, 1, 5),
    )


@pytest.mark.parametrize(
    "equation",
    [
        "abc,dbc->ad", "abc,dbc->da", "abc,abd->acd", "abc,abd->cd", "abc,dec->abde",
        "abc,dbc->bad", "abc,abd->bcd", "abc,abd->cbd", "abc,dbe->adce", "abc,abd->dac",
        "abcd,abce->ade", "abcd,abed->ace", "abcd,ebcd->ae",
    ],
)  # fmt: skip
def test_sums_of_products(equation: str) -> None:
    """As a product of matrices they would have axes of two sizes, -1 beside the others.

    ONNX Runtime's own Einsum (1.31.1) ends the process on some empty values.
    """
    shape = (2, 2) if "abcd" in equation else (4,)
    text = f"""{HEAD} g (float[n, m, {", ".join(map(str, shape))}] x) => (y) {{
      z = Einsum<equation = "{equation}">(x, x) y = Neg(z) }}"""
    result = Pipeline((LowerEinsum(),)).run(from_text(text), RewriteOptions(level=3))
    if any(node.op_type == "Einsum" for node in result.model.graph):
        return
    for n, m in product((0, 1, 3), (0, 1, 5)):
        x = np.arange(n * m * 4, dtype=np.float32).reshape(n, m, *shape)
        (got,) = run(ir.to_proto(result.model), {"x": x})
        np.testing.assert_allclose(got, -np.einsum(equation, x, x), rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_slices_with_steps(axis: int) -> None:
    starts = [(first, second) for second in range(2) for first in range(2)]
    slices = "".join(
        f"a{i} = Constant<value_ints = [{first}, {second}]>() "
        f"s{i} = Slice(v, a{i}, ends, axes, steps) "
        for i, (first, second) in enumerate(starts)
    )
    assert_takes_what_it_took(
        f"""{HEAD} g (float[n, m, 4] x) => (y)
        <int64[4] wanted = {{0, 0, 2, 2}}, int64[2] ends = {{9, 9}}, int64[2] axes = {{2, 3}},
         int64[2] steps = {{2, 2}}> {{
          v = Reshape(x, wanted) {slices} z = Concat<axis = {axis}>(s0, s1, s2, s3) y = Neg(z)
        }}""",
        MergeStridedSlices(),
        second=(0, 1, 5),
    )

"""Passes leave alone what is no valid model, or one that nobody would write: none raises.

Each was found by changing attributes, constants and edges of valid models. ONNX Runtime loads most
of them, as it looks at attributes and constants only when nodes run.
"""

# ruff: noqa: E501
from __future__ import annotations

import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target

#: What else is in the graph by name: (inputs) => (outputs) <constants> { nodes }.
CASES = {
    "perm of wrong length, twice": """(float[2, 3] x) => (float[3, 2] y) {
        t = Transpose<perm = [1, 0]>(x)  y = Transpose<perm = [2, 0, 1]>(t) }""",
    "concat of no axis behind transposes": """(float[2, 3] x) => (float[6, 2] y) {
        t = Transpose<perm = [1, 0]>(x)  u = Transpose<perm = [1, 0]>(x)  y = Concat<axis = 5>(t, u) }""",
    "softmax of no axis behind a transpose": """(float[2, 3] x) => (float[2, 3] y) {
        t = Transpose<perm = [1, 0]>(x)  s = Softmax<axis = 7>(t)  y = Transpose<perm = [1, 0]>(s) }""",
    "mean of no axis behind a transpose": """(float[2, 3] x) => (float[2, 3] y) <int64[1] a = {4}> {
        t = Transpose<perm = [1, 0]>(x)  s = ReduceMean(t, a)  y = Transpose<perm = [1, 0]>(s) }""",
    "slice of no axis": """(float[2, 3] x) => (float[2, 3] y) <int64[1] b = {0}, int64[1] e = {3}, int64[1] a = {4}> {
        y = Slice(x, b, e, a) }""",
    "slice with fewer ends": """(float[2, 3] x) => (float[2, 3] y) <int64[2] b = {0, 0}, int64[1] e = {2}> {
        y = Slice(x, b, e) }""",
    "slice with more axes than starts": """(float[2, 3] x) => (float[2, 3] y)
        <int64[1] b = {0}, int64[1] e = {2}, int64[2] a = {0, 1}> { y = Slice(x, b, e, a) }""",
    "slice that takes no step": """(float[8, 3] x) => (float[2, 3] y)
        <int64[1] b = {0}, int64[1] e = {2}, int64[1] a = {0}, int64[1] s = {0}, int64[1] g = {1}> {
        t = Slice(x, b, e, a, s)  y = Gather(t, g) }""",
    "slices with fewer starts": """(float[8, 3] x) => (float[4, 3] y)
        <int64[1] b = {0}, int64[1] e = {3}, int64[1] a = {0}, int64[1] c = {1}, int64[0] none = {}> {
        t = Slice(x, none, e, a)  y = Slice(t, b, e, c) }""",
    "a gather from nothing": """(float[0, 3] x) => (float[1, 3] y) <int64[1] i = {0}> {
        y = Gather(x, i) }""",
    "a maximum without its other half": """(float[2] x) => (float[2] y) <float[1] c = {6}> {
        m = Max(c, "")  y = Add(x, m) }""",
    "a convolution in no group": """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, 2, 3, 4}, float[2, 1, 1] k = {1, 2}> {
        t = Conv<group = 0>(x, w)  y = Mul(t, k) }""",
    "a norm of one axis": """(float[4] x) => (float[4] y) <float[4] g = {1, 2, 3, 4}, float k = {2}> {
        t = InstanceNormalization(x, g, g)  y = Mul(t, k) }""",
    "a norm with another shift": """(float[1, 2, 4] x) => (float[1, 2, 4] y)
        <float[2] g = {1, 2}, float[3] b = {1, 2, 3}, float[2, 1] k = {1, 2}> {
        t = InstanceNormalization(x, g, b)  y = Mul(t, k) }""",
    "groups with other weights": """(float[1, 4, 6] x) => (float[1, 4, 6] y)
        <int64[3] a = {0, 2, -1}, float[0] g = {}, float[2] b = {1, 2}, int64[3] c = {1, 4, 6}> {
        t = Reshape(x, a)  n = InstanceNormalization(t, g, b)  y = Reshape(n, c) }""",
    "groups with more weights": """(float[n, 4, h, w] x) => (float[n, 4, h, w] y)
        <int64[3] a = {0, 2, -1}, float[4, 1, 1] g = {1, 2, 3, 4}, float[2] b = {1, 2}> {
        s = Shape(x)  t = Reshape(x, a)  n = InstanceNormalization(t, g, b)  r = Reshape(n, s)
        y = Sub(r, g) }""",
    "more groups than memory holds": """(float[n, c, h] x) => (float[n, c, h] y) <float[4] g = {1, 2, 3, 4}> {
        y = GroupNormalization<num_groups = 2147483648>(x, g, g) }""",
    "a row that memory does not hold": """(float[2, 2147483648] x) => (float[2, 2147483648] y)
        <int64[1] a = {-1}, float two = {2}, float e = {1e-5}, float[1] w = {1}> {
        q = Pow(x, two)  m = ReduceMean(q, a)  v = Add(m, e)  s = Sqrt(v)  d = Div(x, s)  y = Mul(d, w) }""",
    "a softmax of nothing": """(float[2, 0] x) => (float[2, 0] y) <int64[1] a = {-1}> {
        e = Exp(x)  s = ReduceSum(e, a)  y = Div(e, s) }""",
    "a reshape to a scalar": """(float[2, 4, 5] x) => (float y) <int64[0] s = {}, int64[3] a = {4, 5, 2}> {
        t = Reshape(x, a)  u = Transpose<perm = [0, 2, 1]>(t)  y = Reshape(u, s) }""",
    "a product reshaped to a scalar": """(float[1, 1, 4] x) => (float y)
        <float[4, 1] w = {1, 2, 3, 4}, float[1] b = {1}, int64[2] s = {1, 4}, int64[0] none = {}> {
        t = Reshape(x, s)  u = Gemm(t, w, b)  y = Reshape(u, none) }""",
    "a range that goes nowhere": """(float[2] x) => (float[2] y) <int64 a = {0}, int64 b = {2}, int64 d = {0}> {
        r = Range(a, b, d)  t = Cast<to = 1>(r)  y = Add(x, t) }""",
}  # fmt: skip


def model_of(text: str) -> ir.Model:
    return from_text(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_nothing_raises(text: str, level: int, kind: str) -> None:
    model = model_of(text)
    target = RewriteOptions(Target(kind), level)  # type: ignore[arg-type]
    result = Pipeline(select_passes("", level, kind)).run(model, target)
    assert result.settled
    check_model(model)

"""Which nodes are products with constant weights, and why others are not."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.rewrite.log import RewriteLog
from tests.precision.helpers import floats, model_of, products_of

W = floats(8, 8)


def test_a_matmul_takes_the_bias_behind_it() -> None:
    model = model_of(
        """g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z) {
          h = MatMul(x, w)  a = Add(b, h)  r = Relu(a)
          y = MatMul(r, w)  z = Add(y, b)
        }""",
        w=W,
        b=floats(8),
    )
    first, second = products_of(model)
    assert (first.key, first.last.op_type) == ("a", "Add")
    np.testing.assert_array_equal(first.bias_array(), floats(8))
    # What is returned without the bias keeps its Add.
    assert (second.key, second.bias) == ("y", None)


def test_a_gemm_may_be_turned() -> None:
    model = model_of(
        "g (float[n, 4] x) => (float[n, 6] y) { y = Gemm<transB = 1>(x, w, b) }",
        w=floats(6, 4),
        b=floats(1, 6),
    )
    (product,) = products_of(model)
    np.testing.assert_array_equal(product.array(), floats(6, 4).T)
    np.testing.assert_array_equal(product.bias_array(), floats(1, 6)[0])


def test_a_bias_of_one_number_is_one_for_each_column() -> None:
    model = model_of(
        "g (float[n, 4] x) => (float[n, 6] y) { y = Gemm(x, w, b) }",
        w=floats(4, 6),
        b=np.float32(2.0),
    )
    (product,) = products_of(model)
    np.testing.assert_array_equal(product.bias_array(), np.full(6, 2, np.float32))


def test_a_convolution_takes_its_activation() -> None:
    model = model_of(
        """g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {
          a = Conv(x, w)  r = Relu(a)  c = Conv(r, w)  d = Clip(c, low, high)
          e = Conv(d, w)  f = Clip(e, d)  y = Conv(f, w)
        }""",
        w=floats(3, 3, 1, 1),
        low=np.float32(0),
        high=np.float32(6),
    )
    found = products_of(model)
    assert [item.key for item in found] == ["r", "d", "e", "y"]
    assert [one.activation is not None for one in found] == [True, True, False, False]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = MatMul(x, x)", "its weight is no constant"),
        ("y = MatMul(w, x)", "its weight is no constant"),
        ("c = MatMul(w, w)  y = Add(x, c)", "it is constant"),
        ("y = MatMul(x, w3)", "its weight has 3 axes"),
        ("y = MatMul(x, bad)", "its weight holds what is no number"),
        ("y = Gemm<transA = 1>(x, w)", "what it multiplies is transposed"),
        ("y = Gemm<alpha = 0.5>(x, w)", "it scales what it computes"),
        ("y = Gemm(x, w, w)", "its bias is not one number for each column"),
        ("y = Gemm(x, w, x)", "its bias is no constant"),
        ("q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, w)",
         "it is quantized already"),
        ("s1 = ReduceSum<keepdims = 0>(x)  b = Cast<to = 9>(s1)  y = If (b) "
         "<then_branch = t () => (float[8, 8] u) { u = MatMul(x, w) }, "
         "else_branch = e () => (float[8, 8] v) { v = Identity(x) }>",
         "it stands in a body of control flow"),
    ],
)  # fmt: skip
def test_what_is_left_says_why(body: str, reason: str) -> None:
    bad = W.copy()
    bad[0, 0] = np.nan
    log = RewriteLog()
    model = model_of(
        f"g (float[8, 8] x) => (y) {{ {body} }}",
        w=W, w3=floats(2, 8, 8), bad=bad, s=np.float32(0.1), z=np.uint8(128),
    )  # fmt: skip
    assert products_of(model, log) == ()
    assert reason in [miss.reason for miss in log.misses]


def test_weights_that_are_inputs_may_change() -> None:
    log = RewriteLog()
    model = model_of(
        "g (float[8, 8] x, float[8, 8] w) => (float[8, 8] y) { y = MatMul(x, w) }", w=W
    )
    assert products_of(model, log) == ()


def test_half_precision_is_left() -> None:
    log = RewriteLog()
    model = model_of(
        "g (float16[8, 8] x) => (float16[8, 8] y) { y = MatMul(x, w) }", w=W.astype(np.float16)
    )
    assert products_of(model, log) == ()
    assert [miss.reason for miss in log.misses] == ["it is not in float32"]

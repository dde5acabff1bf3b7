"""Equal regions share a key, whatever they are called; different ones do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fused_model import BIAS_GELU, bias_gelu, tensor, unary
from onnx import helper

from ortkit.errors import InternalError
from ortkit.kernels.signature import RegionSignature, body_text, by_key


def key(body: str, *inputs: tuple[int | str, ...], output: tuple[int | str, ...] = ("n",)) -> str:
    specs = tuple(tensor(f"x{i}", *shape) for i, shape in enumerate(inputs))
    return RegionSignature("r", body, specs, (tensor("y", *output),)).key


HEAD = '<opset_import: ["" : 20]>'
TWO_STEPS = f"{HEAD} f (A, B) => (Y) {{ S = Add (A, B)  Y = Relu (S) }}"


def test_a_key_is_twelve_hex_digits_and_part_of_the_op_type() -> None:
    signature = bias_gelu("batch", "seq", 64)
    assert len(signature.key) == 12
    assert int(signature.key, 16) >= 0
    assert signature.op_type == f"bias_gelu_{signature.key}"


@pytest.mark.parametrize(
    "same",
    [
        f"{HEAD} other (P, Q) => (R) {{ T = Add (P, Q)  R = Relu (T) }}",
        TWO_STEPS.replace("<", '<domain: "d", '),
        f"{HEAD} f (A, B) => (Y) {{ S = Add (A, B)  Unused = Exp (A)  Y = Relu (S) }}",
    ],
    ids=["names", "domain", "dead node"],
)
def test_equal_meaning_gives_an_equal_key(same: str) -> None:
    assert key(same, ("n",), ("n",)) == key(TWO_STEPS, ("n",), ("n",))


def test_the_order_of_independent_nodes_does_not_matter() -> None:
    one = f"{HEAD} f (A, B) => (Y) {{ P = Exp (A)  Q = Tanh (B)  Y = Add (P, Q) }}"
    two = f"{HEAD} f (A, B) => (Y) {{ Q = Tanh (B)  P = Exp (A)  Y = Add (P, Q) }}"
    assert key(one, ("n",), ("n",)) == key(two, ("n",), ("n",))


def test_named_sizes_count_by_equality_only() -> None:
    ours = key(TWO_STEPS, ("a", "b"), ("b",), output=("a", "b"))
    assert ours == key(TWO_STEPS, ("rows", "cols"), ("cols",), output=("rows", "cols"))
    assert ours != key(TWO_STEPS, ("a", "b"), ("a",), output=("a", "b"))


@pytest.mark.parametrize(
    "body",
    [
        f"{HEAD} f (A, B) => (Y) {{ S = Add (A, B)  Y = Exp (S) }}",
        f"{HEAD} f (A, B) => (Y) {{ S = Add (A, A)  Y = Relu (S) }}",
        f"{HEAD} f (B, A) => (Y) {{ S = Add (A, B)  Y = Relu (S) }}",
        '<opset_import: ["" : 21]> f (A, B) => (Y) { S = Add (A, B)  Y = Relu (S) }',
    ],
    ids=["operator", "operand", "order of inputs", "opset"],
)
def test_different_meaning_gives_a_different_key(body: str) -> None:
    assert key(body, ("n",), ("n",)) != key(TWO_STEPS, ("n",), ("n",))


def test_a_product_of_sizes_is_not_a_size() -> None:
    """A kernel is given the names in a product, and cuts its work by them."""
    assert bias_gelu("4*n", 64).key != bias_gelu("n", 64).key
    assert bias_gelu("4*n", 64).key != bias_gelu("2*n", 64).key
    assert bias_gelu("a*b", 64).key != bias_gelu("n", 64).key
    assert bias_gelu("4*n", 64).key == bias_gelu("4*rows", 64).key


def test_types_and_sizes_are_part_of_the_key() -> None:
    keys = {bias_gelu(*shape).key for shape in (("n", 64), ("n", 65), ("a", "n", 64), (1, 64))}
    assert len(keys) == 4


def test_the_value_of_a_constant_counts_and_its_encoding_does_not() -> None:
    array = np.array(0.1, np.float32)
    raw, typed = (
        helper.make_tensor("c", 1, [], [0.1]),
        onnx.numpy_helper.from_array(array, "other"),
    )
    assert raw.SerializeToString() != typed.SerializeToString()
    keys = [key(_scaled(tensor), ("n",)) for tensor in (raw, typed)]
    assert keys[0] == keys[1]
    assert keys[0] != key(_scaled(helper.make_tensor("c", 1, [], [0.2])), ("n",))


def _scaled(constant: onnx.TensorProto) -> str:
    nodes = [helper.make_node("Constant", [], ["c"], value=constant)]
    nodes.append(helper.make_node("Mul", ["X", "c"], ["Y"]))
    opset = [helper.make_opsetid("", 20)]
    return body_text(helper.make_function("d", "f", ["X"], ["Y"], nodes, opset))


@pytest.mark.parametrize("value", [0.7978845608028654, 1e-45, -0.0, 3.4028235e38, np.pi * 1e-20])
def test_the_text_form_keeps_every_bit_of_a_constant(value: float) -> None:
    constant = helper.make_tensor("c", 1, [], [value])
    function = onnx.parser.parse_function(_scaled(constant))
    found = onnx.numpy_helper.to_array(function.node[0].attribute[0].t)
    assert found.tobytes() == np.float32(value).tobytes()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_constant_without_text_form_is_kept_or_refused(value: float) -> None:
    constant = helper.make_tensor("c", 1, [], [value])
    try:
        function = onnx.parser.parse_function(_scaled(constant))
    except InternalError:
        return
    found = onnx.numpy_helper.to_array(function.node[0].attribute[0].t)
    np.testing.assert_array_equal(found, np.float32(value))


def test_a_body_that_does_not_parse_is_our_bug() -> None:
    with pytest.raises(InternalError, match="the body of region 'r' does not parse"):
        key("this is no function", ("n",))


def test_a_body_that_does_not_fit_is_our_bug() -> None:
    with pytest.raises(InternalError, match="has 2 inputs and 1 outputs, its signature 1 and 1"):
        key(BIAS_GELU, ("n",))


def test_a_name_must_be_an_identifier() -> None:
    with pytest.raises(InternalError, match="no identifier"):
        RegionSignature("bias gelu", BIAS_GELU, (), ())


def test_a_key_that_different_regions_share_gets_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a model can be made to have: keys are 48 bits of the digest."""
    digests = {"Tanh": "a" * 12 + "1" * 52, "Exp": "a" * 12 + "2" * 52, "Erf": "b" * 64}
    monkeypatch.setattr(
        RegionSignature, "digest", property(lambda one: next(
            digest for op, digest in digests.items() if op in one.body
        )),
    )  # fmt: skip
    first, second, other = (unary(op) for op in digests)
    found, shared = by_key([first, first, other])
    assert (list(found), shared) == ([first.key, other.key], {})
    found, shared = by_key([first, second, other, first])
    assert list(found) == [other.key]
    assert list(shared) == [first.key]

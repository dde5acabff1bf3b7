"""One node over constants: numpy where it gives ONNX Runtime's bits, ONNX Runtime elsewhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.shapes.evaluate import Unsupported, evaluate

LATEST = {"": 21}


def run(op: str, *inputs: np.ndarray | None, domain: str = "", **attributes: object) -> np.ndarray:
    values = [None if array is None else ir.val(f"i{i}") for i, array in enumerate(inputs)]
    node = ir.node(op, values, attributes, domain=domain)
    node.outputs[0].name = "y"
    opsets = {domain: 1} if domain else LATEST
    (result,) = evaluate(node, inputs, opsets)
    assert result is not None
    return result


def test_a_failure_of_the_runtime_is_a_verdict() -> None:
    with pytest.raises(Unsupported, match="NOT_IMPLEMENTED"):
        run("Pow", np.ones(2, np.float32), np.ones(2, np.uint64))
    with pytest.raises(Unsupported, match="numpy refuses"):
        run("Gather", np.ones(2, np.float32), np.array([7]))


def test_an_input_that_must_not_be_left_out() -> None:
    """ONNX Runtime loads such a node and crashes when it runs it, in this very process."""
    with pytest.raises(Unsupported, match="left out"):
        run("Max", np.ones(2, np.float32), None)
    with pytest.raises(Unsupported, match="left out"):
        run("Conv", None, np.ones((1, 1, 1), np.float32))
    clipped = run("Clip", np.array([1, 5], np.float32), None, np.array(2, np.float32))
    np.testing.assert_array_equal(clipped, [1, 2])


def test_a_sequence_is_no_constant() -> None:
    with pytest.raises(Unsupported, match=r"seq\(tensor\(float\)\)"):
        run("SplitToSequence", np.ones(2, np.float32), np.array(1))


@pytest.mark.parametrize("to", [ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2])
def test_a_float8_saturates_or_is_refused(to: ir.DataType) -> None:
    with pytest.raises(Unsupported, match="float8"):
        run("Cast", np.array([1e6], np.float32), to=int(to))


def test_moves_take_every_type() -> None:
    x = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    result = run("Transpose", x, perm=[1, 0])
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, x.T)


def test_float16_is_rounded_as_the_runtime_rounds() -> None:
    # In float32 this is 1 + 2**-11, a tie, which goes to the even 1; rounded once it is above.
    x = np.array([1 + 2.0**-11 + 2.0**-40])
    assert run("Cast", x, to=int(ir.DataType.FLOAT16))[0] == 1
    assert x.astype(np.float16)[0] != 1


def test_an_empty_list_of_axes_squeezes_as_the_runtime_does() -> None:
    x = np.ones((1, 2, 1), np.float32)
    assert run("Squeeze", x, np.array([], np.int64)).shape == (2,)
    assert run("Squeeze", x, np.array([0])).shape == (2, 1)
    assert run("Squeeze", x).shape == (2,)


def test_the_domain_of_the_node_is_imported() -> None:
    result = run("Scaler", np.array([[3.0]], np.float32), domain="ai.onnx.ml",
                 offset=[1.0], scale=[2.0])  # fmt: skip
    assert result.tolist() == [[4.0]]

"""Biases of quantized convolutions and Gemms in float32, as ONNX Runtime computes with them.

It rounds them to the numbers that the sums of products have, where the result is rounded too
(1.31.1, `WeightBiasQuantization`). That moves some results to a neighbouring step, in both models
that are compared.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_tensor

_DOMAINS = ("", "com.microsoft")
#: It moves a DequantizeLinear behind these before (1.31.1, `QDQPropagationTransformer`), whatever
#: else reads their result.
_MOVERS = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
#: Float32 below it are int32.
_MOST = 2.0**31


def round_biases(model: ir.Model) -> None:
    """Round the biases of a copy of a model, where ONNX Runtime does."""
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Conv", "Gemm") or len(node.inputs) < 3:
            continue
        bias, rounded = node.inputs[2], _rounded(node)
        if bias is None or rounded is None:
            continue
        name = f"{bias.name}/rounded for {node.outputs[0].name}"
        new = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(rounded.shape),
            const_value=ir.tensor(rounded, name=name),
        )  # fmt: skip
        model.graph.register_initializer(new)
        node.replace_input_with(2, new)


def _rounded(node: ir.Node) -> np.ndarray | None:
    """Return the bias of a node, rounded; None where ONNX Runtime does not round it."""
    steps = [_scale(_moved(node.inputs[0])), _scale(node.inputs[1])]
    bias = _array(node.inputs[2])
    if steps[0] is None or steps[1] is None or bias is None or steps[0].size != 1:
        return None
    if bias.dtype != np.float32 or bias.ndim != 1 or steps[1].size not in (1, bias.size):
        return None
    if not _is_rounded(node.outputs[0]):
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.asarray(steps[0].reshape(()) * steps[1].reshape(-1), np.float32)
        whole = np.rint(bias / scale)
        if not (np.abs(whole) < _MOST).all():
            return None
        return np.asarray(whole * scale, np.float32)


def _moved(value: ir.Value | None) -> ir.Value | None:
    """Return what a value's numbers are moved from."""
    node = None if value is None else value.producer()
    while node is not None and not node.domain and node.op_type in _MOVERS:
        if len(node.outputs) > 1:
            break
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def _scale(value: ir.Value | None) -> np.ndarray | None:
    """Return the constant scales of what a DequantizeLinear makes."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in _DOMAINS:
        return None
    return _array(node.inputs[1])


def _array(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def _is_rounded(value: ir.Value) -> bool:
    """Say whether QuantizeLinear alone reads a value, behind a Relu or Clip if there is one."""
    readers = list(value.uses())
    if len(readers) != 1 or value.is_graph_output():
        return False
    node = readers[0].node
    if node.op_type in ("Relu", "Clip") and not node.domain:
        return _is_rounded(node.outputs[0])
    return node.op_type == "QuantizeLinear" and node.domain in _DOMAINS

"""Operators on quantized numbers, in float32 without rounding; see `unrounded.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from ortkit.graph.walk import control_nodes_below
from ortkit.verify.lowered.unrounded import Unrounding, axes_of, lost_step
from ortkit.verify.lowered.unrounded_blocks import blocks_matrix

#: Writes what an operator computes in float32, or leaves it as it is.
Handler: TypeAlias = Callable[[Unrounding, ir.Node], None]
#: A quantized operand: numbers, scale, zero point.
Operand: TypeAlias = tuple[ir.Value | None, ir.Value | None, ir.Value | None]

FLOAT8 = frozenset({"FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"})
_MICROSOFT = "com.microsoft"
_ROWS, _COLUMNS, _FILTERS = ({"axis": ir.AttrInt64("axis", axis)} for axis in (-2, -1, 0))


def unround(
    model: ir.Model,
    halves: Mapping[str, ir.DataType],
    *,
    is_noisy: bool = False,
    saturates: bool = True,
) -> None:
    """Compute in float32 without rounding activations, in place.

    Args:
        model: Its functions are inlined, and half precision is widened.
        halves: Names of weights that were rounded to half precision, with the type.
        is_noisy: Move each weight by up to half a step, by another amount in each run.
        saturates: Cut off activations where a calibrated range does, and not at zero alone.
    """
    writer = Unrounding(model, is_noisy=is_noisy, saturates=saturates)
    for node in list(control_nodes_below(model.graph)):
        writer.go_to(node)
        for index, value in enumerate(node.inputs):
            if value is not None and (dtype := halves.get(value.name or "")) is not None:
                node.replace_input_with(index, writer.moved_float(value, dtype))
        handle = _HANDLERS.get((node.domain, node.op_type))
        if handle is not None:
            handle(writer, node)


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _operand(w: Unrounding, operand: Operand, axes: Mapping[str, ir.Attr]) -> ir.Value:
    value, scale, zero = operand
    assert value is not None
    return w.dequantize(value, scale, zero, axes)


def _end(
    w: Unrounding, node: ir.Node, x: ir.Value, scale: ir.Value, zero: ir.Value | None
) -> None:
    """Let `x` be what a node quantizes."""
    dtype = ir.DataType.UINT8 if zero is None or zero.dtype is None else zero.dtype
    named = node.attributes.get_int("output_dtype", 0)
    dtype = ir.DataType(named) if named else dtype
    w.quantize(node.outputs[0], x, scale, zero, dtype, axes_of(node))


def _quantize_linear(w: Unrounding, node: ir.Node) -> None:
    x, scale, zero = _inputs(node, 3)
    assert x is not None and scale is not None
    _end(w, node, x, scale, zero)


def _dequantize_linear(w: Unrounding, node: ir.Node) -> None:
    value, scale, zero = _inputs(node, 3)
    w.replace(node.outputs[0], _operand(w, (value, scale, zero), axes_of(node)))


def _dynamic_quantize_linear(w: Unrounding, node: ir.Node) -> None:
    """Its scale and zero point stay what they are; its numbers are not rounded."""
    (x,) = node.inputs
    again = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    w.add(again)
    _, scale, zero = again.outputs
    number = w.op("Add", w.op("Div", x, scale), w.wide(zero))
    w.keep(node.outputs[0], w.moved(number, lost_step(ir.DataType.UINT8)))


def _cast(w: Unrounding, node: ir.Node) -> None:
    """Casts to floats of eight bits, and back."""
    (x,), to = node.inputs, ir.DataType(node.attributes["to"].as_int())
    assert x is not None
    if x.dtype is None or (x.dtype.name in FLOAT8) == (to.name in FLOAT8):
        return
    if to.name in FLOAT8:
        w.keep(node.outputs[0], x)
    else:
        w.replace(node.outputs[0], w.number(x))


def _with_bias(w: Unrounding, product: ir.Value, bias: ir.Value | None) -> ir.Value:
    return product if bias is None else w.op("Add", product, bias)


def _matmul_integer(w: Unrounding, node: ir.Node) -> None:
    a, b, a_zero, b_zero = _inputs(node, 4)
    left, right = _operand(w, (a, None, a_zero), _ROWS), _operand(w, (b, None, b_zero), _COLUMNS)
    w.replace(node.outputs[0], w.op("MatMul", left, right))


def _conv_integer(w: Unrounding, node: ir.Node) -> None:
    x, filters, x_zero, zero = _inputs(node, 4)
    inputs = _operand(w, (x, None, x_zero), {}), _operand(w, (filters, None, zero), _FILTERS)
    w.replace(node.outputs[0], w.like(node, "Conv", *inputs))


def _matmul_integer_to_float(w: Unrounding, node: ir.Node) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = _inputs(node, 7)
    left = _operand(w, (a, a_scale, a_zero), _ROWS)
    right = _operand(w, (b, b_scale, b_zero), _COLUMNS)
    w.replace(node.outputs[0], _with_bias(w, w.op("MatMul", left, right), bias))


def _dynamic_quantize_matmul(w: Unrounding, node: ir.Node) -> None:
    x, b, scale, zero, bias = _inputs(node, 5)
    right = _operand(w, (b, scale, zero), _COLUMNS)
    w.replace(node.outputs[0], _with_bias(w, w.op("MatMul", x, right), bias))


def _matmul_nbits(w: Unrounding, node: ir.Node) -> None:
    matrix = blocks_matrix(w, node)
    if matrix is not None:
        bias = _inputs(node, 6)[5]
        w.replace(node.outputs[0], _with_bias(w, w.op("MatMul", node.inputs[0], matrix), bias))


def _qlinear_matmul(w: Unrounding, node: ir.Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = _inputs(node, 8)
    assert scale is not None
    left = _operand(w, (a, a_scale, a_zero), _ROWS)
    right = _operand(w, (b, b_scale, b_zero), _COLUMNS)
    _end(w, node, w.op("MatMul", left, right), scale, zero)


def _integer_bias(
    w: Unrounding, bias: ir.Value, scale: ir.Value | None, weight_scale: ir.Value | None
) -> ir.Value:
    """Return a bias of 32 bits, whose step is the product of two scales."""
    return w.op("Mul", w.number(bias), w.op("Mul", scale, weight_scale))


def _qlinear_conv(w: Unrounding, node: ir.Node) -> None:
    x, x_scale, x_zero, filters, f_scale, f_zero, scale, zero, bias = _inputs(node, 9)
    assert scale is not None
    inputs = [_operand(w, (x, x_scale, x_zero), {})]
    inputs.append(_operand(w, (filters, f_scale, f_zero), _FILTERS))
    if bias is not None:
        inputs.append(_integer_bias(w, bias, x_scale, f_scale))
    _end(w, node, w.like(node, "Conv", *inputs), scale, zero)


def _qgemm(w: Unrounding, node: ir.Node) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, scale, zero = _inputs(node, 9)
    is_turned = node.attributes.get_int("transB", 0) == 1
    inputs = [_operand(w, (a, a_scale, a_zero), {})]
    inputs.append(_operand(w, (b, b_scale, b_zero), _FILTERS if is_turned else _COLUMNS))
    if bias is not None:
        alpha = w.scalar(node.attributes.get_float("alpha", 1.0))
        inputs.append(w.op("Mul", _integer_bias(w, bias, a_scale, b_scale), alpha))
    product = w.like(node, "Gemm", *inputs)
    if scale is None:
        w.replace(node.outputs[0], product)
    else:
        _end(w, node, product, scale, zero)


def _of_two(op_type: str) -> Handler:
    def handle(w: Unrounding, node: ir.Node) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = _inputs(node, 8)
        assert scale is not None
        left, right = _operand(w, (a, a_scale, a_zero), {}), _operand(w, (b, b_scale, b_zero), {})
        _end(w, node, w.op(op_type, left, right), scale, zero)

    return handle


def _of_one(op_type: str) -> Handler:
    def handle(w: Unrounding, node: ir.Node) -> None:
        x, x_scale, x_zero, scale, zero = _inputs(node, 5)
        if scale is None or node.attributes.get_int("channels_last", 0) == 1:
            return
        read = _operand(w, (x, x_scale, x_zero), {})
        kept = {k: v for k, v in node.attributes.items() if k != "channels_last"}
        _end(w, node, w.add(ir.node(op_type, [read], kept)), scale, zero)

    return handle


def _qlinear_concat(w: Unrounding, node: ir.Node) -> None:
    scale, zero, *rest = node.inputs
    assert scale is not None
    operands = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    parts = [_operand(w, operand, {}) for operand in operands]
    _end(w, node, w.like(node, "Concat", *parts), scale, zero)


_HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("", "Cast"): _cast,
    ("", "ConvInteger"): _conv_integer,
    ("", "DequantizeLinear"): _dequantize_linear,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize_linear,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "QuantizeLinear"): _quantize_linear,
    (_MICROSOFT, "DequantizeLinear"): _dequantize_linear,
    (_MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    (_MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (_MICROSOFT, "MatMulNBits"): _matmul_nbits,
    (_MICROSOFT, "QGemm"): _qgemm,
    (_MICROSOFT, "QLinearAdd"): _of_two("Add"),
    (_MICROSOFT, "QLinearAveragePool"): _of_one("AveragePool"),
    (_MICROSOFT, "QLinearConcat"): _qlinear_concat,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _of_one("GlobalAveragePool"),
    (_MICROSOFT, "QLinearLeakyRelu"): _of_one("LeakyRelu"),
    (_MICROSOFT, "QLinearMul"): _of_two("Mul"),
    (_MICROSOFT, "QLinearSigmoid"): _of_one("Sigmoid"),
    (_MICROSOFT, "QuantizeLinear"): _quantize_linear,
}

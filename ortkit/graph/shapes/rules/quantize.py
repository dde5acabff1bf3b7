"""Quantization."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Call, Rule


def quantize(call: Call) -> None:
    """Output 0 has the zero point's type, uint8 without one, and the shape of input 0."""
    call.out(shape=call.fact(0).shape)
    dtype = call.type_attribute("output_dtype")
    if dtype is None:
        dtype = call.dtype(2) if call.has(2) else ir.DataType.UINT8
    call.out(dtype=dtype)


def dequantize(call: Call) -> None:
    """Output 0 has the scale's type and the shape of input 0."""
    call.out(shape=call.fact(0).shape)
    dtype = call.type_attribute("output_dtype")
    call.out(dtype=call.dtype(1) if dtype is None else dtype)


def _dynamic_quantize(call: Call) -> None:
    call.out(0, dtype=ir.DataType.UINT8, shape=call.fact(0).shape)
    call.out(1, dtype=ir.DataType.FLOAT, shape=())
    call.out(2, dtype=ir.DataType.UINT8, shape=())


RULES: dict[str, Rule] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
}

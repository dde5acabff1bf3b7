"""Rounding to fp8 with one factor, as a region's body has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from ortkit.kernels.signature import RegionSignature, body_text

from .body import Body, integer

FP8 = "float8_e4m3fn"
_FLOAT, _FP8 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.FLOAT8E4M3FN)


def quantized(body: Body, name: str) -> tuple[str, float] | None:
    """Return what is rounded to `name`, and the one number that it is divided by.

    By QuantizeLinear, or by Cast(Div(Cast(value), number)) in float32.
    """
    node = body.producer(name, "QuantizeLinear")
    if node is not None and is_centred(body, node) and integer(node, "saturate", 1):
        factor = body.number(node.input[1])
        return None if factor is None else (str(node.input[0]), factor)
    last = body.producer(name, "Cast")
    ratio = None if last is None else body.producer(last.input[0], "Div")
    wide = None if ratio is None else body.producer(ratio.input[0], "Cast")
    if last is None or ratio is None or wide is None or not integer(last, "saturate", 1):
        return None
    if integer(wide, "to", 0) != _FLOAT or integer(last, "to", 0) != _FP8:
        return None
    factor = body.number(ratio.input[1])
    return None if factor is None else (str(wide.input[0]), factor)


def without_rounding(signature: RegionSignature) -> tuple[RegionSignature, float] | None:
    """Return a region without the rounding of its last result, and the one number of that."""
    if signature.outputs[-1].dtype != FP8 or not signature.inputs:
        return None
    body = Body(signature)
    found = quantized(body, str(body.function.output[-1]))
    if found is None:
        return None
    name, factor = found
    function = body.function
    rounding = body.between(name, str(function.output[-1]))
    nodes = [node for node in function.node if node not in rounding]
    made = helper.make_function(
        function.domain, function.name, function.input, [*function.output[:-1], name], nodes,
        function.opset_import,
    )  # fmt: skip
    last = replace(signature.outputs[-1], name=name, dtype=signature.inputs[0].dtype)
    outputs = (*signature.outputs[:-1], last)
    return replace(signature, body=body_text(made), outputs=outputs), factor


def is_centred(body: Body, node: onnx.NodeProto) -> bool:
    """Say whether there is no zero point, or none that is not 0."""
    if len(node.input) < 3 or not node.input[2]:
        return True
    zero = body.constant(node.input[2])
    return zero is not None and not np.any(zero.astype(np.float32))

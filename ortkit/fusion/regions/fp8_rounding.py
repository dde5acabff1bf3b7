"""What rounds a value to fp8 with one factor, behind a region that takes that in."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.regions.access import only_reader
from ortkit.rewrite.scope import Scope

FP8 = ir.DataType.FLOAT8E4M3FN
#: Of QuantizeLinear.
_DOMAINS = ("", "com.microsoft")


def rounding_consumer(
    scope: Scope, value: ir.Value, excluded: set[ir.Node]
) -> tuple[ir.Node, ...]:
    """Return what alone reads a value and rounds it to fp8 with one scale; nothing if it does not.

    That is a QuantizeLinear, or Cast(Div(Cast(value), scale)) in float32.
    """
    node = only_reader(value)
    if node is None or node in excluded:
        return ()
    if node.op_type == "QuantizeLinear" and node.domain in _DOMAINS:
        if node.inputs[0] is not value or scope.shapes.dtype(node.outputs[0]) != FP8:
            return ()
        scale = scope.array(node.inputs[1])
        fits = scale is not None and scale.size == 1 and is_centred(scope, node)
        return (node,) if fits and node.attributes.get_int("saturate", 1) != 0 else ()
    ratio = only_reader(node.outputs[0])
    last = None if ratio is None else only_reader(ratio.outputs[0])
    if ratio is None or last is None or {ratio, last} & excluded:
        return ()
    found = (node, ratio, last)
    is_written = [each.op_type for each in found] == ["Cast", "Div", "Cast"]
    if not is_written or any(each.domain or each.graph is not node.graph for each in found):
        return ()
    types = [scope.shapes.dtype(each.outputs[0]) for each in (node, last)]
    scale = scope.array(ratio.inputs[1]) if ratio.inputs[0] is node.outputs[0] else None
    fits = scale is not None and scale.size == 1 and types == [ir.DataType.FLOAT, FP8]
    return found if fits and last.attributes.get_int("saturate", 1) != 0 else ()


def written_rounding(
    scope: Scope, rounding: tuple[ir.Node, ...], name: str, result: str
) -> list[onnx.NodeProto]:
    """Return the nodes of a body that round `name` to `result` as `rounding_consumer` found it.

    In float32, whatever the model's nodes are.
    """
    by = rounding[0] if len(rounding) == 1 else rounding[1]
    scale = scope.array(by.inputs[1])
    assert scale is not None
    number = numpy_helper.from_array(scale.astype(np.float32).reshape(()))
    return [
        helper.make_node("Cast", [name], [f"{result}_wide"], to=int(ir.DataType.FLOAT)),
        helper.make_node("Constant", [], [f"{result}_by"], value=number),
        helper.make_node("Div", [f"{result}_wide", f"{result}_by"], [f"{result}_ratio"]),
        helper.make_node("Cast", [f"{result}_ratio"], [result], to=int(FP8)),
    ]


def is_centred(scope: Scope, node: ir.Node) -> bool:
    """Say whether there is no zero point, or none that is not 0."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is None:
        return True
    array = scope.array(zero)
    return array is not None and not np.any(array.astype(np.float32))

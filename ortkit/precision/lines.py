"""Convolutions over one dimension as ones over two, for which there are kernels in bfloat16.

Before:
    y = Conv(x, W, b)
After:
    y = Squeeze(Conv(Unsqueeze(x, 2), W4, b), 2)

W4 is W with an axis of one element in the same place.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes import Shapes
from ortkit.precision.building import Builder, drop_unread, stand_in

_FLOAT = ir.DataType.FLOAT


def widen_lines(model: ir.Model) -> int:
    """Rewrite the convolutions of the main graph that have three axes and a constant weight.

    Args:
        model: Changed in place; of an opset from 13 on.

    Returns:
        How many there were.
    """
    shapes, build = Shapes.infer(model), Builder(model)
    found = [node for node in model.graph if _is_line(model, shapes, node)]
    for node in found:
        _widen(model, build, node)
    return len(found)


def _is_line(model: ir.Model, shapes: Shapes, node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.domain:
        return False
    x, weight, *bias = node.inputs
    if x is None or weight is None or shapes.rank(x) != 3 or shapes.dtype(x) != _FLOAT:
        return False
    if is_constant(x, model) or not is_constant(weight, model):
        return False
    array, group = constant_array(weight), node.attributes.get("group")
    if array is None or array.ndim != 3 or (group is not None and group.as_int() != 1):
        return False
    pads = node.attributes.get("auto_pad")
    is_padded = pads is None or pads.as_string() == "NOTSET"
    return is_padded and all(one is None or is_constant(one, model) for one in bias)


def _widen(model: ir.Model, build: Builder, node: ir.Node) -> None:
    x, weight, *bias = node.inputs
    assert x is not None and weight is not None
    array = constant_array(weight)
    assert array is not None
    key = node.outputs[0].name or "line"
    axis = build.constant(np.array([2], np.int64), f"{key}/axis")
    plane = build.one("Unsqueeze", [x, axis], f"{key}/plane")
    filters = build.constant(array[:, :, None, :], f"{weight.name}/plane")
    first, last = _integers(node, "pads", (0, 0))
    attributes = {
        "kernel_shape": [1, array.shape[2]],
        "strides": [1, *_integers(node, "strides", (1,))],
        "dilations": [1, *_integers(node, "dilations", (1,))],
        "pads": [0, first, 0, last],
    }
    made = build.one("Conv", [plane, filters, *bias], f"{key}/convolved", attributes)
    line = build.one("Squeeze", [made, axis], f"{key}/line")
    model.graph.insert_after(node, build.take())
    stand_in(node.outputs[0], line)
    drop_unread(model.graph, node)


def _integers(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    attribute = node.attributes.get(name)
    return default if attribute is None else tuple(int(size) for size in attribute.as_ints())

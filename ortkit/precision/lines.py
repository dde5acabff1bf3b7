"""Convolutions over one dimension as ones over two, for which there are kernels in bfloat16.

Before:
    y = Conv(x, W, b)
After:
    y = Squeeze(Conv(Unsqueeze(x, 2), W4, b), 2)

W4 is W with an axis of one element in the same place. What is done to y element by element, and a
change of its layout, comes before the Squeeze, so that the next convolution needs no Unsqueeze.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes import Shapes
from ortkit.precision.building import Builder, drop_unread, stand_in

_FLOAT = ir.DataType.FLOAT
#: Operators on values of one shape, and scalars.
_POINTWISE = frozenset(
    {"Add", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul",
     "Relu", "Selu", "Sigmoid", "Softplus", "Sub", "Swish", "Tanh"}
)  # fmt: skip


def widen_lines(model: ir.Model) -> int:
    """Rewrite the convolutions of the main graph that have three axes and a constant weight.

    Args:
        model: Changed in place; of an opset from 13 on.

    Returns:
        How many there were.
    """
    shapes = Shapes.infer(model)
    found = {node for node in model.graph if _is_line(model, shapes, node)}
    lines = _Lines(model, Builder(model), shapes)
    for node in list(model.graph):
        if node in found:
            lines.widen(node)
        elif any(value in lines.planes for value in node.inputs):
            lines.follow(node)
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


@dataclass(frozen=True)
class _Lines:
    """What was widened so far."""

    model: ir.Model
    build: Builder
    shapes: Shapes
    """Before anything was."""
    planes: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """What a value was before its Squeeze."""
    sizes: dict[ir.Value, tuple[str, ...]] = field(default_factory=dict)
    """Of those values, where they are known."""

    def widen(self, node: ir.Node) -> None:
        """Put a convolution over two dimensions in the place of one over one."""
        build, (x, weight, *bias) = self.build, node.inputs
        assert x is not None and weight is not None
        array = constant_array(weight)
        assert array is not None
        key = node.outputs[0].name or "line"
        plane = self.planes.get(x)
        if plane is None:
            axis = build.sizes([2], f"{key}/axis")
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
        self._put(node, made)

    def follow(self, node: ir.Node) -> None:
        """Let a node that reads what was squeezed read it before that, if it may."""
        if node.domain or self.shapes.dtype(node.outputs[0]) != _FLOAT:
            return
        key = node.outputs[0].name or "line"
        if node.op_type == "Transpose" and _integers(node, "perm", ()) == (0, 2, 1):
            # As convolution nets turn images, so that both may fall away.
            turned = {"perm": [0, 2, 3, 1]}
            plane = [self.planes.get(value) for value in node.inputs if value is not None]
            self._put(node, self.build.one("Transpose", plane, f"{key}/turned", turned), axis=1)
        elif node.op_type in _POINTWISE and self._fits(node):
            inputs = [value if value is None else self._plane(value) for value in node.inputs]
            self._put(node, self.build.again(node, inputs, f"{key}/plane"))

    def _fits(self, node: ir.Node) -> bool:
        """Say whether all operands have one shape, but for scalars."""
        lines = [value for value in node.inputs if value in self.planes]
        others = [value for value in node.inputs if value is not None and value not in self.planes]
        is_one = len({self.sizes.get(value) for value in lines}) == 1 and lines[0] in self.sizes
        return is_one and all(self._is_scalar(value) for value in others)

    def _is_scalar(self, value: ir.Value) -> bool:
        array = constant_array(value) if is_constant(value, self.model) else None
        return array is not None and array.size == 1 and array.ndim < 2

    def _plane(self, value: ir.Value) -> ir.Value:
        return self.planes.get(value, value)

    def _put(self, node: ir.Node, plane: ir.Value, axis: int = 2) -> None:
        """Let a plane without one axis stand for a node's result."""
        key, shape = node.outputs[0].name or "line", self.shapes.shape(node.outputs[0])
        axes = self.build.sizes([axis], f"{key}/axis")
        line = self.build.one("Squeeze", [plane, axes], f"{key}/line")
        self.model.graph.insert_after(node, self.build.take())
        stand_in(node.outputs[0], line)
        drop_unread(self.model.graph, node)
        if axis != 2:
            return
        self.planes[line] = plane
        if shape is not None and all(size is not None for size in shape):
            self.sizes[line] = tuple(map(str, shape))


def _integers(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    attribute = node.attributes.get(name)
    return default if attribute is None else tuple(int(size) for size in attribute.as_ints())

"""Convolutions over one dimension as ones over two, for which there are better kernels.

Before:
    y = Conv(x, W, b)
After:
    y = Squeeze(Conv(Unsqueeze(x, 2), W4, b), 2)

W4 is W with an axis of one element in the same place. What is done to y element by element, and a
change of its layout, comes before the Squeeze, so that the next convolution needs no Unsqueeze.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.analysis.cones import CONTRIB, POINTWISE
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Poolings that slide as convolutions do.
_POOLINGS = frozenset({"AveragePool", "MaxPool"})
#: Attributes of what slides: what stands for the axis of one element.
_SLIDING = {"kernel_shape": (1,), "strides": (1,), "dilations": (1,)}
#: The first opset in which axes are an input.
_AXES_INPUT_SINCE = 13


def line_groups(scope: Scope) -> list[list[ir.Node]]:
    """Return the convolutions over one dimension that may be widened, in order.

    A group's are linked by nodes that may come before a Squeeze: with all of them widened, nothing
    between two is squeezed.
    """
    groups: list[list[ir.Node]] = []
    reached: dict[ir.Value, list[ir.Node]] = {}
    for node in scope.nodes():
        convolves = _is_line(scope, node)
        if not convolves and not _follows(scope, node, reached):
            continue
        sources = [
            reached[value] for value in node.inputs if value is not None and value in reached
        ]
        group = sources[0] if sources else []
        if not sources:
            groups.append(group)
        for other in sources[1:]:
            if other is not group:
                group += other
                groups = [each for each in groups if each is not other]
                reached |= {value: group for value, each in reached.items() if each is other}
        if convolves:
            group.append(node)
        if node.op_type != "Transpose":
            reached[node.outputs[0]] = group
    return groups


def widen_lines(scope: Scope, lines: Collection[ir.Node], pass_name: str) -> None:
    """Widen convolutions, and what follows them.

    Args:
        scope: Theirs.
        lines: Of its `line_groups`.
        pass_name: Names what is made.
    """
    widening, wanted = _Widening(scope, pass_name), set(lines)
    for node in list(scope.nodes()):
        if node in wanted:
            widening.convolution(node)
        elif _follows(scope, node, widening.planes):
            widening.follower(node)


@dataclass(frozen=True)
class _Widening:
    """What was widened so far."""

    scope: Scope
    pass_name: str
    planes: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """What a value was before its Squeeze."""

    def convolution(self, node: ir.Node) -> None:
        """Put a convolution over two dimensions in the place of one over one."""
        site = Site(self.scope, node, self.pass_name)
        x, weight, *bias = node.inputs
        array = site.array(weight)
        assert x is not None and weight is not None and array is not None
        filters = site.constant(array[:, :, None, :], f"{weight.name}/plane")
        attributes = {**_slides(site), "kernel_shape": (1, array.shape[2])}
        inputs = [self._plane(site, x), filters, *bias]
        self._put(site, site.op("Conv", inputs, attributes, name=f"{site.output.name}/plane"))

    def follower(self, node: ir.Node) -> None:
        """Let a node that reads what was squeezed read it before that."""
        site = Site(self.scope, node, self.pass_name)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        axis = 2
        if node.op_type == "Transpose":
            # As convolution nets transpose images, so that both may fall away.
            attributes, axis = {"perm": (0, 2, 3, 1)}, 1
        elif node.op_type == "Concat":
            attributes = {"axis": 1}
        elif node.op_type in _POOLINGS:
            attributes = {**attributes, **_slides(site)}
        inputs = [value if value is None else self._plane(site, value) for value in node.inputs]
        name = f"{site.output.name}/plane"
        self._put(
            site, site.op(node.op_type, inputs, attributes, domain=node.domain, name=name), axis
        )

    def _plane(self, site: Site, value: ir.Value) -> ir.Value:
        """Return an operand with an axis of one element before its last."""
        if value in self.planes:
            return self.planes[value]
        if (array := site.array(value)) is None:
            return _moved(site, "Unsqueeze", value, 2)
        if array.ndim < 2:
            return value
        return site.constant(np.expand_dims(array, -2), f"{value.name}/plane")

    def _put(self, site: Site, plane: ir.Value, axis: int = 2) -> None:
        """Let a plane without one axis stand for a node's result."""
        line = _moved(site, "Squeeze", plane, axis)
        site.replace(line)
        if axis == 2:
            self.planes[line] = plane


def _is_line(scope: Scope, node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.domain or len(node.inputs) < 2:
        return False
    site = Site(scope, node, "")
    x, weight, *bias = node.inputs
    if site.rank(x) != 3 or site.dtype(x) != ir.DataType.FLOAT or scope.is_constant(x):
        return False
    if site.rank(weight) != 3 or site.string("auto_pad", "NOTSET") != "NOTSET":
        return False
    return scope.is_constant(weight) and all(
        each is None or scope.is_constant(each) for each in bias
    )


def _follows(scope: Scope, node: ir.Node, lines: Iterable[ir.Value]) -> bool:
    """Say whether a node may come before the Squeeze of what it reads of `lines`."""
    read = [value for value in node.inputs if value is not None and value in lines]
    if not read or len(node.outputs) != 1:
        return False
    site = Site(scope, node, "")
    if site.dtype(site.output) != ir.DataType.FLOAT:
        return False
    if node.domain == "" and node.op_type == "Transpose":
        return site.ints("perm") == (0, 2, 1)
    if node.domain == "" and node.op_type == "Concat":
        return len(read) == len(node.inputs) and site.int("axis", 0) in (1, -2)
    if node.domain == "" and node.op_type in _POOLINGS:
        return site.string("auto_pad", "NOTSET") == "NOTSET"
    if node.op_type not in (POINTWISE if node.domain == "" else CONTRIB):
        return False
    if node.domain not in ("", "com.microsoft"):
        return False
    # What broadcasts to the line's shape, and is none itself, is a constant.
    return scope.shapes.same_shape(site.output, read[0]) and all(
        value is None
        or scope.is_constant(value)
        or (scope.shapes.same_shape(value, read[0]) and site.dtype(value) == ir.DataType.FLOAT)
        for value in node.inputs
    )


def _slides(site: Site) -> dict[str, int | tuple[int, ...]]:
    """Return the attributes of a node that slides along one axis for two."""
    found: dict[str, int | tuple[int, ...]] = {
        name: (*first, *values)
        for name, first in _SLIDING.items()
        if (values := site.ints(name)) is not None
    }
    if (pads := site.ints("pads")) is not None:
        found["pads"] = (0, pads[0], 0, pads[1])
    if "group" in site.node.attributes:
        found["group"] = site.int("group", 1)
    return found


def _moved(site: Site, op_type: str, value: ir.Value, axis: int) -> ir.Value:
    """Return a value with an axis of one element more or less."""
    name = f"{value.name}/{op_type.lower()}"
    if site.opset < _AXES_INPUT_SINCE:
        return site.op(op_type, [value], {"axes": (axis,)}, name=name)
    return site.op(op_type, [value, site.constant([axis], f"{name}/axes")], name=name)

"""Iteration spaces: whether one kernel can hold a node beside those that feed it.

Shapes here are without their leading ones, so that [1, s, 768] and [s, 768] are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.parameters import looks_up_rows
from ortkit.graph.symbolic.dims import Size
from ortkit.operators import operator, where
from ortkit.operators.info import Access
from ortkit.rewrite.scope import Scope

Shape: TypeAlias = tuple[Size, ...]
Row: TypeAlias = tuple[object, ...]
"""What is reduced together: the sizes of trailing axes, or a shape and inner axes of it."""

_ROW_NORMS = where(row_norm=True)


@dataclass
class Space:
    """What the values of a group look like.

    Args:
        frames: Shapes of values with one element for each point; several where views lie
            between them.
        rows: Shapes of values with one element for each row.
        row: What a row is; None without reductions.
    """

    frames: set[Shape] = field(default_factory=set)
    rows: set[Shape] = field(default_factory=set)
    row: Row | None = None

    def joined(self, other: Space) -> Space | None:
        """Return the space of both groups in one; None if their rows differ."""
        if self.row is not None and other.row is not None and self.row != other.row:
            return None
        return Space(self.frames | other.frames, self.rows | other.rows, self.row or other.row)


class NodeSpace:
    """What one member needs of the space that it joins."""

    def __init__(self, scope: Scope, node: ir.Node, access: Access) -> None:
        self._scope = scope
        self._node = node
        self._family = access
        self.shapes = tuple(self._shape(value) for value in node.outputs if value.name)

    def added_to(self, space: Space) -> Space:
        """Return the space with the node in it."""
        if self._family == "reduction":
            source = self._node.inputs[0]
            assert source is not None
            own = Space({self._shape(source)}, set(self.shapes), self._row())
        elif self._family == "elementwise" and self.shapes[0] in space.rows:
            own = Space()
        else:
            own = Space(set(self.shapes), set(), self._row())
        return space.joined(own) or own

    def takes(self, space: Space, value: ir.Value) -> bool:
        """Say whether the node may read `value`, made in `space`, in the same kernel."""
        shape = self._shape(value)
        match self._family:
            case "elementwise":
                if shape == self.shapes[0]:
                    return shape in space.frames or shape in space.rows
                return shape in space.rows and self.shapes[0] in space.frames
            case "view" if looks_up_rows(self._scope, self._node):
                return False  # the table and the indices are in memory
            case "view":
                return value is self._node.inputs[0] or self._node.op_type == "Concat"
            case _:
                # Others are scales, tables and the like.
                info = operator(self._node.domain, self._node.op_type)
                inputs = () if info is None else info.data_inputs
                if not any(self._node.inputs[index] is value for index in inputs):
                    return False
                row = self._row()
                return shape in space.frames and (space.row in (None, row) or row is None)

    def _shape(self, value: ir.Value) -> Shape:
        shape = self._scope.shapes.shape(value) or ()
        start = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
        return shape[start:]

    def _row(self) -> Row | None:
        if self._family not in ("normalization", "reduction"):
            return None
        source = self._node.inputs[0]
        shape = None if source is None else self._scope.shapes.shape(source)
        if shape is None:
            return None
        axes = reduced_axes(self._scope, self._node, len(shape))
        if self._node.op_type == "GroupNormalization":
            # Rows that end within an axis: alike for equal numbers of groups.
            return (shape, axes, self._node.attributes.get_int("num_groups", 1))
        first = min(axes, default=len(shape))
        if axes == tuple(range(first, len(shape))):
            return tuple(size for size in shape[first:] if size != 1)
        return (shape, axes)


def reduced_axes(scope: Scope, node: ir.Node, rank: int) -> tuple[int, ...]:
    """Return the axes that a norm or a reduction runs along, ascending and not negative."""
    if node.op_type in _ROW_NORMS:
        return tuple(range(node.attributes.get_int("axis", -1) % max(rank, 1), rank))
    if node.op_type == "InstanceNormalization":
        return tuple(range(2, rank))
    if node.op_type == "GroupNormalization":
        return tuple(range(1, rank))
    if node.op_type.startswith("Skip"):
        return (rank - 1,)
    if node.op_type in ("Softmax", "LogSoftmax"):
        axis = node.attributes.get_int("axis", -1 if scope.opset() >= 13 else 1) % max(rank, 1)
        return (axis,) if scope.opset() >= 13 else tuple(range(axis, rank))
    if node.op_type in ("ArgMax", "ArgMin"):
        return (node.attributes.get_int("axis", 0) % max(rank, 1),)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None:
        array = scope.array(given)
        axes = [] if array is None else array.reshape(-1).tolist()
    elif (attribute := node.attributes.get("axes")) is not None:
        axes = list(attribute.as_ints())
    else:
        axes = []
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return ()
    return tuple(sorted(axis % max(rank, 1) for axis in axes)) or tuple(range(rank))

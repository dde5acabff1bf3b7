"""Row regions: what is computed from the rows of one value and from their reductions.

A row runs along the axes that one reduction reduces. The region of a root holds the nodes
between the root and whatever is made of that reduction: pointwise ops, reductions over the same
axes, and what only moves the reduced numbers. Everything else that they read is a leaf: a number,
or an array with one number for each position in a row or for each row.

What a region computes is found by evaluating it: `ortkit.analysis.norm_probe`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS, OPS
from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.rewrite.scope import Scope

REDUCTIONS = where(access="reduction") & OPS.keys()
POINTWISE = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Exp", "Identity", "Log", "Max", "Mean", "Min", "Mul",
     "Neg", "Pow", "Reciprocal", "Sqrt", "Sub", "Sum"}
)  # fmt: skip
#: They give reduced numbers the axes back that broadcasting wants, or repeat them along a row.
MOVES = frozenset({"Expand", "Reshape", "Squeeze", "Unsqueeze"})
ADMITTED = POINTWISE | REDUCTIONS | MOVES

#: Nodes in a region, values looked at around it, and readers of one value.
NODE_LIMIT, LOOK_LIMIT, READER_LIMIT, DEPTH_LIMIT = 32, 80, 12, 20
#: How far before a reduction its root is looked for.
ROOT_LIMIT = 5


@dataclass(frozen=True)
class Frame:
    """The rows of a root: its shape, and the axes that a row runs along, ascending."""

    shape: tuple[Size, ...]
    axes: tuple[int, ...]

    @cached_property
    def kept(self) -> tuple[Size, ...]:
        """The shape of a reduction that keeps its axes."""
        return tuple(1 if i in self.axes else size for i, size in enumerate(self.shape))

    @cached_property
    def flat(self) -> tuple[Size, ...]:
        """The shape of a reduction that drops its axes."""
        return tuple(size for i, size in enumerate(self.shape) if i not in self.axes)

    @property
    def row(self) -> tuple[Size, ...]:
        """The sizes along a row."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def is_trailing(self) -> bool:
        """Whether a row runs along the last axes."""
        rank = len(self.shape)
        return self.axes == tuple(range(rank - len(self.axes), rank))

    def kind(self, shape: Sequence[Size] | None) -> str:
        """Return "full", "kept" or "flat" for values with such a shape, else an empty text."""
        found = None if shape is None else tuple(shape)
        if found == self.shape:
            return "full"
        if found == self.kept:
            return "kept"
        return "flat" if found == self.flat else ""

    def is_leaf(self, shape: Sequence[Size] | None) -> bool:
        """Say whether arrays of this shape have one number per position, per row, or at all."""
        if shape is None or len(shape) > len(self.shape):
            return False
        first = len(self.shape) - len(shape)
        wide = [first + i for i, size in enumerate(shape) if size != 1]
        if any(self.shape[axis] != shape[axis - first] for axis in wide):
            return False
        inside = [axis in self.axes for axis in wide]
        return all(inside) or not any(inside)


def frame_of(scope: Scope, node: ir.Node) -> Frame | None:
    """Return the rows that a reduction reduces, None where they are not known."""
    shape = None if node.inputs[0] is None else scope.shapes.shape(node.inputs[0])
    axes = None if shape is None else _axes(scope, node, len(shape))
    if shape is None or axes is None or len(axes) == len(shape):
        return None
    frame = Frame(tuple(shape), axes)
    return None if all(size == 1 for size in frame.row) else frame


def _axes(scope: Scope, node: ir.Node, rank: int) -> tuple[int, ...] | None:
    given: Sequence[int] | None = None
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = scope.array(node.inputs[1], 64)
        given = None if array is None else array.reshape(-1).tolist()
    elif (found := node.attributes.get("axes")) is not None and not found.is_ref():
        given = found.as_ints()
    if not given or any(not -rank <= axis < rank for axis in given):
        return None
    axes = tuple(sorted({int(axis) % rank for axis in given}))
    return axes if len(axes) == len(given) else None


def roots_of(scope: Scope, anchor: ir.Node, frame: Frame) -> Iterator[ir.Value]:
    """Yield what the reduction may be a reduction of, nearest first.

    Each next one is the only value of the rows' shape that the one before was made from.
    """
    value = anchor.inputs[0]
    for _ in range(ROOT_LIMIT):
        if value is None or scope.is_constant(value):
            return
        yield value
        node = value.producer()
        if node is None or node.domain or node.op_type not in POINTWISE:
            return
        if node.graph is not anchor.graph:
            return
        wide = {
            id(each): each
            for each in node.inputs
            if each is not None
            and frame.kind(scope.shapes.shape(each)) == "full"
            and not scope.is_constant(each)
        }
        if len(wide) != 1:
            return
        value = next(iter(wide.values()))


class Region:
    """The nodes between a root and whatever is made of one reduction."""

    def __init__(self, scope: Scope, anchor: ir.Node, frame: Frame, root: ir.Value) -> None:
        """Grow the region; `ends` is empty where nothing comes of it."""
        self.scope, self.anchor, self.frame, self.root = scope, anchor, frame, root
        self.inside: dict[ir.Value, ir.Node] = {}
        """What depends on the root, and the node that makes it."""
        self.ends: list[ir.Value] = []
        """What depends on the reduction and has the root's shape, in the order found."""
        self._leaves: set[ir.Value] = set()
        self._failed: set[ir.Value] = set()
        self._looks = 0
        self._hot: set[ir.Value] = set()
        self._grow()

    def _grow(self) -> None:
        start = self.anchor.outputs[0]
        if self._visit(start, 0) is not True:
            return
        pending = [start]
        while pending and len(self.inside) < NODE_LIMIT:
            value = pending.pop(0)
            self._hot.add(value)
            if self.frame.kind(self.scope.shapes.shape(value)) == "full":
                self.ends.append(value)
            if len(value.uses()) > READER_LIMIT:
                continue
            for reader in value.consumers():
                made = reader.outputs[0] if reader.outputs else None
                if made is None or made in self._hot or made in pending:
                    continue
                # What failed for want of another operand may have it now.
                self._failed.discard(made)
                if self._visit(made, 0) is True:
                    pending.append(made)

    def _visit(self, value: ir.Value, depth: int) -> bool | None:
        """Return True for what depends on the root, False for a leaf, None for neither."""
        if value is self.root or value in self.inside:
            return True
        if value in self._leaves:
            return False
        if value in self._failed:
            return None
        self._looks += 1
        node = value.producer()
        is_near = depth < DEPTH_LIMIT and self._looks < LOOK_LIMIT
        if node is not None and is_near and self._admits(node) and self._depends(node, depth):
            self.inside[value] = node
            return True
        if self.frame.is_leaf(self.scope.shapes.shape(value)):
            self._leaves.add(value)
            return False
        self._failed.add(value)
        return None

    def _depends(self, node: ir.Node, depth: int) -> bool:
        """Say whether the node is made from the root, and from leaves beside it."""
        data = node.inputs if node.op_type in POINTWISE else node.inputs[:1]
        found = [self._visit(each, depth + 1) for each in data if each is not None]
        if True not in found or None in found:
            return False
        if node.op_type not in REDUCTIONS:
            return True
        first = node.inputs[0]
        if first is None or self.frame.kind(self.scope.shapes.shape(first)) != "full":
            return False
        mine, other = self.anchor.inputs, node.inputs
        if len(mine) == len(other) == 2 and mine[1] is other[1]:
            return True
        return _axes(self.scope, node, len(self.frame.shape)) == self.frame.axes

    def _admits(self, node: ir.Node) -> bool:
        if node.domain or node.graph is not self.anchor.graph or len(node.outputs) != 1:
            return False
        if node.op_type not in ADMITTED:
            return False
        shapes = self.scope.shapes
        dtype = shapes.dtype(node.outputs[0])
        return dtype in FLOATS and bool(self.frame.kind(shapes.shape(node.outputs[0])))

    # ---- what an end is made of -----------------------------------------------------------

    def cone(self, end: ir.Value) -> dict[ir.Value, ir.Node]:
        """Return what `end` is made from, down to the root, each after what it reads."""
        found: dict[ir.Value, ir.Node] = {}
        self._add(end, found)
        return found

    def read_elsewhere(self, end: ir.Value) -> ir.Value | None:
        """Return a value of the reduction, before `end`, that others read or a graph returns."""
        cone = self.cone(end)
        nodes = {id(node) for node in cone.values()}
        for value in cone:
            if value is end or value not in self._hot:
                continue
            if value.is_graph_output() or any(id(n) not in nodes for n in value.consumers()):
                return value
        return None

    def leaves(self) -> list[ir.Value]:
        """Return what is read beside the root, each once."""
        found: dict[ir.Value, None] = {}
        for node in self.inside.values():
            data = node.inputs if node.op_type in POINTWISE else node.inputs[:1]
            for each in data:
                if each is not None and each is not self.root and each not in self.inside:
                    found[each] = None
        return list(found)

    def in_order(self) -> dict[ir.Value, ir.Node]:
        """Return what is inside, each after what it reads."""
        found: dict[ir.Value, ir.Node] = {}
        for value in self.inside:
            self._add(value, found)
        return found

    def _add(self, value: ir.Value, found: dict[ir.Value, ir.Node]) -> None:
        if value in found or value not in self.inside:
            return
        for each in self.inside[value].inputs:
            if each is not None and each is not self.root:
                self._add(each, found)
        found[value] = self.inside[value]

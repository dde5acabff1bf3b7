"""Row regions: what is computed from the rows of one value and from their reductions.

A row runs along the axes that one reduction reduces. The region of a root holds the nodes
between the root and whatever is made of that reduction: pointwise ops, reductions over the same
axes, and what only moves the reduced numbers. Everything else that they read is a leaf: a number,
or an array with one number for each position in a row or for each row.

A region is evaluated in float64 on small rows, so that what it computes is known by its values
and not by how it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ortkit.graph.dims import Dim, Size, product, replace_atoms, sole_atom
from ortkit.graph.shape_rules.call import Ratio
from ortkit.rewrite.sample import FLOATS, sample
from ortkit.rewrite.scope import Scope

Array = np.ndarray

REDUCTIONS = frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
     "ReduceMin", "ReduceSum", "ReduceSumSquare"}
)  # fmt: skip
POINTWISE = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Exp", "Identity", "Log", "Max", "Mean", "Min", "Mul",
     "Neg", "Pow", "Reciprocal", "Sqrt", "Sub", "Sum"}
)  # fmt: skip
#: They give reduced numbers the axes back that broadcasting wants, or repeat them along a row.
MOVES = frozenset({"Expand", "Reshape", "Squeeze", "Unsqueeze"})

#: Nodes in a region, values looked at around it, and readers of one value.
NODE_LIMIT, LOOK_LIMIT, READER_LIMIT, DEPTH_LIMIT = 48, 120, 12, 20
#: How far before a reduction its root is looked for.
ROOT_LIMIT = 6
#: A whole row of this size is evaluated where its size is written as a number in the graph.
WIDE_LIMIT = 1 << 16


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
        kind = None if first is None else self.frame.kind(self.scope.shapes.shape(first))
        return kind == "full" and _axes(self.scope, node, len(self.frame.shape)) == self.frame.axes

    def _admits(self, node: ir.Node) -> bool:
        if node.domain or node.graph is not self.anchor.graph or len(node.outputs) != 1:
            return False
        if node.op_type not in POINTWISE | REDUCTIONS | MOVES:
            return False
        shapes = self.scope.shapes
        dtype = shapes.dtype(node.outputs[0])
        return dtype in FLOATS and bool(self.frame.kind(shapes.shape(node.outputs[0])))

    # ---- what an end is made of -----------------------------------------------------------

    def cone(self, end: ir.Value) -> dict[ir.Value, ir.Node]:
        """Return what `end` is made from, down to the root, each after what it reads."""
        found: dict[ir.Value, ir.Node] = {}

        def add(value: ir.Value) -> None:
            if value in found or value not in self.inside:
                return
            for each in self.inside[value].inputs:
                if each is not None and each is not self.root:
                    add(each)
            found[value] = self.inside[value]

        add(end)
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

    def leaves(self, end: ir.Value) -> list[ir.Value]:
        """Return the leaves that `end` is made from, each once."""
        cone = self.cone(end)
        found: dict[ir.Value, None] = {}
        for node in cone.values():
            data = node.inputs if node.op_type in POINTWISE else node.inputs[:1]
            for each in data:
                if each is not None and each is not self.root and each not in self.inside:
                    found[each] = None
        return list(found)

    def probe(self, end: ir.Value, rows: int) -> Probe:
        """Return the sizes and leaves to evaluate `end` with, `rows` rows along its first axis."""
        sums = any(
            node.op_type in REDUCTIONS and node.op_type != "ReduceMean"
            for node in self.cone(end).values()
        )
        return Probe(self, end, rows, sums)


class Probe:
    """Sizes to evaluate a region with, and its leaves as arrays of these sizes."""

    def __init__(self, region: Region, end: ir.Value, rows: int, sums: bool) -> None:
        """Choose sizes: small ones, but those of the model where they are written as numbers."""
        self.region, self.end = region, end
        frame = region.frame
        self.axis = next(i for i in range(len(frame.shape)) if i not in frame.axes)
        """The axis along which rows differ in scale."""
        small = iter((5, 3, 2, 2, 2, 2, 2, 2))
        whole = product(frame.row)
        known = sums and isinstance(whole, int)
        self.is_known = not known or (isinstance(whole, int) and whole <= WIDE_LIMIT)
        sizes: list[int] = []
        for i, size in enumerate(frame.shape):
            if i not in frame.axes:
                sizes.append(rows if i == self.axis else 2)
            else:
                keeps = isinstance(size, int) and (known or size == 1)
                sizes.append(size if keeps and isinstance(size, int) else next(small))
        self.sizes = tuple(sizes)
        self.leaves: dict[ir.Value, Array] = {}

    def fill(self, random: np.random.Generator) -> bool:
        """Give every leaf an array; False where the region cannot be evaluated."""
        if not self.is_known:
            return False
        scope = self.region.scope
        for leaf in self.region.leaves(self.end):
            shape = scope.shapes.shape(leaf) or ()
            first = len(self.sizes) - len(shape)
            wide = tuple(1 if size == 1 else self.sizes[first + i] for i, size in enumerate(shape))
            if any(size != 1 for size in shape):
                # Symbols: no two of them alike, and none of them near 0 or 1.
                self.leaves[leaf] = random.uniform(1.3, 2.7, wide)
                continue
            number = self._number(leaf)
            if number is None:
                return False
            self.leaves[leaf] = np.full(wide, number)
        return True

    def _number(self, leaf: ir.Value) -> float | None:
        """Return the one number of a leaf, sizes of the graph as they are here."""
        scope = self.region.scope
        array = scope.array(leaf, 1)
        if array is not None and array.size == 1:
            return float(array.reshape(-1)[0])
        elements = scope.shapes.elements(leaf)
        if elements is None or len(elements) != 1:
            return None
        element = elements[0]
        if isinstance(element, Ratio):
            over = self._size(element.over)
            return None if over is None else over / element.under
        return self._size(element) if isinstance(element, Dim) else float(element)

    def _size(self, size: Dim) -> float | None:
        known = {
            atom.key: mine
            for whole, mine in zip(self.region.frame.shape, self.sizes, strict=True)
            if not isinstance(whole, int) and (atom := sole_atom(whole)) is not None
        }
        found = replace_atoms(size, lambda atom: known.get(atom.key))
        return float(found) if isinstance(found, int) else None

    def run(self, rows: Array) -> Array | None:
        """Evaluate the end for a root with these numbers; None where it cannot be.

        Args:
            rows: Float64, of the probe's sizes.
        """
        shapes, frame = self.region.scope.shapes, self.region.frame
        kept = tuple(1 if i in frame.axes else size for i, size in enumerate(self.sizes))
        flat = tuple(size for i, size in enumerate(self.sizes) if i not in frame.axes)
        wanted = {"full": self.sizes, "kept": kept, "flat": flat}
        values: dict[ir.Value, Array] = {self.region.root: rows, **self.leaves}
        for value, node in self.region.cone(self.end).items():
            shape = wanted[frame.kind(shapes.shape(value))]
            result = self._node(node, values, shape)
            if result is None or result.shape != shape:
                return None
            values[value] = result
        return values[self.end]

    def _node(
        self, node: ir.Node, values: dict[ir.Value, Array], shape: tuple[int, ...]
    ) -> Array | None:
        first = None if node.inputs[0] is None else values.get(node.inputs[0])
        if first is None:
            return None
        if node.op_type in MOVES:
            if first.size == np.prod(shape):
                return first.reshape(shape)
            return np.broadcast_to(first, shape) if first.ndim == len(shape) else None
        if node.op_type in REDUCTIONS:
            axes = self.region.frame.axes
            if node.op_type == "ReduceLogSumExp":
                peak = first.max(axis=axes, keepdims=True)
                total = np.log(np.exp(first - peak).sum(axis=axes, keepdims=True)) + peak
                return np.asarray(total.reshape(shape))
            return sample(node, [first, np.array(axes)])
        inputs = [None if each is None else values.get(each) for each in node.inputs]
        return sample(node, inputs)

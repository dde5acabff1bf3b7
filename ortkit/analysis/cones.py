"""Cones: the pointwise nodes between one value and a value computed from it alone.

Such a cone is a function of one number, whatever its nodes are; `ortkit.ops` recognises it by
its values. Each element of the end depends on the same element of the root only: constants have
one element, so every value in between has the root's shape.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS, OPS, Array, as_sample
from ortkit.operators import where
from ortkit.rewrite.scope import Scope

#: Ops that scale and shift: a cone of these alone is no activation.
AFFINE = where(affine=True)
#: Ops that look at each element alone, whose operands broadcast and whose numbers are known.
POINTWISE = where(access="elementwise") & OPS.keys()
#: The same in ONNX Runtime's domain, with one input.
CONTRIB = where(domain="com.microsoft", access="elementwise") - {"BiasGelu"}
NODE_LIMIT = 24
#: More steps that are not affine than any activation takes, so that long chains stay cheap.
BEND_LIMIT = 8
#: Nested cones of one end. The longest spelling of one step at a time, 1 / (1 + exp(-x)), has 4.
ROOT_LIMIT = 5


@dataclass(frozen=True)
class Cone:
    """What lies between `root` and the first output of `end`."""

    root: ir.Value
    nodes: tuple[ir.Node, ...]
    """Each before those that it reads: the end first."""
    numbers: Mapping[ir.Value, Array] = field(repr=False)
    """The constants that the nodes read, of rank 0."""

    @property
    def end(self) -> ir.Node:
        """The node that computes the result."""
        return self.nodes[0]

    def evaluate(self, points: Array, instead: Mapping[ir.Value, Array] | None = None) -> Array:
        """Return the float64 results at `points`, with some constants replaced.

        Raises:
            ValueError: A node's attributes are not what its op takes.
        """
        values: dict[ir.Value, Array] = {**self.numbers, **(instead or {}), self.root: points}
        with np.errstate(all="ignore"):
            for node in reversed(self.nodes):
                inputs = [None if value is None else values[value] for value in node.inputs]
                result = as_sample(OPS[node.op_type](node, inputs))
                if result is None:
                    raise ValueError(f"{node.op_type} cannot be evaluated")
                values[node.outputs[0]] = result
        made = values[self.end.outputs[0]]
        return made if made.shape == points.shape else np.broadcast_to(made, points.shape)

    def freed(self) -> tuple[ir.Node, ...]:
        """Return the nodes that nothing reads any more once the end's result is made otherwise."""
        freed = {self.end}
        for node in self.nodes[1:]:
            (value,) = node.outputs
            if not value.is_graph_output() and all(
                consumer in freed for consumer in value.consumers()
            ):
                freed.add(node)
        return tuple(node for node in self.nodes if node in freed)


class Order:
    """Where each node of a scope stands, and how far above it the next one that bends is."""

    def __init__(self, scope: Scope) -> None:
        self.index: dict[ir.Node, float] = {}
        """Rises along every path through the graphs."""
        self._bend: dict[ir.Node, int] = {}
        for index, node in enumerate(scope.nodes()):
            self.index[node] = float(index)
            self._bend[node] = self._nodes_to_bend(node)

    def _nodes_to_bend(self, node: ir.Node) -> int:
        if not _is_pointwise(node):
            return NODE_LIMIT
        if node.op_type not in AFFINE:
            return 0
        above = (value.producer() for value in node.inputs if value is not None)
        nearest = min(
            (self._bend.get(item, NODE_LIMIT) for item in above if item), default=NODE_LIMIT
        )
        return min(nearest + 1, NODE_LIMIT)

    def is_affine(self, end: ir.Node) -> bool:
        """Say whether every cone of `end` is affine, or too large."""
        return self._bend.get(end, 0) >= NODE_LIMIT

    def place(self, made: Sequence[ir.Node], end: ir.Node) -> None:
        """Let the new nodes `made` stand right before `end`, in this order."""
        for count, node in enumerate(made, 1):
            self.index[node] = self.index[end] - 1 + count / (len(made) + 1)


def cones_at(scope: Scope, end: ir.Node, order: Order) -> list[Cone]:
    """Return the cones of `end` that are not affine, smallest first; bounded work.

    Nodes of other graphs, of other element types, and constants of more than one element are
    never inside one.
    """
    if order.is_affine(end) or not _is_pointwise(end):
        return []
    dtype = scope.shapes.dtype(end.outputs[0])
    if dtype not in FLOATS:
        return []
    return list(_Search(scope, end, order.index, dtype).cones())


class _Search:
    """Goes backward from the end, always at the latest node, until one value is left."""

    def __init__(
        self, scope: Scope, end: ir.Node, order: Mapping[ir.Node, float], dtype: ir.DataType
    ) -> None:
        self.scope, self.end, self.order, self.dtype = scope, end, order, dtype
        self.pending: list[tuple[float, ir.Node]] = []
        self.seen: set[ir.Node] = set()
        self.leaf: ir.Value | None = None
        self.numbers: dict[ir.Value, Array] = {}
        self.rank = 0
        """The largest rank of the constants."""

    def cones(self) -> Iterator[Cone]:
        nodes: list[ir.Node] = []
        bends = found = 0
        self._push(self.end)
        while self.pending and len(nodes) < NODE_LIMIT and found < ROOT_LIMIT:
            _, node = heapq.heappop(self.pending)
            bends += node.op_type not in AFFINE
            if bends > BEND_LIMIT or not all(self._take(value) for value in node.inputs):
                return
            nodes.append(node)
            root = self._root()
            if root is not None and bends and self._keeps_shape(root):
                found += 1
                yield Cone(root, tuple(nodes), self.numbers)

    def _take(self, value: ir.Value | None) -> bool:
        """Take an operand in; False where there is a second value that varies for good."""
        if value is None or value in self.numbers or value is self.leaf:
            return True
        producer = value.producer()
        if producer is not None and producer in self.seen:
            return True
        number = self.scope.array(value, 1)
        if number is not None and number.size == 1 and number.dtype.kind not in "SUO":
            self.numbers[value] = np.asarray(as_sample(number)).reshape(())
            self.rank = max(self.rank, number.ndim)
            return True
        if producer is not None and self._is_inside(producer):
            self._push(producer)
            return True
        if self.leaf is not None:
            return False
        self.leaf = value
        return True

    def _push(self, node: ir.Node) -> None:
        self.seen.add(node)
        heapq.heappush(self.pending, (-self.order[node], node))

    def _is_inside(self, node: ir.Node) -> bool:
        if node.graph is not self.end.graph or node not in self.order or not _is_pointwise(node):
            return False
        return self.scope.shapes.dtype(node.outputs[0]) in (self.dtype, ir.DataType.BOOL)

    def _root(self) -> ir.Value | None:
        """Return the one value that everything taken in so far depends on."""
        if self.leaf is not None:
            root = None if self.pending else self.leaf
        else:
            root = self.pending[0][1].outputs[0] if len(self.pending) == 1 else None
        return root if root is not None and self._has_type(root) else None

    def _has_type(self, root: ir.Value) -> bool:
        return self.scope.shapes.dtype(root) == self.dtype

    def _keeps_shape(self, root: ir.Value) -> bool:
        """Say whether no constant has more axes than `root`, which would add to the result's."""
        if self.rank == 0:
            return True
        rank = self.scope.shapes.rank(root)
        return rank is not None and rank >= self.rank


def _is_pointwise(node: ir.Node) -> bool:
    if len(node.outputs) != 1:
        return False
    if node.domain == "":
        if node.op_type not in POINTWISE:
            return False
    elif node.domain != "com.microsoft" or node.op_type not in CONTRIB or len(node.inputs) != 1:
        return False
    return not (
        node.attributes and any(attribute.is_ref() for attribute in node.attributes.values())
    )

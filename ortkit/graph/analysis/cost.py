"""What a model costs: arithmetic and bytes by operator, for given or assumed sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.graph.analysis.flops import KnownShapes, UnknownCostError, node_flops
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import (
    Dim,
    Size,
    add,
    floor_divide,
    has_unknown,
    multiply,
    names,
    product,
    substitute,
)
from ortkit.graph.walk import nodes_below
from ortkit.operators import where

#: What a size is taken to be when nobody gave it.
ASSUMED = 1
#: Inputs with the caches before to outputs with them. ONNX Runtime writes new rows into the memory
#: of the first where they have the size of the second.
_CACHES = {("com.microsoft", "GroupQueryAttention"): {3: 1, 4: 2}}
#: Sums of more different terms than this are not written as a formula.
_TERMS = 12

#: Hand on their input's memory; nothing is moved.
_VIEWS = (
    where(access="control")
    | where(reshapes=True)
    | {"Constant", "Dropout", "Identity", "Shape", "Size"}
)
#: Read as much of their first input as they write.
_SLICING = where(indexed=True) | {"Slice"}


@dataclass(frozen=True)
class OpCost:
    """What all nodes of one operator do."""

    op: str
    nodes: int
    parameters: int
    """Elements of the weights that they read; one that others read too counts at the first."""
    flops: int
    bytes: int
    """Read and written, weights included, as if nothing stayed in a cache."""
    uncounted: int
    """Nodes whose cost is not known: operators without a rule, sizes that the data decides."""
    flops_formula: str | None
    """The operations over named sizes; None if they are not known or the sum is long."""


@dataclass(frozen=True)
class Cost:
    """What a model does in one run.

    Bodies of Loop and Scan count once, whatever the number of iterations, and so do both
    branches of If.
    """

    ops: tuple[OpCost, ...]
    """Most operations first."""
    given: Mapping[str, int]
    """Those of the sizes asked for that the cost depends on."""
    assumed: Mapping[str, int]
    """Named sizes that nobody gave; they are taken to be 1."""

    @property
    def flops(self) -> int:
        """All operations."""
        return sum(op.flops for op in self.ops)

    @property
    def bytes(self) -> int:
        """All bytes read and written."""
        return sum(op.bytes for op in self.ops)

    @property
    def uncounted(self) -> int:
        """Nodes whose cost is not known."""
        return sum(op.uncounted for op in self.ops)


def model_cost(model: ir.Model, sizes: Mapping[str, int]) -> Cost:
    """Sum up the main graph and what is nested in it; calls of functions are not followed.

    Args:
        model: Read, not changed.
        sizes: Numbers for named sizes; the others are taken to be 1.
    """
    shapes = Shapes.infer(model)
    tallies: dict[str, _Tally] = {}
    counted: set[ir.Value] = set()
    for node in nodes_below(model.graph):
        op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        tally = tallies.setdefault(op, _Tally())
        tally.nodes += 1
        tally.parameters += _parameters(node, counted)
        try:
            flops, moved = node_flops(node, shapes), node_bytes(node, shapes)
        except UnknownCostError:
            tally.uncounted += 1
            continue
        tally.flops[flops] += 1
        tally.bytes[moved] += 1
    used = {name for tally in tallies.values() for size in tally.sizes() for name in names(size)}
    assumed = dict.fromkeys(sorted(used - set(sizes)), ASSUMED)
    values = {**assumed, **sizes}
    found = (tally.cost(op, values) for op, tally in tallies.items())
    ordered = tuple(
        sorted(found, key=lambda op_cost: (-op_cost.flops, -op_cost.bytes, op_cost.op))
    )
    given = {name: size for name, size in sizes.items() if name in used}
    return Cost(ordered, given, assumed)


def node_bytes(node: ir.Node, shapes: KnownShapes) -> Size:
    """Return the bytes that one node reads and writes; its subgraphs are not included.

    Raises:
        UnknownCostError: A type or shape is not known.
    """
    if node.op_type in _VIEWS and node.domain in ("", "ai.onnx"):
        return 0
    kept = _written_in_place(node, shapes)
    written = _sum(
        value_bytes(value, shapes) for value in node.outputs if value.name and value not in kept
    )
    if node.op_type in _SLICING and node.domain in ("", "ai.onnx"):
        rest = (value for value in node.inputs[1:] if value is not None)
        return _sum((multiply(2, written), *(value_bytes(value, shapes) for value in rest)))
    read = (value for value in node.inputs if value is not None)
    return _sum((written, *(value_bytes(value, shapes) for value in read)))


def _written_in_place(node: ir.Node, shapes: KnownShapes) -> list[ir.Value]:
    """Return the outputs that are caches of which only new rows are written, a token's or few."""
    pairs = _CACHES.get((node.domain, node.op_type), {})
    found = [
        (node.inputs[before], node.outputs[after])
        for before, after in pairs.items()
        if before < len(node.inputs) and after < len(node.outputs)
    ]
    return [
        after
        for before, after in found
        if before is not None and shapes.shape(before) == shapes.shape(after) is not None
    ]


def value_bytes(value: ir.Value, shapes: KnownShapes) -> Size:
    """Return the bytes of a tensor.

    Raises:
        UnknownCostError: Its type or shape is not known, or it is no tensor of numbers.
    """
    dtype, shape = shapes.dtype(value), shapes.shape(value)
    if dtype is None or shape is None or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise UnknownCostError
    elements = product(shape)
    if dtype.bitwidth % 8 == 0:  # dividing costs more than all the rest
        return multiply(dtype.bitwidth // 8, elements)
    return floor_divide(multiply(dtype.bitwidth, elements), 8)


@dataclass
class _Tally:
    """What is known so far of one operator: how many nodes have which cost."""

    nodes: int = 0
    parameters: int = 0
    uncounted: int = 0
    flops: Counter[Size] = field(default_factory=Counter)
    bytes: Counter[Size] = field(default_factory=Counter)

    def sizes(self) -> Iterable[Size]:
        yield from self.flops
        yield from self.bytes

    def cost(self, op: str, values: Mapping[str, int]) -> OpCost:
        flops, open_flops = _total(self.flops, values)
        moved, open_bytes = _total(self.bytes, values)
        uncounted = self.uncounted + max(open_flops, open_bytes)
        formula = None if uncounted else _formula(self.flops)
        return OpCost(op, self.nodes, self.parameters, flops, moved, uncounted, formula)


def _total(counts: Mapping[Size, int], values: Mapping[str, int]) -> tuple[int, int]:
    """Return the sum at these sizes, and how many terms have none."""
    total = unknown = 0
    for size, count in counts.items():
        number = _number(size, values)
        if number is None:
            unknown += count
        else:
            total += count * number
    return total, unknown


def _number(size: Size, values: Mapping[str, int]) -> int | None:
    if isinstance(size, int):
        return size
    try:
        found = substitute(size, dict(values))
    except (ValueError, ZeroDivisionError):  # sizes that do not go together
        return None
    return found if isinstance(found, int) and found >= 0 else None


def _formula(counts: Mapping[Size, int]) -> str | None:
    if any(has_unknown(size) for size in counts):
        return None
    if len(counts) > 4 * _TERMS:  # adding them up would cost more than it says
        return None
    total = _sum(multiply(count, size) for size, count in counts.items())
    if isinstance(total, Dim) and len(total.terms) > _TERMS:
        return None
    return str(total)


def _sum(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = add(total, size)
    return total


def _parameters(node: ir.Node, counted: set[ir.Value]) -> int:
    """Count the weights that no node before read."""
    total = 0
    for value in node.inputs:
        if value is None or value.const_value is None or not value.is_initializer():
            continue
        if value not in counted:
            counted.add(value)
            total += int(value.const_value.size)
    return total

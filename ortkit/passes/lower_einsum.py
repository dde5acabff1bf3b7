"""lower-einsum: MatMul, Mul and ReduceSum for Einsum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.axes import Factor, Group, Layout
from ortkit.analysis.einsum import Equation, Roles, read_equation, roles, sizes_of
from ortkit.analysis.relayout import Relayout, relayout
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: What both Einsum and the ops that stand for it take.
TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
)
#: An intermediate result of these types is too coarse.
NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: From here on the axes of ReduceSum are an input.
AXES_SINCE = 13


@dataclass(frozen=True)
class LowerEinsum(NodePass):
    """Write an Einsum of one or two operands as a product, with the layout ops that it takes.

    Before:
        y = Einsum<equation = "bqhd,bkhd->bhqk">(q, k)
    After:
        y = MatMul(Transpose<perm = [0, 2, 1, 3]>(q), Transpose<perm = [0, 2, 3, 1]>(k))

    Axes that both operands have and the result lacks are summed in a MatMul, with what is kept of
    each operand as rows and columns. Without such axes it is a Mul. What only one operand has and
    the result lacks is summed first. These take 0.13 to 0.96 of the time of Einsum in ONNX Runtime
    1.31.1 on a CPU (25 equations), where the layout ops are nodes of their own and no slower.

    Skips:
        * Diagonals (a letter twice in one operand) and more than two operands.
        * Unknown ranks, and one letter for sizes that may differ.
        * Several symbolic sizes in one Reshape.

    Source:
        ONNX Einsum-12.
    """

    name: ClassVar[str] = "lower-einsum"
    ops: ClassVar[Sequence[str]] = ("Einsum",)

    def rewrite(self, site: Site) -> None:
        shapes = [site.shape(value) for value in site.node.inputs]
        known = [shape for shape in shapes if shape is not None]
        if len(known) != len(shapes) or site.dtype(site.output) not in TYPES:
            site.miss("its operands are not of known rank and of a type that MatMul takes")
            return
        if len(known) > 2:
            site.miss("it has more than two operands")
            return
        equation = read_equation(site.string("equation", ""), [len(shape) for shape in known])
        if equation is None:
            site.miss("its equation does not fit the ranks of its operands")
            return
        if (reason := _refusal(site, equation)) is not None:
            site.miss(reason)
            return
        sizes, unequal = sizes_of(equation, known)
        if unequal is not None:
            site.miss(f"its axes {unequal!r} may be of different sizes")
            return
        plan = _plan(site, equation, known, sizes)
        if plan is None:
            site.miss("a Reshape of it would have several symbolic sizes")
            return
        if plan.is_empty and not site.can_replace(plan.operands[0].value):
            return
        if site.claim(plan.rule):
            site.replace(plan.emit(site))


def _refusal(site: Site, equation: Equation) -> str | None:
    """Return what this pass does not do, None if it can do the equation."""
    if any(len(set(term)) < len(term) for term in (*equation.terms, equation.out)):
        return "it takes a diagonal"
    labels = [set(term) for term in equation.terms]
    if any(label.isdigit() and not equation.keeps(label) for term in labels for label in term):
        return "its result lacks the ellipsis"
    alone = set.symmetric_difference(*labels) if len(labels) == 2 else set()
    if site.dtype(site.output) in NARROW and any(not equation.keeps(item) for item in alone):
        return "a sum over one operand alone would be rounded to 16 bits"
    return None


@dataclass(frozen=True)
class _Operand:
    """A value, the axes of it to sum over, and the layout that is wanted then."""

    value: ir.Value
    summed: tuple[int, ...]
    layout: Relayout

    def emit(self, site: Site) -> ir.Value:
        value = self.value
        if self.summed and site.opset < AXES_SINCE:
            value = site.op("ReduceSum", [value], {"axes": self.summed, "keepdims": 0})
        elif self.summed:
            axes = site.constant(self.summed)
            value = site.op("ReduceSum", [value, axes], {"keepdims": 0})
        return self.layout.emit(site, value)


@dataclass(frozen=True)
class _Plan:
    """Operands, the op that joins them, and the layout of the result."""

    rule: str
    operands: tuple[_Operand, ...]
    layout: Relayout

    @property
    def is_empty(self) -> bool:
        """Whether the result is the operand itself."""
        first = self.operands[0]
        counts = first.layout.moves.count + self.layout.moves.count
        return len(self.operands) == 1 and not counts and not first.summed

    def cost(self, site: Site) -> tuple[int, int]:
        """How many nodes stay once constants are folded, and how many of them move data."""
        used = [operand for operand in self.operands if not site.scope.is_constant(operand.value)]
        costs = [self.layout.cost, *(item.layout.cost for item in used)]
        return sum(nodes for nodes, _ in costs), sum(moved for _, moved in costs)

    def emit(self, site: Site) -> ir.Value:
        values = [operand.emit(site) for operand in self.operands]
        if self.rule == "product":
            values = [site.op("MatMul", values)]
        elif len(values) == 2:
            values = [site.op("Mul", values)]
        if self.rule == "dot":
            return self._dotted(site, values[0])
        return self.layout.emit(site, values[0])

    def _dotted(self, site: Site, value: ir.Value) -> ir.Value:
        """Sum over the last axis.

        ONNX Runtime's ReduceSum (1.31.1) gives an empty value the shape of its input, where Einsum
        does not; kernels do not either. As an Einsum 64 to 4,096 rows take 3 to 7 times as long.
        """
        if site.opset < AXES_SINCE:
            value = site.op("ReduceSum", [value], {"axes": (-1,), "keepdims": 0})
        else:
            value = site.op("ReduceSum", [value, site.constant((-1,))], {"keepdims": 0})
        return self.layout.emit(site, value)


def _plan(
    site: Site, equation: Equation, shapes: Sequence[Sequence[Size]], sizes: Mapping[str, Size]
) -> _Plan | None:
    """Return how to compute it; of the two orders of a product, that which takes fewer nodes."""
    operands = [
        _reduced(value, index, shape, equation)
        for index, (value, shape) in enumerate(zip(site.node.inputs, shapes, strict=True))
        if value is not None
    ]
    if len(operands) == 1:
        return _permutation(site, operands[0], equation.out)
    first, second = operands
    if not roles(first.labels, second.labels, equation.out).summed:
        return _pointwise(site, operands, equation.out)
    plans = (
        _product(site, pair, equation.out, sizes) for pair in ((first, second), (second, first))
    )
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda plan: plan.cost(site), default=None)


@dataclass(frozen=True)
class _Labelled:
    """An operand without the axes that only it has and the result lacks."""

    value: ir.Value
    summed: tuple[int, ...]
    groups: Mapping[str, Group]
    """The one factor of each axis, none where its length is one."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.groups)

    def to(self, site: Site, axes: Sequence[Sequence[str]]) -> _Operand | None:
        """Return the operand with these axes, each of the labels that it joins."""
        joined = tuple(
            tuple(chain.from_iterable(self.groups.get(label, ()) for label in axis))
            for axis in axes
        )
        way = relayout(site, Layout(tuple(self.groups.values()), joined))
        return None if way is None else _Operand(self.value, self.summed, way)


def _reduced(value: ir.Value, index: int, shape: Sequence[Size], equation: Equation) -> _Labelled:
    term = equation.terms[index]
    others = [label for i, item in enumerate(equation.terms) if i != index for label in item]
    kept = [label in others or equation.keeps(label) for label in term]
    groups = {
        label: () if size == 1 else (Factor(size),)
        for label, size, keep in zip(term, shape, kept, strict=True)
        if keep
    }
    summed = tuple(axis for axis, keep in enumerate(kept) if not keep)
    return _Labelled(value, summed, groups)


def _permutation(site: Site, operand: _Labelled, out: Sequence[str]) -> _Plan | None:
    moved = operand.to(site, [(label,) for label in out])
    return None if moved is None else _Plan("permutation", (moved,), NOTHING)


def _pointwise(site: Site, operands: Sequence[_Labelled], out: Sequence[str]) -> _Plan | None:
    moved = []
    for operand in operands:
        # Axes before the first of its own come by broadcasting.
        skipped = next((i for i, label in enumerate(out) if label in operand.labels), len(out))
        moved.append(operand.to(site, [(label,) for label in out[skipped:]]))
    found = tuple(item for item in moved if item is not None)
    return _Plan("pointwise", found, NOTHING) if len(found) == len(moved) else None


def _product(
    site: Site, pair: Sequence[_Labelled], out: Sequence[str], sizes: Mapping[str, Size]
) -> _Plan | None:
    part = roles(pair[0].labels, pair[1].labels, out)
    if site.scope.is_constant(pair[0].value):
        # The order of the operand that varies saves it a Transpose.
        summed = tuple(label for label in pair[1].labels if label in part.summed)
        part = Roles(part.batch, part.rows, part.columns, summed)
    batch = [(label,) for label in part.batch]
    # Without a batch the rows may stay apart, since MatMul takes them as one, or be missing.
    rows = [part.rows] if part.batch else [(row,) for row in part.rows]
    columns = [part.columns] if part.batch or part.columns else []
    # Of many vectors at once; of two it is a MatMul, as it is.
    is_dot = bool(part.batch) and not part.rows and not part.columns
    is_dot = is_dot and site.dtype(site.output) not in NARROW
    if is_dot:
        rows = columns = []
    left = pair[0].to(site, [*batch, *rows, part.summed])
    right = pair[1].to(site, [*batch, part.summed, *columns])
    order = [*batch, *rows, *columns]
    factors = {label: () if sizes[label] == 1 else (Factor(sizes[label]),) for label in out}
    made = tuple(tuple(f for label in axis for f in factors[label]) for axis in order)
    layout = relayout(site, Layout(made, tuple(factors[label] for label in out)))
    if left is None or right is None or layout is None:
        return None
    return _Plan("dot" if is_dot else "product", (left, right), layout)


NOTHING = Relayout.nothing()

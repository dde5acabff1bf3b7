"""The axes of a program: which dims of all its values run together.

Each dim of each value is a row of axes, outermost first. Pointwise operators make the axes of
their operands and result the same ones; a Reshape splits them where it has to. Part of a dim
(Slice, Concat) has axes of its own. What remains are the few loops that a kernel needs:
`X [batch, seq, 768] + B [768]` has two axes, `batch * seq` and `768`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ortkit.kernels.region.program import (
    Broadcast,
    Concat,
    Lookup,
    Point,
    Position,
    Program,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from ortkit.kernels.sizes import ONE, Extent, product
from ortkit.refusal import RefusedError


@dataclass(eq=False)
class Axis:
    """One loop, or what it was split into or found to be the same as."""

    extent: Extent
    same: Axis | None = None
    parts: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class Axes:
    """The axes of every value.

    Args:
        dims: Per value, per dim, its axes, outermost first; none for size 1.
        reduced: What the reductions run over.
        pinned: Those of which parts are looked at: they cannot be split or joined.
    """

    dims: tuple[tuple[tuple[Axis, ...], ...], ...]
    reduced: tuple[Axis, ...]
    pinned: frozenset[Axis]

    def of(self, value: int) -> tuple[Axis, ...]:
        """Return all axes of a value, outermost first."""
        return tuple(axis for dim in self.dims[value] for axis in dim)


def find_axes(program: Program) -> Axes:
    """Return the axes of all values.

    Raises:
        RefusedError: A Reshape does not split sizes evenly, or reductions run over different axes.
    """
    dims = _unified(program)
    settled = [[_leaves(dim) for dim in value] for value in dims]
    for value in settled:
        flat = [axis for dim in value for axis in dim]
        if len(set(flat)) < len(flat):
            raise RefusedError("a value meets itself transposed")
    reduced = _reduced(program, settled)
    merged = _merge(program, settled, reduced)
    return Axes(
        tuple(tuple(tuple(dim) for dim in value) for value in merged.dims),
        tuple(merged.reduced),
        frozenset(merged.pinned),
    )


def _unified(program: Program) -> list[list[list[Axis]]]:
    dims: list[list[list[Axis]]] = []
    for value in program.values:
        fresh: list[list[Axis]] = [[] if size == ONE else [Axis(size)] for size in value.shape]
        dims.append(fresh)
        match value.node:
            case Point(operands=operands):
                for operand in operands:
                    if operand is not None:
                        _broadcast(dims[operand], fresh)
            case Broadcast(x=x):
                _broadcast(dims[x], fresh)
            case Transpose(x=x, perm=perm):
                for dim, source in enumerate(perm):
                    _unify(dims[x][source], fresh[dim])
            case Reshape(x=x):
                _unify([a for dim in dims[x] for a in dim], [a for dim in fresh for a in dim])
            case Slice(x=x, dim=cut):
                for dim, axes in enumerate(dims[x]):
                    if dim != cut:
                        _unify(axes, fresh[dim])
            case Concat(parts=parts, dim=cut):
                for part in parts:
                    for dim, axes in enumerate(dims[part]):
                        if dim != cut:
                            _unify(axes, fresh[dim])
            case Lookup(x=x, indices=indices):
                for axes, into in zip([*dims[indices], *dims[x][1:]], fresh, strict=True):
                    _unify(axes, into)
            case Reduce(x=x, dims=over):
                for dim, axes in enumerate(dims[x]):
                    if dim not in over:
                        _unify(axes, fresh[dim])
    _unify_outputs(program, dims)
    return dims


def _unify_outputs(program: Program, dims: list[list[list[Axis]]]) -> None:
    """Run outputs of equal shapes together, whatever they are made of."""
    first, *others = program.outputs
    for other in others:
        if program.values[other].shape == program.values[first].shape:
            for a, b in zip(dims[other], dims[first], strict=True):
                _unify(a, b)


def _broadcast(operand: list[list[Axis]], result: list[list[Axis]]) -> None:
    for axes, into in zip(reversed(operand), reversed(result), strict=False):
        if axes:
            _unify(axes, into)


def _leaves(axes: Iterable[Axis]) -> list[Axis]:
    found: list[Axis] = []
    stack = list(reversed(list(axes)))
    while stack:
        axis = stack.pop()
        if axis.same is not None:
            stack.append(axis.same)
        elif axis.parts:
            stack += reversed(axis.parts)
        else:
            found.append(axis)
    return found


def _unify(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    a, b = _leaves(left), _leaves(right)
    while a and b:
        x, y = a.pop(), b.pop()
        if x is y:
            continue
        if x.extent == y.extent:
            y.same = x
        elif (rest := x.extent.divided_by(y.extent)) is not None:
            x.parts = (Axis(rest), y)
            a.append(x.parts[0])
        elif (rest := y.extent.divided_by(x.extent)) is not None:
            y.parts = (Axis(rest), x)
            b.append(y.parts[0])
        else:
            raise RefusedError(f"sizes {x.extent} and {y.extent} meet in a Reshape")
        # What was split or renamed may stand further left, too.
        a, b = _leaves(a), _leaves(b)
    if a or b:
        raise RefusedError("a Reshape of sizes that do not split evenly")


def _reduced(program: Program, dims: list[list[list[Axis]]]) -> list[Axis]:
    found: list[Axis] = []
    for value in program.values:
        if not isinstance(value.node, Reduce):
            continue
        over = [axis for dim in value.node.dims for axis in dims[value.node.x][dim]]
        if found and set(found) != set(over):
            raise RefusedError("reductions over different dims")
        found = found or over
    return found


# ---- merging


@dataclass
class _Merged:
    dims: list[list[list[Axis]]]
    reduced: list[Axis]
    pinned: set[Axis] = field(default_factory=set)


def _merge(program: Program, dims: list[list[list[Axis]]], reduced: list[Axis]) -> _Merged:
    """Make one axis of two that stand side by side wherever either stands.

    A merged axis stands in the dim of its first part; no dim of a merged axis is looked at alone.
    """
    state = _Merged(dims, reduced)
    for number, value in enumerate(program.values):
        match value.node:
            case Slice(x=x, dim=dim):
                state.pinned.update(dims[x][dim], dims[number][dim])
            case Concat(parts=parts, dim=dim):
                state.pinned.update(dims[number][dim])
                for part in parts:
                    state.pinned.update(dims[part][dim])
            case Position(dim=dim):
                state.pinned.update(dims[number][dim])
            case Lookup(x=x):
                state.pinned.update(dims[x][0])
    while (pair := _mergeable(state)) is not None:
        first, second = pair
        both = Axis(first.extent * second.extent)
        for value_dims in state.dims:
            for axes in value_dims:
                axes[:] = [both if a is first else a for a in axes if a is not second]
        state.reduced = [both if a is first else a for a in state.reduced if a is not second]
    return state


def _mergeable(state: _Merged) -> tuple[Axis, Axis] | None:
    after: dict[Axis, Axis | None] = {}
    before: dict[Axis, Axis | None] = {}
    for value_dims in state.dims:
        flat = [axis for axes in value_dims for axis in axes]
        for index, axis in enumerate(flat):
            following = flat[index + 1] if index + 1 < len(flat) else None
            preceding = flat[index - 1] if index else None
            after[axis] = following if after.get(axis, following) is following else None
            before[axis] = preceding if before.get(axis, preceding) is preceding else None
    for first, second in after.items():
        if second is None or before.get(second) is not first:
            continue
        if first in state.pinned or second in state.pinned:
            continue
        if (first in state.reduced) == (second in state.reduced):
            return first, second
    return None


def extent_of_axes(axes: Iterable[Axis]) -> Extent:
    """Return how many points the axes have together."""
    return product(axis.extent for axis in axes)


def row_of(program: Program, axes: Axes, full: tuple[Axis, ...]) -> list[Axis]:
    """Return the reduced axes in the order in which they lie in memory."""
    if not axes.reduced:
        return []
    if set(axes.reduced) <= set(full):
        return [axis for axis in full if axis in axes.reduced]
    first = next(v.node for v in program.values if isinstance(v.node, Reduce))
    return [axis for axis in axes.of(first.x) if axis in axes.reduced]


def check_outputs(program: Program, axes: Axes, over: list[Axis], row: list[Axis]) -> None:
    """Check that all outputs are over the points `over`, and over all of the row or none of it.

    Raises:
        RefusedError: They are not.
    """
    for output in program.outputs:
        found = set(axes.of(output))
        if not set(over) <= found or not (found <= {*over, *row}):
            raise RefusedError("outputs over different points")
        if found & set(row) and not set(row) <= found:
            raise RefusedError("an output over part of a row")

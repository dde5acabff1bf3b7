"""The values of a program as expressions, each computed in the outermost block that can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ortkit.errors import InternalError
from ortkit.kernels.region import dtypes
from ortkit.kernels.region.axes import Axis
from ortkit.kernels.region.indices import (
    HERE,
    Index,
    Where,
    index_of,
    key_of,
    linear,
    part_where,
    starts_of,
    through_views,
)
from ortkit.kernels.region.program import (
    Concat,
    Constant,
    Input,
    Point,
    Position,
    Reduce,
    Size,
    operands_of,
)
from ortkit.kernels.sizes import Extent, product
from ortkit.kernels.tvm.divisors import Inverse, divisor_of, inverse_of, quotient
from ortkit.kernels.tvm.emit import Buffer, Emitter, Expr
from ortkit.kernels.tvm.schedule import Schedule


@dataclass(frozen=True)
class Bound:
    """Where a loop stands: its position, the block it is known in, and between which numbers."""

    at: Expr
    level: int
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory and its ONNX element type."""

    buffer: Buffer
    dtype: str


@dataclass
class Row:
    """What is known of the row that is being computed.

    Args:
        level: The block that its reductions are known in.
        results: Of the reductions so far.
        kept: Values of all points of the row, for later passes.
        running: The number of the pass that is being emitted.
    """

    level: int = 0
    results: dict[int, Expr] = field(default_factory=dict)
    kept: dict[int, Buffer] = field(default_factory=dict)
    running: int = 0


@dataclass
class Values:
    """A kernel in the making: where its loops stand, and what has been computed."""

    schedule: Schedule
    e: Emitter
    tensors: Sequence[Tensor]
    sizes: dict[str, Expr]
    of_row: frozenset[int]
    """The values that reductions are part of."""
    bound: dict[Axis, Bound] = field(default_factory=dict)
    row: Row = field(default_factory=Row)
    tiles: dict[int, Expr] = field(default_factory=dict)
    """Inputs that lie in a tile -> the element at the current point."""

    def bind(self, axis: Axis, at: Expr, low: int = 0, high: int | None = None) -> None:
        """State where the loop of `axis` stands in the current block: within low .. high - 1."""
        self.bound[axis] = Bound(at, self.e.level, low, high)

    @contextmanager
    def new_row(self, keep: int = 0) -> Iterator[None]:
        """Begin a row in the current block; `keep` points of what passes share are kept."""
        values = self.schedule.program.values
        kept = {
            number: self.e.local(keep, dtypes.compute_dtype(values[number].dtype))
            for number in (self.schedule.kept if keep else ())
        }
        outside, self.row = self.row, Row(self.e.level, kept=kept)
        yield
        self.row = outside

    def extent(self, extent: Extent) -> Expr:
        """Return a size."""
        result = self.e.i64(extent.factor)
        for symbol in extent.symbols:
            result = result * self.sizes[symbol]
        return result

    def write_all(self) -> None:
        """Store all outputs at the current point."""
        self.write(range(len(self.schedule.program.outputs)))

    def write(self, indices: Sequence[int]) -> None:
        """Store outputs at the current point: all are computed before the first is stored."""
        e, program = self.e, self.schedule.program
        found = []
        for index in indices:
            tensor = self.tensors[program.inputs + index]
            value = dtypes.store_value(e, self.value(program.outputs[index]), tensor.dtype)
            found.append((tensor, e.share(value), program.outputs[index]))
        for tensor, value, number in found:
            e.store(tensor.buffer, value, self.offset(number, HERE))

    def value(self, number: int, where: Where = HERE) -> Expr:
        """Return a value at the loops' position, computed in the outermost block that can."""
        schedule, e = self.schedule, self.e
        number, where = through_views(schedule.program, schedule.axes, number, where)
        node = schedule.program.values[number].node
        dtype = schedule.program.values[number].dtype
        match node:
            case Constant(value=value):
                return self._constant(value, dtype)
            case Size(extent=extent):
                return e.cast(self.extent(extent), dtypes.compute_dtype(dtype))
            case Concat():
                return self._part(number, node, where)
            case Reduce():
                return self.row.results[number]
        key = (number, key_of(schedule.axes, number, where))
        with e.at(self._level(number, where)):
            if key not in e.known:
                e.known[key] = self._compute(number, where)
            return e.known[key]

    def _constant(self, value: float | int | bool, dtype: str) -> Expr:
        e = self.e
        constant = dtypes.constant(e, value, dtype)
        if value != 0 or not dtypes.compute_dtype(dtype).startswith("float"):
            return constant
        # TVM takes 0 * x for 0, which it is not for an infinite x: a zero in memory stays one.
        with e.at(0):
            if (key := ("zero", dtype)) not in e.known:
                e.known[key] = e.share(constant)
            return e.known[key]

    def _compute(self, number: int, where: Where) -> Expr:
        e, value = self.e, self.schedule.program.values[number]
        is_plain = all(index is None for index in key_of(self.schedule.axes, number, where))
        kept = self.row.kept.get(number) if is_plain else None
        if kept is not None and self.row.running > self.schedule.kept[number]:
            return e.share(kept[self._row_offset()])
        match value.node:
            case Input(index=index):
                tensor = self.tensors[index]
                raw = self.tiles.get(number)
                raw = tensor.buffer[self.offset(number, where)] if raw is None else raw
                result = e.share(dtypes.load(e, raw, tensor.dtype))
            case Point(operands=operands, attributes=attributes, op=op):
                inputs = [None if x is None else self.value(x, where) for x in operands]
                if (divisor := self._divisor(number)) is not None:
                    result = quotient(e, inputs[0], self._inverse(divisor, where))
                else:
                    result = op.write(e, attributes, inputs)
                if number in self.schedule.repeated and e.dtype(result).startswith("float"):
                    # All passes must see one number, or the largest of a row is not its largest.
                    result = e.fence(result)
                result = e.share(result)
            case Position(dim=dim):
                result = e.share(
                    self._position(linear(where, self.schedule.axes.dims[number][dim]))
                )
            case _:
                raise InternalError(f"no code for {value.node}")
        if kept is not None and self.row.running == self.schedule.kept[number]:
            e.store(kept, result, self._row_offset())
        return result

    def _divisor(self, number: int) -> int | None:
        """Return what a value is to be divided by with an inverse, if it is."""
        return divisor_of(self.schedule, number) if self.schedule.choices.reciprocal else None

    def _inverse(self, number: int, where: Where) -> Inverse:
        """Return the inverse of a value, computed in the outermost block that can."""
        divisor = self.value(number, where)
        number, where = through_views(self.schedule.program, self.schedule.axes, number, where)
        node = self.schedule.program.values[number].node
        constant = float(node.value) if isinstance(node, Constant) else None
        key = ("inverse", number, key_of(self.schedule.axes, number, where))
        with self.e.at(self._level(number, where)):
            known = self.e.known
            if key not in known:
                known[key] = inverse_of(self.e, divisor, constant)
            found: Inverse = known[key]
        return found

    def _part(self, number: int, node: Concat, where: Where) -> Expr:
        """Return the part of a Concat in which the current loops stand: they never cross two."""
        schedule = self.schedule
        index = linear(where, schedule.axes.dims[number][node.dim])
        low = high = index.offset
        for axis, factor in index.terms:
            bound = self.bound[axis]
            if bound.high is None:
                raise InternalError("a Concat along a loop without bounds")
            low, high = low + bound.low * factor, high + (bound.high - 1) * factor
        starts = starts_of(schedule.program, node)
        for part, first, last in zip(node.parts, starts, starts[1:], strict=False):
            if first <= low and high < last:
                return self.value(part, part_where(schedule.axes, node, part, index, first, where))
        raise InternalError("a Concat in a loop over two of its parts")

    def _level(self, number: int, where: Where) -> int:
        loops = (
            self.bound[loop].level
            for axis in self.schedule.axes.of(number)
            for loop, _ in index_of(where, axis).terms
        )
        base = self.row.level if number in self.of_row else 0
        return max(loops, default=base) if not base else max([base, *loops])

    # ---- places

    def offset(self, number: int, where: Where) -> Expr:
        """Return the element's position in its tensor, which is dense."""
        owned = self.schedule.axes.of(number)
        offset = self.e.i64(0)
        for position, axis in enumerate(owned):
            stride = product(inner.extent for inner in owned[position + 1 :])
            index = self._position(index_of(where, axis))
            offset = offset + (index if stride.static == 1 else index * self.extent(stride))
        return offset

    def _row_offset(self) -> Expr:
        offset = self.e.i64(0)
        for index, axis in enumerate(self.schedule.row):
            stride = product(inner.extent for inner in self.schedule.row[index + 1 :])
            at = self.bound[axis].at
            offset = offset + (at if stride.static == 1 else at * self.extent(stride))
        return offset

    def _position(self, index: Index) -> Expr:
        at = self.e.i64(index.offset)
        for axis, factor in index.terms:
            loop = self.bound[axis].at
            at = at + (loop if factor == 1 else loop * self.e.i64(factor))
        return at


def made_of_rows(schedule: Schedule) -> frozenset[int]:
    """Return the values that reductions are part of."""
    found: set[int] = set()
    for number, value in enumerate(schedule.program.values):
        is_reduction = isinstance(value.node, Reduce)
        if is_reduction or any(x in found for x in operands_of(value.node)):
            found.add(number)
    return frozenset(found)

"""From a schedule to one TIR function over a range of units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from ortkit.errors import InternalError
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, product, symbols_of
from ortkit.kernels.tvm import dtypes
from ortkit.kernels.tvm.axes import Axis
from ortkit.kernels.tvm.emit import Buffer, Emitter, Expr
from ortkit.kernels.tvm.indices import (
    HERE,
    Index,
    Where,
    index_of,
    key_of,
    linear,
    part_where,
    slice_where,
    starts_of,
)
from ortkit.kernels.tvm.program import (
    Broadcast,
    Concat,
    Constant,
    Input,
    Point,
    Position,
    Reduce,
    Reshape,
    Size,
    Slice,
    Transpose,
    operands_of,
)
from ortkit.kernels.tvm.reductions import REDUCTIONS, halve
from ortkit.kernels.tvm.schedule import KEPT_ROW, Schedule

#: One AVX-512 register of float32; narrower machines take two or four registers a vector.
VECTOR = 16
#: Accumulators side by side hide the latency of an addition.
_ACCUMULATORS = 4

Body: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class _Bound:
    """Where a loop stands: its position, the block it is known in, and between which numbers."""

    at: Expr
    level: int
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class _Tensor:
    buffer: Buffer
    dtype: str


def lower(schedule: Schedule, signature: RegionSignature, symbol: str) -> Expr:
    """Return `int32_t symbol(void* tensor..., int64_t size..., int64_t begin, int64_t end)`."""
    return _Writer(schedule, Emitter(symbol)).function(signature)


@dataclass
class _Writer:
    schedule: Schedule
    e: Emitter
    tensors: list[_Tensor] = field(default_factory=list)
    sizes: dict[str, Expr] = field(default_factory=dict)
    bound: dict[Axis, _Bound] = field(default_factory=dict)
    # The reductions of the current row, the block they are known in, and what is kept of the row.
    results: dict[int, Expr] = field(default_factory=dict)
    row_level: int = 0
    kept: dict[int, Buffer] = field(default_factory=dict)
    running_pass: int = 0
    of_row: frozenset[int] = frozenset()

    def function(self, signature: RegionSignature) -> Expr:
        e = self.e
        for index, spec in enumerate((*signature.inputs, *signature.outputs)):
            buffer = e.pointer(f"p{index}", dtypes.memory_dtype(spec.dtype))
            self.tensors.append(_Tensor(buffer, spec.dtype))
        self.sizes = {name: e.size(f"size{i}") for i, name in enumerate(symbols_of(
            (*signature.inputs, *signature.outputs)))}  # fmt: skip
        begin, end = e.size("begin"), e.size("end")
        e.may_alias = bool(self.schedule.launch.inplace)
        self.of_row = _made_of_rows(self.schedule)
        if self.schedule.is_flat:
            self._flat(begin, end)
        else:
            self._units(begin, end)
        return e.function()

    # ---- loops

    def _flat(self, begin: Expr, end: Expr) -> None:
        """Run over a range of the one axis; the caller's ranges need not be whole vectors."""
        axis = self.schedule.vector
        assert axis is not None
        count = self.e.share(end - begin)
        whole = self.e.share(self.e.divide_down(count, VECTOR))
        with self.e.loop(whole) as index, self.e.vector(VECTOR) as lane:
            self._bind(axis, begin + index * self.e.i64(VECTOR) + lane)
            self._write_outputs()
        first = self.e.share(begin + whole * self.e.i64(VECTOR))
        with self.e.loop(end - first) as index:
            self._bind(axis, first + index)
            self._write_outputs()

    def _units(self, begin: Expr, end: Expr) -> None:
        units = self.schedule.units
        with self.e.loop(end - begin) as index:
            at = begin + index
            for place, axis in enumerate(units):
                inside = self._extent(product(a.extent for a in units[place + 1 :]))
                is_last = place == len(units) - 1
                position = at if is_last else self.e.share(self.e.divide_down(at, inside))
                self._bind(axis, self.e.share(position) if is_last else position)
                if not is_last:
                    at = self.e.share(at - position * inside)
            self._nest(self.schedule.inner, self._of_a_unit)

    def _of_a_unit(self) -> None:
        if not self.schedule.row:
            self._points()
        elif self.schedule.is_row_vector:
            self._rows()
        else:
            self._side_by_side()

    def _bind(self, axis: Axis, at: Expr, low: int = 0, high: int | None = None) -> None:
        self.bound[axis] = _Bound(at, self.e.level, low, high)

    def _points(self) -> None:
        """Pointwise: every point of the vector axis."""
        vector = self.schedule.vector
        if vector is None:
            self._write_outputs()
        else:
            self._every(vector, self._write_outputs)

    def _every(self, axis: Axis, body: Body) -> None:
        """Run `body` on every point of an axis, in vectors.

        The last vector ends where the axis ends, and so repeats some points of the one before;
        that is several times faster than one by one, and no output may overlap an input then.
        """
        if axis.extent.static is not None:
            for low, high in self._segments(axis):
                self._vectors(axis, low, high, body)
            return
        extent = self._extent(axis.extent)
        with self.e.block() as wide:
            self._chunks(axis, extent, VECTOR, body)
        with self.e.block() as narrow:
            self._one_by_one(axis, extent, body)
        self.e.branch(extent >= self.e.i64(VECTOR), wide, narrow)

    def _segments(self, axis: Axis) -> list[tuple[int, int]]:
        length = axis.extent.static
        assert length is not None
        ends = [*self.schedule.trace.breaks.get(axis, ()), length]
        return [(low, high) for low, high in zip([0, *ends], ends, strict=False) if high > low]

    def _vectors(self, axis: Axis, low: int, high: int, body: Body) -> None:
        """Run over low .. high - 1, known numbers."""
        width = min(VECTOR, 1 << ((high - low).bit_length() - 1))
        whole, rest = divmod(high - low, width)
        if width == 1:
            with self.e.loop(self.e.i64(whole)) as index:
                self._bind(axis, index + self.e.i64(low), low, high)
                body()
            return
        if whole:
            with self.e.loop(self.e.i64(whole)) as index, self.e.vector(width) as lane:
                at = index * self.e.i64(width) + self.e.i64(low) + lane
                self._bind(axis, at, low, high)
                body()
        if rest:
            with self.e.vector(width) as lane:
                self._bind(axis, self.e.i64(high - width) + lane, low, high)
                body()

    def _chunks(self, axis: Axis, extent: Expr, width: int, body: Body) -> None:
        e = self.e
        with e.loop(e.divide_up(extent, width)) as index:
            start = e.share(e.minimum(index * e.i64(width), extent - e.i64(width)))
            with e.vector(width) as lane:
                self._bind(axis, start + lane)
                body()

    def _one_by_one(self, axis: Axis, extent: Expr, body: Body) -> None:
        with self.e.loop(extent) as index:
            self._bind(axis, index)
            body()

    def _nest(self, axes: tuple[Axis, ...], body: Body) -> None:
        """Run `body` on every point of serial loops."""
        if not axes:
            body()
            return
        if axes[0].extent.static is None:
            with self.e.loop(self._extent(axes[0].extent)) as index:
                self._bind(axes[0], index)
                self._nest(axes[1:], body)
            return
        for low, high in self._segments(axes[0]):
            with self.e.loop(self.e.i64(high - low)) as index:
                self._bind(axes[0], index + self.e.i64(low), low, high)
                self._nest(axes[1:], body)

    # ---- rows in vectors

    def _rows(self) -> None:
        vector = self.schedule.vector
        assert vector is not None
        rows = product(axis.extent for axis in self.schedule.row)
        if rows.static is not None:
            with self._row_state(rows.static):
                self._row()
            return
        e = self.e
        length, count = self._extent(vector.extent), self._extent(rows)
        with e.block() as kept, self._row_state(KEPT_ROW if self.schedule.kept else 0):
            self._row()
        with e.block() as long, self._row_state(0):
            self._row()
        with e.block() as choice:
            e.branch(count <= e.i64(KEPT_ROW), kept, long)
        with e.block() as short, self._row_state(0):
            self._row(is_short=True)
        e.branch(length >= e.i64(VECTOR), choice if self.schedule.kept else long, short)

    @contextmanager
    def _row_state(self, keep: int) -> Iterator[None]:
        """Begin a row: in this block its reductions are known, and `keep` points of each value."""
        self.results, self.row_level, self.running_pass = {}, self.e.level, 0
        values = self.schedule.program.values
        self.kept = {
            number: self.e.local(keep, dtypes.compute_dtype(values[number].dtype))
            for number in (self.schedule.kept if keep else ())
        }
        yield
        self.results, self.kept = {}, {}

    def _row(self, *, is_short: bool = False) -> None:
        for number in self.schedule.reductions:
            self.results[number] = self._reduce_row(number, is_short=is_short)
            self.running_pass += 1
        axes, row = self.schedule.axes, set(self.schedule.row)
        whole = [i for i, o in enumerate(self.schedule.program.outputs) if row & set(axes.of(o))]
        single = [i for i in range(len(self.schedule.program.outputs)) if i not in whole]
        self._write(single)
        if not whole:
            return
        *outer, vector = self.schedule.row

        def points() -> None:
            if is_short:
                self._one_by_one(vector, self._extent(vector.extent), lambda: self._write(whole))
            elif vector.extent.static is not None:
                self._every(vector, lambda: self._write(whole))
            else:
                self._chunks(
                    vector, self._extent(vector.extent), VECTOR, lambda: self._write(whole)
                )

        self._nest(tuple(outer), points)

    def _reduce_row(self, number: int, *, is_short: bool) -> Expr:
        """Return the reduction of the current row: accumulators side by side, then in halves."""
        e, (*outer, vector) = self.e, self.schedule.row
        node, dtype = self._reduction(number)
        kind = REDUCTIONS[node.kind]
        length = vector.extent.static
        shortest = min((h - low for low, h in self._segments(vector)), default=0) if length else 0
        width = VECTOR if length is None else min(VECTOR, 1 << max(0, shortest.bit_length() - 1))
        width = 1 if is_short else max(1, width)
        count = _ACCUMULATORS if length is None or shortest >= width * _ACCUMULATORS else 1
        count = 1 if is_short else count
        total = e.local(width * count, dtype)
        identity = kind.identity(e, dtype)
        self._fill(total, width * count, identity)

        def take(lane: Expr, keep: Expr | None) -> None:
            value = self._value(node.x, HERE)
            if keep is not None:
                value = e.select(keep, value, identity)
            e.store(total, kind.step(e, total[lane], value), lane)

        def points() -> None:
            if length is None:
                self._reduce_range(vector, 0, self._extent(vector.extent), width, count, take)
                return
            for low, high in self._segments(vector):
                self._reduce_range(vector, low, high, width, count, take)

        self._nest(tuple(outer), points)
        return e.share(halve(e, total, width * count, lambda a, b: kind.step(e, a, b)))

    def _reduce_range(
        self,
        axis: Axis,
        low: int,
        high: int | Expr,
        width: int,
        count: int,
        take: Callable[[Expr, Expr | None], None],
    ) -> None:
        """Hand every point of low .. high - 1 to `take`, with the accumulator it belongs to."""
        e = self.e
        is_known = isinstance(high, int)
        top = e.i64(high) if isinstance(high, int) else high
        length = e.i64(high - low) if isinstance(high, int) else e.share(top - e.i64(low))
        edge = (low, high if isinstance(high, int) else None)
        if width == 1:
            with e.loop(length) as index:
                self._bind(axis, index + e.i64(low), *edge)
                take(e.i64(0), None)
            return
        wide = width * count
        whole = e.i64((high - low) // wide) if isinstance(high, int) else e.share(
            e.divide_down(length, wide))  # fmt: skip
        if not isinstance(high, int) or high - low >= wide:
            with e.loop(whole) as index, e.unrolled(count) as part, e.vector(width) as lane:
                lane = part * e.i64(width) + lane
                self._bind(axis, index * e.i64(wide) + e.i64(low) + lane, *edge)
                take(lane, None)
        done = (high - low) // wide * wide if isinstance(high, int) else None
        if count > 1 and (done is None or high - low - done >= width):
            start = e.i64(low + done) if done is not None else e.share(whole * e.i64(wide) + low)
            more = (
                e.i64((high - low - done) // width)
                if done is not None
                else e.divide_down(length - whole * e.i64(wide), width)
            )
            with e.loop(more) as index, e.vector(width) as lane:
                self._bind(axis, index * e.i64(width) + start + lane, *edge)
                take(lane, None)
        if is_known and (high - low) % width == 0:
            return
        # The last vector ends where the row ends; its first lanes were taken already.
        rest = (
            e.i64((high - low) % width)
            if isinstance(high, int)
            else e.share(length - e.divide_down(length, width) * e.i64(width))
        )
        with e.vector(width) as lane:
            self._bind(axis, top - e.i64(width) + lane, *edge)
            take(lane, lane >= e.i64(width) - rest)

    def _fill(self, buffer: Buffer, count: int, value: Expr) -> None:
        width = min(count, VECTOR)
        with self.e.unrolled(count // width) as part:
            if width == 1:
                self.e.store(buffer, value, part)
                return
            with self.e.vector(width) as lane:
                self.e.store(buffer, value, part * self.e.i64(width) + lane)

    def _reduction(self, number: int) -> tuple[Reduce, str]:
        value = self.schedule.program.values[number]
        assert isinstance(value.node, Reduce)
        return value.node, dtypes.compute_dtype(value.dtype)

    # ---- rows side by side

    def _side_by_side(self) -> None:
        """A vector of rows at once: each reduction is a loop inside of the lanes."""
        vector = self.schedule.vector
        if vector is None or vector in self.schedule.row:
            raise InternalError("rows side by side without an axis across them")
        self._every(vector, self._lanes_of_rows)

    def _lanes_of_rows(self) -> None:
        e = self.e
        self.results, self.row_level = {}, e.level
        for number in self.schedule.reductions:
            node, dtype = self._reduction(number)
            kind = REDUCTIONS[node.kind]
            total, lane = e.variable(dtype)
            e.store(total, kind.identity(e, dtype), lane)

            def take(kind=kind, total=total, lane=lane, x=node.x) -> None:  # type: ignore[no-untyped-def]
                e.store(total, kind.step(e, total[lane], self._value(x, HERE)), lane)

            self._nest(self.schedule.row, take)
            self.results[number] = total[lane]
        axes, row = self.schedule.axes, set(self.schedule.row)
        outputs = self.schedule.program.outputs
        whole = [i for i, output in enumerate(outputs) if row & set(axes.of(output))]
        self._write([i for i in range(len(outputs)) if i not in whole])
        if whole:
            self._nest(self.schedule.row, lambda: self._write(whole))
        self.results = {}

    # ---- values

    def _write_outputs(self) -> None:
        self._write(range(len(self.schedule.program.outputs)))

    def _write(self, places: list[int] | range) -> None:
        """Store outputs at the current point: all are computed before the first is stored."""
        e, program = self.e, self.schedule.program
        values = []
        for place in places:
            tensor = self.tensors[program.inputs + place]
            value = dtypes.store_value(e, self._value(program.outputs[place], HERE), tensor.dtype)
            values.append((tensor, e.share(value), program.outputs[place]))
        for tensor, value, number in values:
            e.store(tensor.buffer, value, self._offset(number, HERE))

    def _value(self, number: int, where: Where) -> Expr:
        """Return a value at the loops' position, computed in the outermost block that can."""
        schedule, e = self.schedule, self.e
        node = schedule.program.values[number].node
        dtype = schedule.program.values[number].dtype
        match node:
            case Constant(value=value):
                return dtypes.constant(e, value, dtype)
            case Size(extent=extent):
                return e.cast(self._extent(extent), dtypes.compute_dtype(dtype))
            case Broadcast(x=x) | Transpose(x=x) | Reshape(x=x):
                return self._value(x, where)
            case Slice(x=x):
                return self._value(x, slice_where(schedule.axes, number, node, where))
            case Concat():
                return self._part(number, node, where)
            case Reduce():
                return self.results[number]
        key = (number, key_of(schedule.axes, number, where))
        with e.at(self._level(number, where)):
            if key not in e.known:
                e.known[key] = self._compute(number, where)
            return e.known[key]

    def _compute(self, number: int, where: Where) -> Expr:
        e, value = self.e, self.schedule.program.values[number]
        is_plain = all(index is None for index in key_of(self.schedule.axes, number, where))
        kept = self.kept.get(number) if is_plain else None
        if kept is not None and self.running_pass > self.schedule.kept[number]:
            return e.share(kept[self._row_offset()])
        match value.node:
            case Input(index=index):
                tensor = self.tensors[index]
                raw = tensor.buffer[self._offset(number, where)]
                result = e.share(dtypes.load(e, raw, tensor.dtype))
            case Point(operands=operands, attributes=attributes, op=op):
                inputs = [None if x is None else self._value(x, where) for x in operands]
                result = e.share(op.write(e, attributes, inputs))
            case Position(dim=dim):
                result = e.share(
                    self._position(linear(where, self.schedule.axes.dims[number][dim]))
                )
            case _:
                raise InternalError(f"no code for {value.node}")
        if kept is not None and self.running_pass == self.schedule.kept[number]:
            e.store(kept, result, self._row_offset())
        return result

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
                return self._value(
                    part, part_where(schedule.axes, node, part, index, first, where)
                )
        raise InternalError("a Concat in a loop over two of its parts")

    def _level(self, number: int, where: Where) -> int:
        loops = (
            self.bound[loop].level
            for axis in self.schedule.axes.of(number)
            for loop, _ in index_of(where, axis).terms
        )
        base = self.row_level if number in self.of_row else 0
        return max(loops, default=base) if not base else max([base, *loops])

    # ---- places

    def _offset(self, number: int, where: Where) -> Expr:
        """Return the element's place in its tensor, which is dense."""
        owned = self.schedule.axes.of(number)
        offset = self.e.i64(0)
        for place, axis in enumerate(owned):
            stride = product(inner.extent for inner in owned[place + 1 :])
            index = self._position(index_of(where, axis))
            offset = offset + (index if stride.static == 1 else index * self._extent(stride))
        return offset

    def _row_offset(self) -> Expr:
        offset = self.e.i64(0)
        for place, axis in enumerate(self.schedule.row):
            stride = product(inner.extent for inner in self.schedule.row[place + 1 :])
            at = self.bound[axis].at
            offset = offset + (at if stride.static == 1 else at * self._extent(stride))
        return offset

    def _position(self, index: Index) -> Expr:
        at = self.e.i64(index.offset)
        for axis, factor in index.terms:
            loop = self.bound[axis].at
            at = at + (loop if factor == 1 else loop * self.e.i64(factor))
        return at

    def _extent(self, extent: Extent) -> Expr:
        result = self.e.i64(extent.factor)
        for symbol in extent.symbols:
            result = result * self.sizes[symbol]
        return result


def _made_of_rows(schedule: Schedule) -> frozenset[int]:
    """Return the values that reductions are part of."""
    found: set[int] = set()
    for number, value in enumerate(schedule.program.values):
        is_reduction = isinstance(value.node, Reduce)
        if is_reduction or any(x in found for x in operands_of(value.node)):
            found.add(number)
    return frozenset(found)

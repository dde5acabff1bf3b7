"""One output row of a depthwise convolution, over some of its channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.region.dtypes import load, store_value

from ..gemm.bf16_emitter import Bf16Emitter
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr
    from ortkit.operators.window import Window

    from ...forms.epilogue import Epilogue
    from ..tile.emitter import TileEmitter

# Pixels of a row that are computed together: enough to hide the latency of a multiply-add.
TILE = 8
# Sums that a mean is made of, which do not wait for each other.
_SUMS = 4


@dataclass(frozen=True)
class Filter:
    """What is applied to every row.

    Args:
        window: How the filter moves.
        width: Of an input row.
        columns: Of an output row.
        channels: Of an output pixel; also what lies between the weights of two taps.
        weight: float32 [kh, kw, 1, channels].
        bias: float32 [channels] or None.
        epilogue: Of each result.
        extras: Its further operands.
        tile: Pixels of a row that are computed together, at most.
    """

    window: Window
    width: int
    columns: int
    channels: int
    weight: Buffer
    bias: Buffer | None
    epilogue: Epilogue
    extras: tuple[Buffer, ...]
    tile: int = TILE


@dataclass(frozen=True)
class Source:
    """Where the input is.

    Args:
        buffer: Of NHWC pixels.
        pitch: From a pixel to the next one in its row.
        row: From the number of a row of taps to the place of the row's first pixel.
        taps: The first row of taps inside of the input, and the one after the last.
        dtype: Of the pixels.
    """

    buffer: Buffer
    pitch: int
    row: Callable[[Expr], Expr]
    taps: tuple[Expr, Expr]
    dtype: str = "float32"


@dataclass(frozen=True)
class Sink:
    """Where results go.

    Args:
        output: Of NHWC pixels.
        row: The place of the row's first pixel.
        first: The first channel computed.
        count: How many channels are computed.
        means: Gets the means of the row, and where; None if they are not wanted.
        dtype: Of the pixels; float32 if there are means.
    """

    output: Buffer
    row: Expr
    first: Expr
    count: int
    means: tuple[Buffer, Expr] | None
    dtype: str = "float32"


def row_taps(e: TileEmitter, window: Window, top: Expr, height: Expr) -> tuple[Expr, Expr]:
    """Return the first row of taps inside of an input of `height`, and the one after the last."""
    dilation, zero, taps = window.dilations[0], e.i64(0), e.i64(window.kernel[0])
    skip = e.tir.floordiv(e.i64(dilation - 1) - top, e.i64(dilation))
    stop = e.tir.floordiv(height - top + e.i64(dilation - 1), e.i64(dilation))
    first = e.share(e.minimum(e.tir.max(zero, skip), taps))
    return first, e.share(e.tir.max(first, e.minimum(taps, stop)))


@dataclass(frozen=True)
class Row:
    """One row in the making."""

    e: TileEmitter
    filter: Filter
    source: Source
    sink: Sink

    def emit(self) -> None:
        """Write the row, and its means if they are wanted."""
        e, filter_ = self.e, self.filter
        columns = plan_columns(filter_.window, filter_.width, filter_.columns, filter_.tile)
        if columns.inner is not None:
            with e.loop(e.i64(columns.inner[1])) as number:
                column = e.share(e.i64(columns.inner[0]) + number * e.i64(columns.width))
                self._tile(column, columns.width, None)
        for start, count in columns.edges:
            self._tile(e.i64(start), count, start)
        if self.sink.means is not None:
            e.each_block(self.sink.count, self._means)

    def _tile(self, column: Expr, count: int, static: int | None) -> None:
        """Compute `count` columns from `column` on, without the taps outside if it is `static`."""
        self.e.each_block(
            self.sink.count, lambda at, lanes: self._block(column, count, static, at, lanes)
        )

    def _block(self, column: Expr, count: int, static: int | None, at: Expr, lanes: int) -> None:
        e, filter_ = self.e, self.filter
        channel = e.share(self.sink.first + at)
        registers = [e.scratch() for _ in range(count)]
        for register in registers:
            with e.lanes(lanes) as lane:
                bias = e.f32(0.0) if filter_.bias is None else filter_.bias[channel + lane]
                e.store(register, bias, lane)
        first, last = self.source.taps
        with e.loop(last - first) as number:
            tap = e.share(first + number)
            self._tap_row(registers, tap, (column, static, at, channel), lanes)
        scratch = e.scratch(count * VECTOR)
        for number, register in enumerate(registers):
            with e.lanes(lanes) as lane:
                e.store(scratch, register[lane], e.i64(number * VECTOR) + lane)
        with e.loop(e.i64(count)) as number:
            pixel = (column + number) * e.i64(filter_.channels)
            offset = e.share(self.sink.row + pixel + channel)
            values = e.scratch() if self._rounds_vectors(lanes) else None
            with e.lanes(lanes) as lane:
                result = scratch[number * e.i64(VECTOR) + lane]
                extras = [extra[offset + lane] for extra in filter_.extras]
                value = filter_.epilogue.write(e, result, extras)
                if values is None:
                    stored = store_value(e, value, self.sink.dtype)
                    e.store(self.sink.output, stored, offset + lane)
                else:
                    e.store(values, value, lane)
            if values is not None:
                assert isinstance(e, Bf16Emitter)
                e.put(self.sink.output, offset, e.rounded_one(e.row(values, 0, VECTOR)), VECTOR)

    def _rounds_vectors(self, lanes: int) -> bool:
        """Say whether results are rounded by an instruction."""
        is_narrow = self.sink.dtype == "bfloat16"
        return is_narrow and lanes == VECTOR and isinstance(self.e, Bf16Emitter)

    def _tap_row(
        self,
        registers: list[Buffer],
        tap: Expr,
        position: tuple[Expr, int | None, Expr, Expr],
        lanes: int,
    ) -> None:
        """Add the taps of one row of the filter; each input vector is loaded once."""
        e, filter_, pitch = self.e, self.filter, self.source.pitch
        column, static, at, channel = position
        window = filter_.window
        taps, stride, step = window.kernel[1], window.strides[1], window.dilations[1]
        weights = []
        for number in range(taps):
            weight = e.scratch()
            first = (tap * e.i64(taps) + e.i64(number)) * e.i64(filter_.channels) + channel
            with e.lanes(lanes) as lane:
                e.store(weight, filter_.weight[first + lane], lane)
            weights.append(weight)
        row = e.share(self.source.row(tap) + at)
        reads: dict[int, list[tuple[int, int]]] = {}
        for number in range(len(registers)):
            for each in range(taps):
                offset = number * stride + each * step - window.pads[1]
                reads.setdefault(offset, []).append((number, each))
        for offset in sorted(reads):
            if static is not None and not 0 <= static * stride + offset < filter_.width:
                continue
            value = e.scratch()
            first = e.share(row + (column * e.i64(stride) + e.i64(offset)) * e.i64(pitch))
            with e.lanes(lanes) as lane:
                raw = self.source.buffer[first + lane]
                e.store(value, load(e, raw, self.source.dtype), lane)
            for number, each in reads[offset]:
                register = registers[number]
                with e.lanes(lanes) as lane:
                    total = register[lane] + value[lane] * weights[each][lane]
                    e.store(register, total, lane)

    def _means(self, at: Expr, lanes: int) -> None:
        """Write the mean over the columns of the row that was just written."""
        e, columns = self.e, self.filter.columns
        assert self.sink.means is not None
        to, sink = self.sink.means
        channel = e.share(self.sink.first + at)
        ways = _SUMS if columns >= 2 * _SUMS else 1
        totals = [e.scratch() for _ in range(ways)]
        for total in totals:
            with e.lanes(lanes) as lane:
                e.store(total, e.f32(0.0), lane)

        def add(total: Buffer, column: Expr) -> None:
            start = e.share(self.sink.row + column * e.i64(self.filter.channels) + channel)
            with e.lanes(lanes) as lane:
                e.store(total, total[lane] + self.sink.output[start + lane], lane)

        with e.loop(e.i64(columns // ways)) as group:
            for number, total in enumerate(totals):
                add(total, group * e.i64(ways) + e.i64(number))
        for column in range(columns // ways * ways, columns):
            add(totals[0], e.i64(column))
        for total in totals[1:]:
            with e.lanes(lanes) as lane:
                e.store(totals[0], totals[0][lane] + total[lane], lane)
        with e.lanes(lanes) as lane:
            e.store(to, totals[0][lane] * e.f32(1.0 / columns), sink + channel + lane)


@dataclass(frozen=True)
class Columns:
    """The columns of an output row as tiles of `width`, and those where the filter is cut off.

    Args:
        width: Of an inner tile.
        inner: (first column, number of tiles) where no tap is outside, None if there are none.
        edges: (first column, columns) of the other tiles.
    """

    width: int
    inner: tuple[int, int] | None
    edges: tuple[tuple[int, int], ...]


def plan_columns(window: Window, width: int, columns: int, tile: int = TILE) -> Columns:
    """Cut a row of `columns` results, of inputs of `width`, into tiles of up to `tile`."""
    size = ceil(columns / ceil(columns / tile)) if columns else 1
    reach = (window.kernel[1] - 1) * window.dilations[1]
    starts = [(start, min(size, columns - start)) for start in range(0, columns, size)]

    def is_inner(start: int, count: int) -> bool:
        low = start * window.strides[1] - window.pads[1]
        high = (start + count - 1) * window.strides[1] - window.pads[1] + reach
        return count == size and low >= 0 and high < width

    inner = [start for start, count in starts if is_inner(start, count)]
    edges = tuple(each for each in starts if not is_inner(*each))
    return Columns(size, (inner[0], len(inner)) if inner else None, edges)

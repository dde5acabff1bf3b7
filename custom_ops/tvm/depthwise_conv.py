"""Depthwise convolutions of NHWC tensors: vectors of channels, with bias, epilogue, row means."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch, Refused
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, product

from .body import integer
from .convolution import Convolution, read_convolution
from .registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .emitter import TileEmitter

# Pixels of a row that are computed together: enough to hide the latency of a multiply-add.
_TILE = 8
# Sums that a mean is made of, which do not wait for each other.
_SUMS = 4
_PICOSECONDS_PER_MULTIPLY = 25
_PICOSECONDS_PER_FLOP = 31


@dataclass(frozen=True)
class _Columns:
    """The columns of an output row as tiles of `width`, and those where the filter is cut off.

    Args:
        width: Of an inner tile.
        inner: (first column, number of tiles) where no tap is outside, None if there are none.
        edges: (first column, columns) of the other tiles.
    """

    width: int
    inner: tuple[int, int] | None
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DepthwiseConv:
    """One filter for each channel.

    Args:
        conv: NHWC, as many groups as channels in and out.
        weight: The input float32 [kh, kw, 1, C].
        means: Whether a second output has the means of the result's rows, [N, OH, C].
    """

    conv: Convolution
    weight: int
    means: bool

    @property
    def _sizes(self) -> tuple[int, int]:
        width, columns = self.conv.input.shape[2], self.conv.output.shape[2]
        assert isinstance(width, int)
        assert isinstance(columns, int)
        return width, columns

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, *_ = self.conv.output.shape
        points = product(extent_of(size) for size in self.conv.output.shape[2:])
        taps = self.conv.window.kernel[0] * self.conv.window.kernel[1]
        cost = taps * _PICOSECONDS_PER_MULTIPLY
        cost += self.conv.epilogue.flops * _PICOSECONDS_PER_FLOP
        return Launch((extent_of(batch), extent_of(height)), points, cost, ())

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        del level
        from .emitter import TileEmitter

        e = TileEmitter(symbol)
        buffers, begin, end = e.parameters(self.conv.signature)
        height = e.extent(self.conv.input.shape[1])
        width, columns = self._sizes
        window, channels = self.conv.window, self.conv.channels
        units = (extent_of(self.conv.output.shape[0]), extent_of(self.conv.output.shape[1]))
        with e.loop(end - begin) as index:
            image, row = e.decode(begin + index, units)
            top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
            source = e.share((image * height + top) * e.i64(width * channels))
            sink = e.share((begin + index) * e.i64(columns * channels))
            first, last = self._taps(e, top, height)
            tile = _Tile(self, e, buffers, source, sink, first, last)
            plan = plan_columns(self.conv, width, columns)
            if plan.inner is not None:
                with e.loop(e.i64(plan.inner[1])) as number:
                    column = e.share(e.i64(plan.inner[0]) + number * e.i64(plan.width))
                    tile.emit(column, plan.width, None)
            for start, count in plan.edges:
                tile.emit(e.i64(start), count, start)
            if self.means:
                output = len(self.conv.signature.inputs)
                to = e.share((begin + index) * e.i64(channels))
                _means(e, buffers[output], buffers[output + 1], (sink, to), columns, channels)
        return e.function()

    def _taps(self, e: TileEmitter, top: Expr, height: Expr) -> tuple[Expr, Expr]:
        """Return the first tap row inside the input and the one after the last."""
        dilation, zero = self.conv.window.dilations[0], e.i64(0)
        taps = e.i64(self.conv.window.kernel[0])
        skip = e.tir.floordiv(e.i64(dilation - 1) - top, e.i64(dilation))
        stop = e.tir.floordiv(height - top + e.i64(dilation - 1), e.i64(dilation))
        first = e.share(e.minimum(e.tir.max(zero, skip), taps))
        return first, e.share(e.tir.max(first, e.minimum(taps, stop)))


@dataclass(frozen=True)
class _Tile:
    """Some columns of one output row, over all channels."""

    op: DepthwiseConv
    e: TileEmitter
    buffers: list[Buffer]
    source: Expr
    sink: Expr
    first: Expr
    last: Expr

    def emit(self, column: Expr, count: int, static: int | None) -> None:
        """Compute `count` columns from `column` on, without the taps outside if it is `static`."""

        def block(channel: Expr, lanes: int) -> None:
            self._block(column, count, static, channel, lanes)

        self.e.each_block(self.op.conv.channels, block)

    def _block(
        self, column: Expr, count: int, static: int | None, channel: Expr, lanes: int
    ) -> None:
        e, conv, channels = self.e, self.op.conv, self.op.conv.channels
        registers = [e.scratch() for _ in range(count)]
        for register in registers:
            with e.lanes(lanes) as lane:
                bias = e.f32(0.0) if conv.bias is None else self.buffers[conv.bias][channel + lane]
                e.store(register, bias, lane)
        with e.loop(self.last - self.first) as tap:
            self._tap_row(registers, e.share(self.first + tap), (column, static, channel), lanes)
        scratch = e.scratch(count * VECTOR)
        for number, register in enumerate(registers):
            with e.lanes(lanes) as lane:
                e.store(scratch, register[lane], e.i64(number * VECTOR) + lane)
        output = self.buffers[len(conv.signature.inputs)]
        extras = [self.buffers[extra] for extra in conv.epilogue.extras]
        with e.loop(e.i64(count)) as number:
            at = e.share(self.sink + (column + number) * e.i64(channels) + channel)
            with e.lanes(lanes) as lane:
                result = scratch[number * e.i64(VECTOR) + lane]
                values = [extra[at + lane] for extra in extras]
                e.store(output, conv.epilogue.write(e, result, values), at + lane)

    def _tap_row(
        self, registers: list[Buffer], tap: Expr, place: tuple[Expr, int | None, Expr], lanes: int
    ) -> None:
        """Add the taps of one row of the filter; each input vector is loaded once."""
        e, conv = self.e, self.op.conv
        column, static, channel = place
        (_, taps), (_, stride), (dilation, step) = (
            conv.window.kernel, conv.window.strides, conv.window.dilations,
        )  # fmt: skip
        width, channels = self.op._sizes[0], conv.channels
        weights = []
        for number in range(taps):
            weight = e.scratch()
            with e.lanes(lanes) as lane:
                at = (tap * e.i64(taps) + e.i64(number)) * e.i64(channels) + channel + lane
                e.store(weight, self.buffers[self.op.weight][at], lane)
            weights.append(weight)
        row = e.share(self.source + tap * e.i64(dilation * width * channels) + channel)
        left = conv.window.pads[1]
        reads: dict[int, list[tuple[int, int]]] = {}
        for number in range(len(registers)):
            for each in range(taps):
                reads.setdefault(number * stride + each * step - left, []).append((number, each))
        for offset in sorted(reads):
            if static is not None and not 0 <= static * stride + offset < width:
                continue
            value = e.scratch()
            at = e.share(row + (column * e.i64(stride) + e.i64(offset)) * e.i64(channels))
            with e.lanes(lanes) as lane:
                e.store(value, self.buffers[conv.x][at + lane], lane)
            for number, each in reads[offset]:
                register = registers[number]
                with e.lanes(lanes) as lane:
                    total = register[lane] + value[lane] * weights[each][lane]
                    e.store(register, total, lane)


def plan_columns(conv: Convolution, width: int, columns: int) -> _Columns:
    """Cut a row of `columns` results, of inputs of `width`, into tiles."""
    size = ceil(columns / ceil(columns / _TILE)) if columns else 1
    window = conv.window
    reach = (window.kernel[1] - 1) * window.dilations[1]
    starts = [(start, min(size, columns - start)) for start in range(0, columns, size)]

    def is_inner(start: int, count: int) -> bool:
        low = start * window.strides[1] - window.pads[1]
        high = (start + count - 1) * window.strides[1] - window.pads[1] + reach
        return count == size and low >= 0 and high < width

    inner = [start for start, count in starts if is_inner(start, count)]
    edges = tuple(each for each in starts if not is_inner(*each))
    return _Columns(size, (inner[0], len(inner)) if inner else None, edges)


def _means(
    e: TileEmitter, source: Buffer, to: Buffer, at: tuple[Expr, Expr], columns: int, channels: int
) -> None:
    """Write the mean over the columns of a row that was just written."""
    row, sink = at
    ways = _SUMS if columns >= 2 * _SUMS else 1

    def block(channel: Expr, lanes: int) -> None:
        totals = [e.scratch() for _ in range(ways)]
        for total in totals:
            with e.lanes(lanes) as lane:
                e.store(total, e.f32(0.0), lane)

        def add(total: Buffer, column: Expr) -> None:
            start = e.share(row + column * e.i64(channels) + channel)
            with e.lanes(lanes) as lane:
                e.store(total, total[lane] + source[start + lane], lane)

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

    e.each_block(channels, block)


def match(signature: RegionSignature) -> DepthwiseConv | Refused | None:
    """Return the region as a depthwise convolution; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    channels = conv.channels
    if conv.planar or conv.groups == 1 or conv.groups != conv.input.shape[3]:
        return None
    if conv.gate is not None:
        return Refused("a depthwise convolution of gated values")
    if channels != conv.groups:
        return Refused("a depthwise convolution with several filters for a channel")
    weight = conv.body.input_behind(conv.weight_value, (3, 2, 0, 1))
    if weight is None or signature.inputs[weight].shape != (*conv.window.kernel, 1, channels):
        return Refused("a depthwise weight that is not [kh, kw, 1, C]")
    if not all(isinstance(shape[2], int) for shape in (conv.input.shape, conv.output.shape)):
        return Refused("a depthwise convolution over rows of a width that is not known")
    if 0 in conv.output.shape:
        return Refused("an empty result")
    means = len(signature.outputs) == 2
    if len(signature.outputs) > 1 and not (means and _has_means(conv)):
        return Refused("a depthwise convolution with a second result that is not its rows' means")
    return DepthwiseConv(conv, weight, means)


def _has_means(conv: Convolution) -> bool:
    """Say whether the second output is Transpose(ReduceMean(result over W)), [N, OH, C]."""
    body = conv.body
    source = body.transposed(body.function.output[1], (0, 2, 1))
    node = None if source is None else body.producer(source, "ReduceMean")
    if node is None or node.input[0] != conv.result:
        return False
    return body.axes(node) == (3,) and integer(node, "keepdims", 1) == 0

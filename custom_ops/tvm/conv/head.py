"""Convolutions of NHWC tensors to few channels, with bias and epilogue: the last of a net.

Vectors are of input channels: of 16 lanes of output channels most would be empty. Sums of 16 lanes
are added up when a tile is done. Results of neighbouring pixels are next to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import as_image
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, known, product
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.emitter import parts
from ..tile.program import ConvKernel
from ..tile.registers import REGISTERS, VECTOR
from .depthwise_row import plan_columns, row_taps
from .direct import runtime_ns
from .rates import OUTPUT_NS

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Of more the vectors of other kernels are a third full, and sums are added up as often.
_MOST_COLUMNS = 4
# Of fewer the vectors of this one are partly empty.
_LEAST_DEPTH = 16
# Sums of a tile, which become one vector of results, and those that are in registers at once.
_GROUP, _MOST_SUMS = 16, 24
_PICOSECONDS_PER_MULTIPLY = 16
# See `rates`: of a multiply-add, and what adding up takes for each result. 32 channels to 3 of
# 256 x 256 take 2.0 ms where 16 lanes of output channels take 4.4 (Emerald Rapids, 2026-11).
_OURS_NS, _SUM_NS = 1 / 45, 0.6


@dataclass(frozen=True)
class HeadConv(ConvKernel):
    """A convolution to few channels: one group; sizes of rows are known.

    Its weight is float32 [M, kh, kw, C].
    """

    @property
    def _widths(self) -> tuple[int, int]:
        """The width of an input row, and of a row of the result."""
        width, columns = known((self.conv.input.shape[2], self.conv.output.shape[2]))
        return width, columns

    def tile(self, level: str) -> int:
        """Return the pixels of a tile: one sum of each of their results fits into registers."""
        file = REGISTERS[level]
        registers = file.count * file.lanes // VECTOR - self.conv.channels - 1
        return max(1, min(registers, _MOST_SUMS) // self.conv.channels)

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, *row = self.conv.output.shape
        steps = self.conv.window.taps * self.conv.depth
        cost = steps * _PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        points = product(map(extent_of, row))
        return Launch((extent_of(batch), extent_of(height)), points, cost, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a row of the result."""
        (unit, image, row), conv = at, self.conv
        width, columns = self._widths
        height = e.extent(conv.input.shape[1])
        top = e.share(row * e.i64(conv.window.strides[0]) - e.i64(conv.window.pads[0]))
        taps = row_taps(e, conv.window, top, height)
        source = e.share((image * height + top) * e.i64(width * conv.depth))
        sink = e.share(unit * e.i64(columns * conv.channels))
        plan = plan_columns(conv.window, width, columns, self.tile(e.processor))
        gate = None
        if conv.gate is not None:
            gate = buffers[conv.gate], e.share(image * e.i64(conv.depth))
        work = _Row(self, e, buffers, taps, source, sink, gate)
        if plan.inner is not None:
            with e.loop(e.i64(plan.inner[1])) as number:
                column = e.share(e.i64(plan.inner[0]) + number * e.i64(plan.width))
                work.tile(column, plan.width, None)
        for start, count in plan.edges:
            work.tile(e.i64(start), count, start)


@dataclass(frozen=True)
class _Row:
    """One row of the result in the making.

    Args:
        op: The kernel.
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        taps: The first row of taps inside of the input, and the one after the last.
        source: The place of the input row under the first row of taps.
        sink: The place of the row's first result.
        gate: Factors of the input's channels, and where those of the image begin.
    """

    op: HeadConv
    e: TileEmitter
    buffers: list[Buffer]
    taps: tuple[Expr, Expr]
    source: Expr
    sink: Expr
    gate: tuple[Buffer, Expr] | None

    def tile(self, column: Expr, count: int, static: int | None) -> None:
        """Compute `count` pixels from `column` on, without taps outside if it is `static`."""
        e, conv = self.e, self.op.conv
        sums = [e.scratch() for _ in range(count * conv.channels)]
        for total in sums:
            with e.vector(VECTOR) as lane:
                e.store(total, e.f32(0.0), lane)
        first, last = self.taps
        with e.loop(last - first) as number:
            tap = e.share(first + number)
            for each in range(conv.window.kernel[1]):
                self._taps(sums, (tap, each), column, self._inside(each, count, static))
        self._finish(sums, column)

    def _taps(
        self, sums: list[Buffer], tap: tuple[Expr, int], column: Expr, pixels: Sequence[int]
    ) -> None:
        """Add a tap to the sums of some pixels."""

        def step(at: Expr, lanes: int) -> None:
            self._step(sums, tap, column, pixels, (at, lanes))

        if pixels:
            self.e.each_block(self.op.conv.depth, step)

    def _inside(self, tap: int, count: int, static: int | None) -> list[int]:
        """Return the pixels of a tile for which a tap of a row is inside of the input."""
        window, width = self.op.conv.window, self.op._widths[0]
        if static is None:
            return [*range(count)]
        start = static * window.strides[1] + tap * window.dilations[1] - window.pads[1]
        return [n for n in range(count) if 0 <= start + n * window.strides[1] < width]

    def _step(
        self,
        sums: list[Buffer],
        tap: tuple[Expr, int],
        column: Expr,
        pixels: Sequence[int],
        block: tuple[Expr, int],
    ) -> None:
        """Add a tap of some input channels to the sums of some pixels."""
        e, conv, (at, lanes) = self.e, self.op.conv, block
        window, depth, columns = conv.window, conv.depth, conv.channels
        x, weight = self.buffers[conv.x], self.buffers[self.op.weight]
        step = e.share((tap[0] * e.i64(window.kernel[1]) + e.i64(tap[1])) * e.i64(depth) + at)
        factors = []
        for number in range(columns):
            factor = e.scratch()
            with e.lanes(lanes) as lane:
                value = weight[step + e.i64(number * window.taps * depth) + lane]
                if self.gate is not None:
                    value = value * self.gate[0][self.gate[1] + at + lane]
                e.store(factor, value, lane)
            factors.append(factor)
        down = tap[0] * e.i64(window.dilations[0] * self.op._widths[0] * depth)
        ahead = e.i64(tap[1] * window.dilations[1] - window.pads[1])
        row = e.share(
            self.source + down + (column * e.i64(window.strides[1]) + ahead) * e.i64(depth) + at
        )
        for pixel in pixels:
            value = e.scratch()
            with e.lanes(lanes) as lane:
                e.store(value, x[row + e.i64(pixel * window.strides[1] * depth) + lane], lane)
            for number, factor in enumerate(factors):
                total = sums[pixel * columns + number]
                with e.lanes(lanes) as lane:
                    e.store(total, total[lane] + value[lane] * factor[lane], lane)

    def _finish(self, sums: list[Buffer], column: Expr) -> None:
        """Add up the lanes of each sum, then bias and epilogue; write the results."""
        e, conv = self.e, self.op.conv
        results, biases = e.scratch(2 * _GROUP), e.scratch(2 * _GROUP)
        for start in range(0, len(sums), _GROUP):
            rows = [e.row(total, 0, VECTOR) for total in sums[start : start + _GROUP]]
            e.store_row(results, added_up(e, rows), start, VECTOR)
        for number in range(len(sums)):
            bias = e.f32(0.0)
            if conv.bias is not None:
                bias = self.buffers[conv.bias][e.i64(number % conv.channels)]
            e.store(biases, bias, e.i64(number))
        output = self.buffers[len(conv.signature.inputs)]
        sink = e.share(self.sink + column * e.i64(conv.channels))
        whole = [(at, VECTOR) for at in range(0, len(sums) - VECTOR + 1, VECTOR)]
        done = len(whole) * VECTOR
        for at, lanes in (*whole, *((done + at, n) for at, n in parts(len(sums) - done))):
            offset = e.share(sink + e.i64(at))
            with e.lanes(lanes) as lane:
                place = e.i64(at) + lane
                extras = [self.buffers[n][offset + lane] for n in conv.epilogue.extras]
                value = conv.epilogue.write(e, results[place] + biases[place], extras)
                e.store(output, value, offset + lane)


def added_up(e: TileEmitter, rows: Sequence[Expr]) -> Expr:
    """Return the sums of the lanes of up to 16 vectors as one vector, in their order.

    Each round adds neighbouring lanes of two vectors: the result has half of its lanes of each.
    Lanes that are left over repeat others.
    """
    even, odd = range(0, 2 * VECTOR, 2), range(1, 2 * VECTOR, 2)
    size = VECTOR
    while size > 1:
        pairs = [(rows[at], rows[min(at + 1, len(rows) - 1)]) for at in range(0, len(rows), 2)]
        rows = [
            e.share_row(e.shuffled(a, b, even) + e.shuffled(a, b, odd), VECTOR, "float32")
            for a, b in pairs
        ]
        size //= 2
    return rows[0]


def _takes(sizes: ConvSizes) -> bool:
    is_few = sizes.filters[0] <= _MOST_COLUMNS and sizes.given[1] >= _LEAST_DEPTH
    return sizes.groups == 1 and is_few and sizes.is_image_known


def _estimate(sizes: ConvSizes) -> tuple[float, float]:
    multiplies = sizes.outputs * sizes.taps * sizes.given[1]
    padded = sizes
    if sizes.given[1] % VECTOR == 0:
        # ONNX Runtime's blocked layout has output channels in whole vectors.
        batch, _, height, width = sizes.made
        padded = replace(sizes, made=(batch, VECTOR, height, width))
    return runtime_ns(padded), multiplies * _OURS_NS + sizes.outputs * (_SUM_NS + OUTPUT_NS)


ANCHOR = ConvAnchor("head_conv", _takes, as_image, _estimate)


def match(signature: RegionSignature) -> HeadConv | Refused | None:
    """Return the region as a convolution to few channels; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if conv.planar or conv.groups != 1 or conv.channels > _MOST_COLUMNS:
        return None
    weight = packed_weight(conv, as_image)
    if weight is None:
        return None
    if conv.narrow is not None:
        return conv.narrow
    if len(signature.outputs) != 1:
        return Refused("a convolution to few channels with a second result")
    widths = conv.input.shape[2], conv.output.shape[2]
    if not all(isinstance(width, int) and width for width in widths):
        return Refused("a convolution to few channels over rows of a width that is not known")
    return HeadConv(conv, weight)

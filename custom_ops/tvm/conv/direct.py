"""Convolutions of NHWC tensors with filters of several pixels: sums over taps and channels.

A tile is some neighbouring pixels of a row by some vectors of channels, in registers. What of a
tile's pixels a column of taps meets outside of the image is known when the kernel is made, and
left out; rows of taps outside are skipped when it runs. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import by_tap
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, known
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.gemm_tile import multiply_add
from ..tile.program import (
    PICOSECONDS_PER_MULTIPLY,
    UNIT_MULTIPLIES,
    ConvKernel,
    Panel,
    Panels,
    Tuned,
    lanes_of,
    open_panel,
)
from ..tile.registers import VECTOR, Tile, choose_tile
from .depthwise_row import row_taps
from .rates import OUTPUT_NS, RUNTIME_OUTPUT_NS

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter


# Of input channels, for whether regions are taken for alike by tuning.
_FEW_CHANNELS = 128
# See `rates`: of a multiply-add, and of a weight, which comes from memory.
_RUNTIME_NS, _OURS_NS, _WEIGHT_NS = 1 / 88, 1 / 85, 0.2
# Images of one long row, as those of sound: what a multiply-add takes ONNX Runtime there, by
# microarchitecture. Zen 4, one thread, 2026-11-28, 3 taps, 80 to 512 channels: with 1,500 to 4,000
# pixels its blocked kernel does 28 to 38 a nanosecond, ours 51 to 56. With up to 500 pixels, or 7
# taps, both do 50 to 56.
_LONG_ROW, _LONG_ROW_TAPS = 1024, 5
_RUNTIME_LONG_ROW_NS = {"zen4": 1 / 53}


@dataclass(frozen=True)
class Columns:
    """Tiles of a row that are computed in the same way.

    Args:
        first: The first tile's first pixel.
        count: How many tiles follow each other.
        width: Pixels of a tile.
        taps: For each column of taps the pixels of a tile that it meets inside of the image.
    """

    first: int
    count: int
    width: int
    taps: tuple[range, ...]


@dataclass(frozen=True)
class DirectConv(Tuned, ConvKernel):
    """A convolution of any window: NHWC, one group, rows of known width.

    Its weight is float32 [V, kh kw, C, 16] of V vectors of output channels.
    """

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        return f"convolution,{'few' if self.conv.depth <= _FEW_CHANNELS else 'many'} channels"

    @property
    def width(self) -> tuple[int, int]:
        """Pixels of a row that is read, and of one that is written."""
        given, made = known((self.conv.input.shape[2], self.conv.output.shape[2]))
        return given, made

    def tile(self, level: str) -> Tile:
        """Return the tile."""
        vectors = ceil(self.conv.channels / VECTOR)
        rows = 4 * self.conv.window.strides[1] * self.conv.depth
        return choose_tile(
            self.width[1], vectors, level, self.pixels, self.panel,
            pitches=(rows, 4 * VECTOR * self._steps),
        )  # fmt: skip

    def columns(self, level: str) -> Iterator[Columns]:
        """Yield a row's tiles."""
        window, (given, made) = self.conv.window, self.width
        height = self.tile(level).rows

        def inside(first: int, count: int, tap: int) -> range:
            offsets = [
                pixel
                for pixel in range(count)
                if 0
                <= (first + pixel) * window.strides[1] + tap * window.dilations[1] - window.pads[1]
                < given
            ]
            return range(offsets[0], offsets[-1] + 1) if offsets else range(0)

        last: Columns | None = None
        for first in range(0, made, height):
            count = min(height, made - first)
            taps = tuple(inside(first, count, tap) for tap in range(window.kernel[1]))
            if last is not None and (last.width, last.taps) == (count, taps):
                last = replace(last, count=last.count + 1)
                continue
            if last is not None:
                yield last
            last = Columns(first, 1, count, taps)
        if last is not None:
            yield last

    @property
    def _steps(self) -> int:
        """Return the multiply-adds of a number of the result."""
        return self.conv.depth * self.conv.window.taps

    def _rows(self, level: str) -> int:
        """Return the rows of a unit."""
        work = self.width[1] * self.tile(level).vectors * VECTOR * self._steps
        height = self.conv.output.shape[1]
        most = height if isinstance(height, int) else 1
        return max(1, min(ceil(UNIT_MULTIPLIES / max(work, 1)), most))

    def launch(self, level: str) -> Launch:
        """Units are some rows of one panel of channels."""
        tile, rows = self.tile(level), self._rows(level)
        panels = Panels(self.conv.channels, tile.vectors).count
        batch, height = (extent_of(size) for size in self.conv.output.shape[:2])
        runs = height if height.static is None else Extent(ceil(height.static / rows))
        cost = self._steps * PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        points = Extent(rows * self.width[1] * tile.vectors * VECTOR)
        return Launch((Extent(panels), batch, runs), points, cost, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit some rows of one panel."""
        (_, panel, image, run), level = at, e.processor
        tile, count = self.tile(level), self._rows(level)
        first = e.share(panel * e.i64(tile.vectors * VECTOR))
        height = e.extent(self.conv.output.shape[1])
        start = e.share(run * e.i64(count))
        rows = e.share(e.minimum(e.i64(count), height - start))

        def some(*size: int) -> None:
            made = open_panel(e, buffers, self.conv, first, size)
            with e.loop(rows) as number:
                row = e.share(start + number)
                self._row(buffers, made, level, (image, row, height))

        Panels(self.conv.channels, tile.vectors).each(e, panel, some)

    def _row(
        self, buffers: list[Buffer], panel: Panel, level: str, at: tuple[Expr, Expr, Expr]
    ) -> None:
        """Compute one row of the result of one panel."""
        e, window, (image, row, height) = panel.e, self.conv.window, at
        given, made = self.width
        lines = e.extent(self.conv.input.shape[1])
        top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
        taps = row_taps(e, window, top, lines)
        base = e.share((image * lines + top) * e.i64(given) - e.i64(window.pads[1]))
        pixel = e.share((image * height + row) * e.i64(made))
        for some in self.columns(level):
            with e.loop(e.i64(some.count)) as number:
                column = e.share(e.i64(some.first) + number * e.i64(some.width))
                source = e.share(base + column * e.i64(window.strides[1]))
                self._tile(buffers, panel, some, (source, pixel + column, taps))

    def _tile(
        self,
        buffers: list[Buffer],
        panel: Panel,
        columns: Columns,
        at: tuple[Expr, Expr, tuple[Expr, Expr]],
    ) -> None:
        e, (source, pixel, (begin, end)) = panel.e, at
        window, depth = self.conv.window, self.conv.depth
        x, weight = buffers[self.conv.x], buffers[self.weight]
        with panel.tile(columns.width, pixel) as registers, e.loop(end - begin) as number:
            line = e.share(begin + number)
            down = e.share(source + line * e.i64(window.dilations[0]) * e.i64(self.width[0]))
            # A loop for each column of taps: what two of them read in common would be kept, and
            # there is no register left to keep it in.
            for tap, inside in enumerate(columns.taps):
                if not inside:
                    continue
                with e.loop(e.i64(depth)) as c:
                    offset = e.share((down + e.i64(tap * window.dilations[1])) * e.i64(depth) + c)
                    step = (line * e.i64(window.kernel[1]) + e.i64(tap)) * e.i64(depth) + c

                    def left(pixel: int, offset: Expr = offset, inside: range = inside) -> Expr:
                        ahead = (inside[0] + pixel) * window.strides[1] * depth
                        return x[offset + e.i64(ahead)]

                    right = lanes_of(e, weight, panel.to.first, self._steps, step)
                    multiply_add(e, registers[inside.start : inside.stop], left, right)


def summed_ns(sizes: ConvSizes, multiply: float = _OURS_NS) -> float:
    """Return nanoseconds of a convolution that is summed up tap by tap, its result not written.

    Args:
        sizes: Its own.
        multiply: Nanoseconds of a multiply-add, ours if nothing is said.
    """
    batch, columns, height, width = sizes.made
    weights = sizes.given[1] * columns * sizes.taps
    return weights * (batch * height * width * multiply + _WEIGHT_NS)


def runtime_ns(sizes: ConvSizes) -> float:
    """Return nanoseconds of ONNX Runtime's kernel."""
    multiply = _RUNTIME_NS
    if sizes.made[2] == 1 and sizes.made[3] >= _LONG_ROW and sizes.taps <= _LONG_ROW_TAPS:
        multiply = _RUNTIME_LONG_ROW_NS.get(sizes.microarchitecture, multiply)
    return summed_ns(sizes, multiply) + sizes.outputs * RUNTIME_OUTPUT_NS


ANCHOR = ConvAnchor(
    "conv", lambda sizes: sizes.groups == 1, by_tap,
    lambda sizes: (runtime_ns(sizes), summed_ns(sizes) + sizes.outputs * OUTPUT_NS),
)  # fmt: skip


def match(signature: RegionSignature) -> DirectConv | Refused | None:
    """Return the region as a convolution of any window; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if conv.planar or conv.groups != 1 or conv.gate is not None:
        return None
    if conv.narrow is not None:
        return conv.narrow
    widths = conv.input.shape[2], conv.output.shape[2]
    if not all(isinstance(width, int) for width in widths):
        return None
    if len(signature.outputs) != 1 or 0 in widths:
        return Refused("a convolution of nothing, or with a second result")
    weight = packed_weight(conv, by_tap)
    return Refused("a weight that is not packed") if weight is None else DirectConv(conv, weight)

"""Convolutions of few channels from NCHW to NHWC, with bias and epilogue: the first of a net."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.layouts.conv_filters import by_channel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, known
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.gemm_tile import multiply_add
from ..tile.program import ConvKernel, Panel, Panels, each_tile, lanes_of, open_panel
from ..tile.registers import VECTOR, Tile, choose_tile
from .pointwise import estimate

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# The input rows under one output row, padded, lie on the stack of whichever thread runs.
_MOST_SCRATCH = 64 * 1024 // 4
_PICOSECONDS_PER_MULTIPLY = 16
# As images have them, which come as NCHW.
_MOST_CHANNELS = 4


@dataclass(frozen=True)
class StemConv(ConvKernel):
    """A convolution from NCHW: one group; sizes of rows are known.

    Its weight is float32 [V, C kh kw, 16] of V vectors of output channels.
    """

    @property
    def _rows(self) -> int:
        """The input rows under one output row, of all channels."""
        return self.conv.depth * self.conv.window.kernel[0]

    @property
    def _widths(self) -> tuple[int, int]:
        """The length of a padded input row, and of a row of the result."""
        width, columns = known((self.conv.input.shape[3], self.conv.output.shape[2]))
        return width + self.conv.window.pads[1] + self.conv.window.pads[3], columns

    def _tile(self, level: str) -> Tile:
        return choose_tile(self._widths[1], ceil(self.conv.channels / VECTOR), level)

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, columns, channels = (extent_of(size) for size in self.conv.output.shape)
        cost = self._rows * self.conv.window.kernel[1] * _PICOSECONDS_PER_MULTIPLY
        cost += self.conv.epilogue.picoseconds
        return Launch((batch, height), columns * channels, cost, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a row of the result."""
        (unit, image, row), tile = at, self._tile(e.processor)
        panels = Panels(self.conv.channels, tile.vectors)
        scratch = e.scratch(self._rows * self._widths[0])
        self._gather(e, buffers[self.conv.x], scratch, image, row)
        pixel = e.share(unit * e.extent(self.conv.output.shape[2]))
        for number in range(panels.count):
            first = e.i64(number * tile.vectors * VECTOR)
            panel = open_panel(e, buffers, self.conv, first, panels.size(number))

            def some(rows: int, column: Expr, to: Panel = panel) -> None:
                self._columns(buffers[self.weight], scratch, to, rows, (pixel, column))

            each_tile(e, self._widths[1], tile.rows, some)

    def _gather(self, e: TileEmitter, x: Buffer, scratch: Buffer, image: Expr, row: Expr) -> None:
        """Copy the input rows under an output row, with zeros where the padding is."""
        conv, window = self.conv, self.conv.window
        pitch = self._widths[0]
        width = pitch - window.pads[1] - window.pads[3]
        height = e.extent(conv.input.shape[2])
        top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
        with e.loop(e.i64(self._rows)) as number:
            kernel = e.i64(window.kernel[0])
            channel = e.share(e.tir.floordiv(number, kernel))
            tap = e.share(e.tir.floormod(number, kernel))
            y = e.share(top + tap * e.i64(window.dilations[0]))
            to = e.share(number * e.i64(pitch))
            first = (image * e.extent(conv.input.shape[1]) + channel) * height + y
            source = e.share(first * e.i64(width))
            left = e.share(to + e.i64(window.pads[1]))

            def copy(at: Expr, lanes: int) -> None:
                with e.lanes(lanes) as lane:
                    e.store(scratch, x[source + at + lane], left + at + lane)

            def clear(start: int, count: int) -> None:
                def zero(at: Expr, lanes: int) -> None:
                    with e.lanes(lanes) as lane:
                        e.store(scratch, e.f32(0.0), to + e.i64(start) + at + lane)

                e.each_block(count, zero)

            with e.block() as inside:
                clear(0, window.pads[1])
                e.each_block(width, copy)
                clear(window.pads[1] + width, window.pads[3])
            with e.block() as outside:
                clear(0, pitch)
            e.branch(e.both(y >= e.i64(0), y < height), inside, outside)

    def _columns(
        self, weight: Buffer, scratch: Buffer, panel: Panel, rows: int, at: tuple[Expr, Expr]
    ) -> None:
        e, window, (pixel, column) = panel.e, self.conv.window, at
        depth, stride = self._rows * window.kernel[1], window.strides[1]
        with panel.tile(rows, pixel + column, asks=False) as registers:
            # A loop for each tap of a row: written out together, what two taps read in common
            # would be kept, and there is no register left to keep it in.
            for tap in range(window.kernel[1]):
                with e.loop(e.i64(self._rows)) as row:
                    start = e.share(row * e.i64(self._widths[0]) + column * e.i64(stride))
                    step = row * e.i64(window.kernel[1]) + e.i64(tap)

                    def left(number: int, tap: int = tap, start: Expr = start) -> Expr:
                        return scratch[start + e.i64(number * stride + tap * window.dilations[1])]

                    right = lanes_of(e, weight, panel.to.first, depth, step)
                    multiply_add(e, registers, left, right)


ANCHOR = ConvAnchor(
    "stem_conv", lambda sizes: sizes.groups == 1 and sizes.given[1] <= _MOST_CHANNELS, by_channel,
    estimate, is_planar=True,
)  # fmt: skip


def match(signature: RegionSignature) -> StemConv | Refused | None:
    """Return the region as a convolution from NCHW; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if not conv.planar:
        return None
    if conv.narrow is not None:
        return conv.narrow
    if conv.groups != 1 or len(signature.outputs) != 1:
        return Refused("a convolution of NCHW in groups or with a second result")
    if not isinstance(conv.input.shape[3], int) or not isinstance(conv.output.shape[2], int):
        return Refused("a convolution of NCHW with rows of a width that is not known")
    weight = packed_weight(conv)
    if weight is None:
        return Refused("a weight that is not packed")
    found = StemConv(conv, weight)
    if found._rows * found._widths[0] > _MOST_SCRATCH:
        return Refused("a convolution of NCHW with more under a row of its result than 64 KB")
    return found

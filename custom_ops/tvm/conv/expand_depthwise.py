"""A 1x1 convolution and the depthwise convolution of its result, which is never written whole.

Of the 1x1 convolution's result, which has several times the channels of its input, only as many
rows are kept as the filter is high, of some channels: they stay in the nearest caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, known
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import TO_NCHW, TO_NHWC, Body, integer
from ...forms.conv import Convolution, packed_weight, unfit, window_of
from ...forms.epilogue import read_epilogue
from ..tile.gemm_tile import multiply_add
from ..tile.program import (
    PICOSECONDS_PER_MULTIPLY,
    Panel,
    Panels,
    UnitKernel,
    each_tile,
    lanes_of,
    open_panel,
)
from ..tile.registers import VECTOR, Tile, choose_tile
from .depthwise import DepthwiseConv, depthwise_of
from .depthwise_row import Row, Sink, Source, row_taps

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# The rows that are kept lie on the stack of whichever thread runs.
_MOST_SCRATCH = 64 * 1024 // 4
# Smaller values in between stay in the second level of cache as they are: float32 of one image.
_LEAST_BETWEEN = 128 * 1024
# The part of the rows that may be computed twice, in two bands of an image.
_TWICE = 0.08
_PICOSECONDS_PER_TAP = 25


@dataclass(frozen=True)
class ExpandDepthwise(UnitKernel):
    """The two convolutions; the second one's input is the first one's result.

    Args:
        expand: 1x1, NHWC; what it states of its result is the second one's but for the channels.
        weight: Its input float32 [V, C, 16].
        depthwise: With as many channels.
    """

    expand: Convolution
    weight: int
    depthwise: DepthwiseConv

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.expand.signature

    @cached_property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Height, width and channels of the input, and the height of the result."""
        height, width, depth = known(self.expand.input.shape[1:])
        return height, width, depth, known(self.expand.output.shape[1:])[0]

    @property
    def _kept(self) -> int:
        """How many rows of the first result are kept."""
        return self.depthwise.conv.window.kernel[0]

    @property
    def _band(self) -> int:
        """How many rows of the result one unit has."""
        rows, stride = self._sizes[3], self.depthwise.conv.window.strides[0]
        least = max(1, ceil((self._kept - stride) / (stride * _TWICE)))
        return ceil(rows / max(1, rows // least))

    def _tile(self, level: str) -> Tile:
        width = self._sizes[1]
        widest = _MOST_SCRATCH // (self._kept * width * VECTOR)
        vectors = ceil(self.expand.channels / VECTOR)
        return choose_tile(width, min(vectors, widest), level)

    def launch(self, level: str) -> Launch:
        """Units are bands of rows of one panel of channels."""
        tile, conv = self._tile(level), self.depthwise.conv
        columns, window = extent_of(conv.output.shape[2]), conv.window
        points = columns * Extent(self._band * tile.vectors * VECTOR)
        inner = self._sizes[2] * PICOSECONDS_PER_MULTIPLY + self.expand.epilogue.picoseconds
        cost = inner * window.strides[0] * window.strides[1]
        cost += window.taps * _PICOSECONDS_PER_TAP + conv.epilogue.picoseconds
        panels = Panels(self.expand.channels, tile.vectors).count
        bands = ceil(self._sizes[3] / self._band)
        units = extent_of(self.expand.output.shape[0]), Extent(bands), Extent(panels)
        return Launch(units, points, cost, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a band of rows of one panel."""
        tile = self._tile(e.processor)
        ring = e.scratch(self._kept * self._sizes[1] * tile.vectors * VECTOR)

        def emit(vectors: int, lanes: int) -> None:
            part = Tile(tile.rows, vectors)
            _Unit(self, e, buffers, ring, part, lanes, at[1:]).emit(tile.vectors)

        Panels(self.expand.channels, tile.vectors).each(e, at[3], emit)


@dataclass(frozen=True)
class _Unit:
    """A band of rows of one panel, of `tile.vectors` vectors, the last with `lanes` channels.

    The first convolution's row y lies in place y modulo the filter's height of the `ring`.
    """

    op: ExpandDepthwise
    e: TileEmitter
    buffers: list[Buffer]
    ring: Buffer
    tile: Tile
    lanes: int
    unit: tuple[Expr, ...]

    def emit(self, panel_vectors: int) -> None:
        """Compute the band; panels start at multiples of `panel_vectors`."""
        e, op = self.e, self.op
        image, band, panel = self.unit
        height, _, _, rows = op._sizes
        pitch = self.tile.vectors * VECTOR
        first = e.share(panel * e.i64(panel_vectors * VECTOR))
        size = self.tile.vectors, self.lanes
        panel_ = open_panel(e, self.buffers, op.expand, first, size, (self.ring, pitch))
        into = replace(panel_, to=replace(panel_.to, first=e.i64(0)))
        window = op.depthwise.conv.window
        start = e.share(band * e.i64(op._band))
        with e.loop(e.minimum(e.i64(op._band), e.i64(rows) - start)) as number:
            row = e.share(start + number)
            top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
            new = e.i64(op._kept - window.strides[0])
            fresh = e.select(e.equal(number, e.i64(0)), top, top + new)
            low = e.share(e.tir.max(e.i64(0), fresh))
            high = e.share(e.minimum(e.i64(height), top + e.i64(op._kept)))
            with e.loop(e.tir.max(e.i64(0), high - low)) as step:
                self._expand(into, first, image, e.share(low + step))
            self._filter(image, row, top, first)

    def _expand(self, panel: Panel, first: Expr, image: Expr, row: Expr) -> None:
        """Compute one row of the first convolution's result into its place in the ring."""
        e, op = self.e, self.op
        height, width, depth, _ = op._sizes
        source = e.share((image * e.i64(height) + row) * e.i64(width))
        slot = e.share(e.tir.floormod(row, e.i64(op._kept)) * e.i64(width))
        x, weight = self.buffers[op.expand.x], self.buffers[op.weight]

        def tile(rows: int, column: Expr) -> None:
            base = e.share((source + column) * e.i64(depth))
            with (
                panel.tile(rows, slot + column, asks=False) as registers,
                e.loop(e.i64(depth)) as k,
            ):
                right = lanes_of(e, weight, first, depth, k)
                multiply_add(e, registers, lambda at: x[base + e.i64(at * depth) + k], right)

        each_tile(e, width, self.tile.rows, tile)

    def _filter(self, image: Expr, row: Expr, top: Expr, first: Expr) -> None:
        """Compute one row of the result from the rows in the ring."""
        e, op = self.e, self.op
        height, width, _, rows = op._sizes
        pitch = self.tile.vectors * VECTOR
        conv = op.depthwise.conv
        applied = op.depthwise.filter_of(self.buffers)

        def offset(tap: Expr) -> Expr:
            return e.tir.floormod(top + tap, e.i64(op._kept)) * e.i64(width * pitch)

        taps = row_taps(e, conv.window, top, e.i64(height))
        output = len(conv.signature.inputs)
        at = e.share(image * e.i64(rows) + row)
        sink = e.share(at * e.i64(applied.columns * applied.channels))
        means = None
        if op.depthwise.means:
            means = (self.buffers[output + 1], e.share(at * e.i64(applied.channels)))
        count = (self.tile.vectors - 1) * VECTOR + self.lanes
        to = Sink(self.buffers[output], sink, first, count, means)
        Row(e, applied, Source(self.ring, pitch, offset, taps), to).emit()


@refusals
def match(signature: RegionSignature) -> ExpandDepthwise | Refused | None:
    """Return the region as the two convolutions; None if it is something else."""
    body = Body(signature)
    convs = sorted(body.nodes("Conv"), key=lambda conv: integer(conv, "group", 1))
    if len(convs) != 2 or [integer(conv, "group", 1) > 1 for conv in convs] != [False, True]:
        return None
    if refused := unfit(signature):
        return refused
    first, second = convs
    x = body.input_through(first.input[0], TO_NCHW)
    result = body.transposed(body.function.output[0], TO_NHWC)
    windows = needed(window_of(first)), needed(window_of(second))
    if x is None or result is None or len(signature.inputs[x].shape) != 4:
        return Refused("two convolutions that are not of NHWC")
    if not windows[0].is_point:
        return Refused("two convolutions the first of which is not 1x1")
    inner = needed(read_epilogue(body, first.output[0], second.input[0]))
    outer = needed(read_epilogue(body, second.output[0], result))
    biases = [body.inputs.get(conv.input[2]) if len(conv.input) > 2 else None for conv in convs]
    if any(len(conv.input) > 2 and bias is None for conv, bias in zip(convs, biases, strict=True)):
        return Refused("a convolution whose bias is computed")
    groups = integer(second, "group", 1)
    expand = Convolution(
        body, x, False, None, str(first.input[1]), biases[0], 1, windows[0], inner,
        str(second.input[0]),
    )  # fmt: skip
    filtered = Convolution(
        body, x, False, None, str(second.input[1]), biases[1], groups, windows[1], outer, result
    )
    return _checked(expand, filtered)


def pays(between: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether two convolutions are worth a kernel.

    Args:
        between: Channels, height and width of the first one's result.
        kernel: Of the second one's filter.
        strides: Of it.
    """
    fits = kernel[0] >= strides[0] and kernel[0] * between[2] * VECTOR <= _MOST_SCRATCH
    return fits and prod(between) >= _LEAST_BETWEEN


def _checked(expand: Convolution, filtered: Convolution) -> ExpandDepthwise | Refused:
    """Return the two as one kernel, if all that it takes for granted is so."""
    window, shape = filtered.window, expand.input.shape
    sizes = (*shape[1:], *expand.output.shape[1:])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return Refused("two convolutions over images of a size that is not known")
    if window.dilations != (1, 1) or window.kernel[0] < window.strides[0]:
        return Refused("a filter of rows that do not lie together")
    if expand.epilogue.extras or filtered.epilogue.extras:
        return Refused("two convolutions with further operands")
    (width,) = known(shape[2:3])
    if window.kernel[0] * width * VECTOR > _MOST_SCRATCH:
        return Refused("two convolutions with more between them than 64 KB")
    if any(
        conv.bias is not None and conv.signature.inputs[conv.bias].shape != (conv.channels,)
        for conv in (expand, filtered)
    ):
        return Refused("a bias of another size than the number of channels")
    weight = packed_weight(expand)
    if weight is None:
        return Refused("a weight that is not packed")
    return ExpandDepthwise(expand, weight, needed(depthwise_of(filtered, expand.channels)))

"""1x1 convolutions of NHWC tensors: a matrix product over pixels, with gate, bias and epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import by_channel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
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
from .rates import OUTPUT_NS, RUNTIME_OUTPUT_NS

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Weights of up to this size stay in the second level of cache, whatever else goes through it.
_NEAR_BYTES = 256 * 1024
# Of input channels, for whether regions are taken for alike by tuning.
_FEW_CHANNELS = 128
# See `rates`: of a multiply-add. From this many channels on both sides of it a 1x1 convolution is
# as fast as ONNX Runtime's.
_RUNTIME_NS, _OURS_NS, _MANY = 1 / 85, 1 / 95, 64


@dataclass(frozen=True)
class _Plan:
    """How the output is cut.

    Args:
        tile: Of pixels and vectors of channels.
        panels: Of `tile.vectors` vectors.
        images: The batch.
        runs: Of one image: a unit is one run of pixels and one panel. As many as an image has rows
            where its sizes are not known.
        tiles: Of one run, at most; None if not known.
        pixels: Of an image; None if not known.
        panels_last: Whether neighbouring units are the panels of one run, else its neighbours.
    """

    tile: Tile
    panels: Panels
    images: Extent
    runs: Extent
    tiles: int | None
    pixels: int | None
    panels_last: bool

    @property
    def units(self) -> tuple[Extent, ...]:
        """Neighbouring units read the same pixels where all weights stay near, else weights."""
        if self.panels_last:
            return (self.images, self.runs, Extent(self.panels.count))
        return (Extent(self.panels.count), self.images, self.runs)

    def unit_of(self, coordinates: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the panel, image and run of a unit."""
        return (coordinates[2], *coordinates[:2]) if self.panels_last else coordinates


@dataclass(frozen=True)
class PointwiseConv(Tuned, ConvKernel):
    """A 1x1 convolution: NHWC, one group, window of one pixel.

    Its weight is float32 [V, C, 16] of V vectors of output channels.
    """

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        return f"1x1 convolution,{'few' if self.conv.depth <= _FEW_CHANNELS else 'many'} channels"

    def _plan(self, level: str) -> _Plan:
        batch, height, width = (extent_of(size) for size in self.conv.output.shape[:3])
        image = (height * width).static
        vectors = ceil(self.conv.channels / VECTOR)
        tile = choose_tile(
            image, vectors, level, self.pixels, self.panel, scaled=self.conv.gate is not None,
            pitches=(4 * self.conv.depth, 4 * VECTOR * self.conv.depth),
        )  # fmt: skip
        panels = Panels(self.conv.channels, tile.vectors)
        panels_last = vectors * VECTOR * self.conv.depth * 4 <= _NEAR_BYTES
        if image is None:
            return _Plan(tile, panels, batch, height, None, None, panels_last)
        work = tile.rows * tile.vectors * VECTOR * self.conv.depth
        tiles = min(ceil(UNIT_MULTIPLIES / max(work, 1)), max(1, image // tile.rows))
        runs = max(1, ceil((image // tile.rows) / tiles))
        return _Plan(tile, panels, batch, Extent(runs), tiles, image, panels_last)

    def launch(self, level: str) -> Launch:
        """Units are runs of pixels of one panel of channels."""
        plan = self._plan(level)
        width = plan.tile.vectors * VECTOR
        points = Extent(width) * extent_of(self.conv.output.shape[2])
        if plan.tiles is not None:
            points = Extent(width * plan.tiles * plan.tile.rows)
        cost = self.conv.depth * PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        return Launch(plan.units, points, max(1, cost), ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a run of pixels of one panel."""
        plan = self._plan(e.processor)
        unit = plan.unit_of(at[1:])
        plan.panels.each(e, unit[0], lambda *size: self._unit(e, buffers, plan, unit, size))

    def _unit(
        self,
        e: TileEmitter,
        buffers: list[Buffer],
        plan: _Plan,
        unit: tuple[Expr, ...],
        size: tuple[int, ...],
    ) -> None:
        """Compute one run of pixels of one panel."""
        conv, (panel, image, run) = self.conv, unit
        first = e.share(panel * e.i64(plan.tile.vectors * VECTOR))
        made = open_panel(e, buffers, conv, first, size)

        def tile(rows: int) -> Callable[[Expr], None]:
            return lambda pixel: self._tile(buffers, made, rows, image, pixel)

        height, width = conv.output.shape[1:3]
        rows = plan.tile.rows
        if plan.tiles is not None and plan.pixels is not None:
            whole, rest = divmod(plan.pixels, rows)
            start = e.share(image * e.i64(plan.pixels) + run * e.i64(plan.tiles * rows))
            count = e.minimum(e.i64(plan.tiles), e.i64(whole) - run * e.i64(plan.tiles))
            self._tiles(e, start, count, rows, tile(rows))
            if rest:
                with e.block() as tail:
                    tile(rest)(e.share(image * e.i64(plan.pixels) + e.i64(whole * rows)))
                e.when(e.equal(run, e.extent(plan.runs) - e.i64(1)), tail)
            return
        lines = e.extent(height)
        pixels = e.share(lines * e.extent(width))
        # Tiles go on from a row of the image to the next one.
        tiles = e.divide_up(pixels, rows)
        of_run = e.share(e.truncated_quotient(tiles + lines - e.i64(1), lines) * e.i64(rows))
        first = e.share(e.minimum(run * of_run, pixels))
        count = e.share(e.minimum(of_run, pixels - first))
        start = e.share(image * pixels + first)
        for rows in (plan.tile.rows, *(n for n in (8, 4, 2, 1) if n < plan.tile.rows)):
            some = e.share(e.divide_down(count, rows))
            self._tiles(e, start, some, rows, tile(rows))
            start = e.share(start + some * e.i64(rows))
            count = e.share(count - some * e.i64(rows))

    @staticmethod
    def _tiles(
        e: TileEmitter, start: Expr, count: Expr, rows: int, tile: Callable[[Expr], None]
    ) -> None:
        with e.loop(count) as index:
            tile(e.share(start + index * e.i64(rows)))

    def _tile(
        self, buffers: list[Buffer], panel: Panel, rows: int, image: Expr, pixel: Expr
    ) -> None:
        e, depth, first = panel.e, self.conv.depth, panel.to.first
        x, weight = buffers[self.conv.x], buffers[self.weight]
        gate = None if self.conv.gate is None else buffers[self.conv.gate]
        base = e.share(pixel * e.i64(depth))
        with panel.tile(rows, pixel, is_shared=True) as registers, e.loop(e.i64(depth)) as k:
            lanes = lanes_of(e, weight, first, depth, k)

            def column(vector: int, lane: Expr) -> Expr:
                value = lanes(vector, lane)
                return value if gate is None else value * gate[image * e.i64(depth) + k]

            # The next panel's weights come from memory meanwhile.
            for vector in range(panel.vectors):
                ahead = first + e.i64((panel.vectors + vector) * VECTOR)
                e.prefetch(weight, ahead * e.i64(depth) + k * e.i64(VECTOR))
            # So do the next pixels: a part of them in each step.
            e.prefetch(x, base + (e.i64(depth) + k) * e.i64(rows))
            multiply_add(e, registers, lambda row: x[base + e.i64(row * depth) + k], column)


def estimate(sizes: ConvSizes) -> tuple[float, float]:
    """Return nanoseconds of a convolution whose filters are a matrix; see `ConvAnchor`."""
    depth, columns = sizes.given[1], sizes.made[1]
    ours = _RUNTIME_NS if min(depth, columns) >= _MANY else _OURS_NS
    before, after = (sizes.outputs * depth * sizes.taps * each for each in (_RUNTIME_NS, ours))
    return before + sizes.outputs * RUNTIME_OUTPUT_NS, after + sizes.outputs * OUTPUT_NS


ANCHOR = ConvAnchor(
    "pointwise_conv", lambda sizes: sizes.groups == 1 and sizes.is_point, by_channel, estimate
)


def match(signature: RegionSignature) -> PointwiseConv | Refused | None:
    """Return the region as a 1x1 convolution; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if conv.planar or conv.groups != 1 or not conv.window.is_point:
        return None
    if conv.narrow is not None:
        return conv.narrow
    if len(signature.outputs) != 1:
        return Refused("a 1x1 convolution with a second result")
    weight = packed_weight(conv)
    return (
        Refused("a weight that is not packed") if weight is None else PointwiseConv(conv, weight)
    )

"""1x1 convolutions of NHWC tensors: a matrix product over pixels, with gate, bias and epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.gemm_tile import (
    Destination,
    accumulators,
    expect_tile,
    load_bias,
    multiply_add,
    write_tile,
)
from ..tile.registers import VECTOR, Tile, choose_tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.choices import Choices
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# A unit should be worth the arithmetic that finds it: about 3 microseconds of multiply-adds.
_UNIT_MULTIPLIES = 200_000
# Weights of up to this size stay in the second level of cache, whatever else goes through it.
_NEAR_BYTES = 256 * 1024
# Of input channels, for whether regions are taken for alike by tuning.
_FEW_CHANNELS = 128
# One core of x86-64-v4 at 150 GFLOP/s; one simple vector operation an element at 1/32 ns.
_PICOSECONDS_PER_MULTIPLY = 13
_PICOSECONDS_PER_FLOP = 31


@dataclass(frozen=True)
class _Plan:
    """How the output is cut.

    Args:
        tile: Of pixels and vectors of channels.
        panels: Groups of `tile.vectors` vectors; the last may have fewer.
        last: The vectors of the last panel.
        images: The batch.
        runs: Of one image: a unit is one run of pixels and one panel.
        tiles: Of one run, at most; None if a run is a row of an unknown number of pixels.
        pixels: Of an image, or of a row where its runs are rows; None if not known.
        panels_last: Whether neighbouring units are the panels of one run, else its neighbours.
    """

    tile: Tile
    panels: int
    last: int
    images: Extent
    runs: Extent
    tiles: int | None
    pixels: int | None
    panels_last: bool

    @property
    def units(self) -> tuple[Extent, ...]:
        """Neighbouring units read the same pixels where all weights stay near, else weights."""
        if self.panels_last:
            return (self.images, self.runs, Extent(self.panels))
        return (Extent(self.panels), self.images, self.runs)

    def place(self, coordinates: list[Expr]) -> tuple[Expr, ...]:
        """Return the panel, image and run of a unit."""
        if self.panels_last:
            return (coordinates[2], *coordinates[:2])
        return tuple(coordinates)


@dataclass(frozen=True)
class PointwiseConv:
    """A 1x1 convolution.

    Args:
        conv: NHWC, one group, window of one pixel.
        weight: The input float32 [V, C, 16] of V vectors of output channels.
        pixels: Of a tile; 0: what its rule says.
        panel: Vectors of a tile; 0: what its rule says.
    """

    conv: Convolution
    weight: int
    pixels: int = 0
    panel: int = 0

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        return f"1x1 convolution,{'few' if self._depth <= _FEW_CHANNELS else 'many'} channels"

    @property
    def parameters(self) -> tuple[str, ...]:
        """See `TunableTemplate`."""
        return ("pixels", "panel")

    def chosen(self, choices: Choices) -> PointwiseConv:
        """See `TunableTemplate`."""
        return replace(self, pixels=choices.pixels, panel=choices.panel)

    @property
    def _depth(self) -> int:
        depth = self.conv.input.shape[3]
        assert isinstance(depth, int)
        return depth

    def _plan(self, level: str) -> _Plan:
        batch, height, width = (extent_of(size) for size in self.conv.output.shape[:3])
        image = (height * width).static
        pixels = width.static if image is None else image
        vectors = ceil(self.conv.channels / VECTOR)
        tile = choose_tile(pixels, vectors, level, scaled=self.conv.gate is not None)
        tile = Tile(self.pixels or tile.rows, min(vectors, self.panel or tile.vectors))
        if pixels is not None:
            tile = Tile(max(1, min(tile.rows, pixels)), tile.vectors)
        panels = ceil(vectors / tile.vectors)
        last = vectors - (panels - 1) * tile.vectors
        panels_last = vectors * VECTOR * self._depth * 4 <= _NEAR_BYTES
        if image is None:
            return _Plan(tile, panels, last, batch, height, None, pixels, panels_last)
        work = tile.rows * tile.vectors * VECTOR * self._depth
        tiles = min(ceil(_UNIT_MULTIPLIES / max(work, 1)), max(1, image // tile.rows))
        runs = max(1, ceil((image // tile.rows) / tiles))
        return _Plan(tile, panels, last, batch, Extent(runs), tiles, image, panels_last)

    def launch(self, level: str) -> Launch:
        """Units are runs of pixels of one panel of channels."""
        plan = self._plan(level)
        width = plan.tile.vectors * VECTOR
        points = Extent(width) * extent_of(self.conv.output.shape[2])
        if plan.tiles is not None:
            points = Extent(width * plan.tiles * plan.tile.rows)
        cost = self._depth * _PICOSECONDS_PER_MULTIPLY
        cost += self.conv.epilogue.flops * _PICOSECONDS_PER_FLOP
        return Launch(plan.units, points, max(1, cost), ())

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        from ..tile.emitter import TileEmitter

        e = TileEmitter(symbol)
        buffers, begin, end = e.parameters(self.conv.signature)
        plan = self._plan(level)
        with e.loop(end - begin) as index:
            unit = plan.place(e.decode(begin + index, plan.units))
            self._panels(e, buffers, plan, unit)
        return e.function()

    def _panels(
        self, e: TileEmitter, buffers: list[Buffer], plan: _Plan, unit: tuple[Expr, ...]
    ) -> None:
        """Compute a unit of whichever panel; the last one may be narrower."""
        whole = plan.tile.vectors
        lanes = self.conv.channels % VECTOR or VECTOR
        if plan.panels == 1 or (plan.last, lanes) == (whole, VECTOR):
            self._unit(e, buffers, plan, unit, plan.last, lanes)
            return
        with e.block() as wide:
            self._unit(e, buffers, plan, unit, whole, VECTOR)
        with e.block() as last:
            self._unit(e, buffers, plan, unit, plan.last, lanes)
        e.branch(unit[0] < e.i64(plan.panels - 1), wide, last)

    def _unit(
        self,
        e: TileEmitter,
        buffers: list[Buffer],
        plan: _Plan,
        unit: tuple[Expr, ...],
        vectors: int,
        lanes: int,
    ) -> None:
        """Compute one run of pixels of one panel of `vectors` vectors."""
        conv, (panel, image, run) = self.conv, unit
        first = e.share(panel * e.i64(plan.tile.vectors * VECTOR))
        to = Destination(
            buffers[len(conv.signature.inputs)],
            [buffers[extra] for extra in conv.epilogue.extras],
            conv.channels, first, lanes,
        )  # fmt: skip
        bias = load_bias(e, None if conv.bias is None else buffers[conv.bias], vectors, to)

        def tile(rows: int) -> Callable[[Expr], None]:
            return lambda pixel: self._tile(
                e, buffers, Tile(rows, vectors), to, bias, (first, image, pixel)
            )

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
        pixels = e.extent(width)
        start = e.share((image * e.extent(height) + run) * pixels)
        whole = e.share(e.tir.floordiv(pixels, e.i64(rows)))
        self._tiles(e, start, whole, rows, tile(rows))
        left = e.share(pixels - whole * e.i64(rows))
        self._tiles(e, e.share(start + whole * e.i64(rows)), left, 1, tile(1))

    @staticmethod
    def _tiles(
        e: TileEmitter, start: Expr, count: Expr, rows: int, tile: Callable[[Expr], None]
    ) -> None:
        with e.loop(count) as index:
            tile(e.share(start + index * e.i64(rows)))

    def _tile(
        self,
        e: TileEmitter,
        buffers: list[Buffer],
        tile: Tile,
        to: Destination,
        bias: Buffer,
        at: tuple[Expr, Expr, Expr],
    ) -> None:
        (first, image, pixel), depth = at, self._depth
        x, weight = buffers[self.conv.x], buffers[self.weight]
        gate = None if self.conv.gate is None else buffers[self.conv.gate]
        base = e.share(pixel * e.i64(depth))
        expect_tile(e, tile, to, pixel)
        with accumulators(e, tile, bias) as registers:
            with e.loop(e.i64(depth)) as k:

                def column(vector: int, lane: Expr) -> Expr:
                    place = (first + e.i64(vector * VECTOR)) * e.i64(depth) + k * e.i64(VECTOR)
                    value = weight[place + lane]
                    return value if gate is None else value * gate[image * e.i64(depth) + k]

                # The next panel's weights come from memory meanwhile.
                for vector in range(tile.vectors):
                    ahead = first + e.i64((tile.vectors + vector) * VECTOR)
                    e.prefetch(weight, ahead * e.i64(depth) + k * e.i64(VECTOR))
                # So do the next pixels: a part of them in each step.
                e.prefetch(x, base + (e.i64(depth) + k) * e.i64(tile.rows))
                multiply_add(e, registers, lambda row: x[base + e.i64(row * depth) + k], column)
            write_tile(e, registers, self.conv.epilogue, to, pixel)


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
    depth = conv.input.shape[3]
    assert isinstance(depth, int)
    weight = packed_weight(conv, depth)
    return (
        Refused("a weight that is not packed") if weight is None else PointwiseConv(conv, weight)
    )

"""Int8 matrix products with exact sums, packed weights, and all that follows them in registers.

A region is `finish(MatMulInteger(x, w))`: x uint8, w int8 in panels of 32 columns. `finish` is
scales, roundings to uint8, sums of such numbers and pointwise float32 operators; see
`forms/gemm_int8.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.layouts.int8_panels import WIDTH
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, product
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_tiles, has_vnni

from ...forms.gemm_int8 import Floats, Int8Form, read_int8
from ..tile.program import Panels
from ..tile.registers import VECTOR
from .bf16_emitter import TILE
from .int8_aligned_rows import AlignedRows, Turn, copies, takes
from .int8_amx import ROWS, AmxTiles, Strip
from .int8_emitter import Int8Emitter
from .int8_tiles import Depth, Int8Tiles, Opened

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Processor levels that have kernels.
LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
# K, where rows and a panel are copied to 16 bits on the stack: 600 KB.
_MOST_PAIRS = 8192
# Of units that work is cut into at least, if there are rows for it.
_LEAST_UNITS = 32
# Of one core: 430 GOP/s with VNNI, 150 with pairs of 16 bits, 210 with weights of 7 bits (Zen 4,
# 2026-11-28); 3,500 with the tiles of AMX, sums stored (Emerald Rapids, 2026-11-28).
_VNNI_PICOSECONDS, _PAIR_PICOSECONDS, _NARROW_PICOSECONDS = 5, 13, 10
_TILES_PICOSECONDS = 0.57
# A core reads weights at 11 GB/s from memory.
_PICOSECONDS_PER_BYTE = 90
_MOST_NANOSECONDS = 1_000_000_000
# Of a number that is copied.
_COPY_PICOSECONDS = 30
# Of a multiply-add on one thread (EPYC with Zen 4, VNNI, 2026-11-27): ONNX Runtime's product at
# 420 GOP/s, ours at 440.
_RUNTIME_NS, _OURS_NS = 2 / 420, 2 / 440
# In the tiles of AMX: ONNX Runtime's with a bias and a rounding at 1,000 GOP/s, ours with scales
# and a bias at 1,450, weights in the second level of cache (Emerald Rapids, 2026-11-29).
_RUNTIME_TILES_NS, _OURS_TILES_NS = 2 / 1000, 2 / 1450
# Of a stage that is no float32 step, in the same unit as `Epilogue.flops`.
_FLOPS_OF_STAGE = 4
_PICOSECONDS_PER_FLOP = 31


def multiply_picoseconds(of: Int8Form, level: str) -> float:
    """Return the time of a product of two bytes."""
    if has_tiles(level) and (of.filters is None or not of.filters.is_depthwise):
        return _TILES_PICOSECONDS
    if has_vnni(level):
        return _VNNI_PICOSECONDS
    return _NARROW_PICOSECONDS if of.is_narrow else _PAIR_PICOSECONDS


def finish_picoseconds(of: Int8Form) -> int:
    """Return the time from sums to a result."""
    flops = sum(
        stage.epilogue.flops if isinstance(stage, Floats) else _FLOPS_OF_STAGE
        for stage in of.stages
    )
    return flops * _PICOSECONDS_PER_FLOP


@dataclass(frozen=True)
class Int8Product:
    """One product of a region."""

    form: Int8Form

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level not in LEVELS:
            return Refused(f"processors of level {level} have no int8 dot products")
        if not has_vnni(level) and self.form.depth > _MOST_PAIRS:
            return Refused(f"K = {self.form.depth}, more than {_MOST_PAIRS}, without VNNI")
        return None

    @property
    def runs(self) -> int:
        """How many runs the rows are cut into."""
        return max(1, min(16, -(-_LEAST_UNITS // self.panels.count)))

    @property
    def panels(self) -> Panels:
        """The panels of columns."""
        return Panels(self.form.columns, WIDTH // VECTOR)

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of the product, ONNX Runtime's and ours."""
        multiplies = product(self.form.leading).at(NOMINAL_SIZE)
        multiplies *= self.form.depth * self.form.columns
        is_tiled = has_tiles(level) and takes(Depth(self.form.depth), ROWS)
        tiles, vectors = (_RUNTIME_TILES_NS, _OURS_TILES_NS), (_RUNTIME_NS, _OURS_NS)
        before, after = tiles if is_tiled else vectors
        return multiplies * before, multiplies * after

    def launch(self, level: str) -> Launch:
        """Units are runs of rows of a panel of columns."""
        of = self.form
        multiplies = int(WIDTH * of.depth * multiply_picoseconds(of, level))
        cost = multiplies + WIDTH * finish_picoseconds(of)
        rows = product(of.leading)
        points = Extent(-(-rows.static // self.runs)) if rows.static is not None else rows
        weight = of.depth * of.columns * _PICOSECONDS_PER_BYTE // 1000
        each_point = cost if rows.static is not None else max(1, cost // self.runs)
        return Launch(
            (Extent(self.panels.count), Extent(self.runs)), points, each_point,
            shared_nanoseconds=min(weight, _MOST_NANOSECONDS),
            slice_picoseconds=self._copy_picoseconds(level),
        )  # fmt: skip

    def _copy_picoseconds(self, level: str) -> int:
        """Return what each slice takes to copy rows for tiles, for each row of a unit."""
        depth = self.form.depth
        if not has_tiles(level) or not copies(depth) or not takes(Depth(depth), ROWS):
            return 0
        return min(depth * self.runs * _COPY_PICOSECONDS, _MOST_NANOSECONDS)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        return _Writer(self, symbol, level).function()


class _Writer:
    """One kernel in the making."""

    def __init__(self, product_: Int8Product, symbol: str, level: str) -> None:
        self.of, self.runs = product_.form, product_.runs
        self.e = e = Int8Emitter(symbol, processor=level, is_narrow=self.of.is_narrow)
        self.buffers, self.begin, self.end = e.parameters(self.of.signature)
        self.rows = e.share(e.extent(product(self.of.leading)))
        depth = Depth(self.of.depth)
        self.amx: AmxTiles | None = None
        if has_tiles(level) and takes(depth, ROWS):
            self.amx = AmxTiles(e, self.of, self.buffers, product_.panels, depth)
            rows = product(self.of.leading).static
            self.amx.split_fetches(None if rows is None else -(-rows // self.amx.block_rows))
            panels = e.share(e.divide_down(self.end - self.begin, self.runs))
            x = self.buffers[self.of.x]
            self.aligned_rows = AlignedRows(e, x, depth.run, rows, ROWS, panels)
        self.tiles = self.amx or Int8Tiles(e, self.of, self.buffers, product_.panels, depth)
        self.height = ROWS if self.amx else self.tiles.heights[0]
        if not e.has_dot4:
            # The rows of a tile in 16 bits.
            self.wide_rows = e.aligned(self.tiles.heights[0] * self._pitch, "uint16")

    @property
    def _known(self) -> set[int]:
        """The rows of a run, and of the last one; nothing if their number is not known."""
        rows, height = product(self.of.leading).static, self.height
        if not rows:
            return set()
        tiles = -(-rows // height)
        of_run = -(-tiles // self.runs) * height
        return {min(of_run, rows), rows % of_run or min(of_run, rows)}

    @property
    def _pitch(self) -> int:
        """Elements between rows in 16 bits: whole vectors."""
        return -(-self.of.depth // (2 * VECTOR)) * 2 * VECTOR

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e, height = self.e, self.height
        of_run = e.share(e.divide_up(e.divide_up(self.rows, height), self.runs) * e.i64(height))
        if self.amx:
            self.aligned_rows.each_turn(self.rows, partial(self._units, of_run))
            self.amx.release()
        else:
            self._units(of_run, None)
        return e.function()

    def _units(self, of_run: Expr, turn: Turn | None) -> None:
        """Emit all units, of their rows those of a turn; of all, if it is None."""
        e = self.e
        with e.loop(self.end - self.begin) as index:
            unit = e.share(self.begin + index)
            panel = e.share(e.divide_down(unit, self.runs))
            top = (unit - panel * e.i64(self.runs)) * of_run
            bottom = e.minimum(top + of_run, self.rows)
            if turn is not None:
                top, bottom = e.tir.max(top, turn.top), e.minimum(bottom, turn.bottom)
            top = e.share(top)
            count = e.share(bottom - top)
            with e.block() as some:
                emit = (
                    partial(self._panel, top, count)
                    if turn is None
                    else partial(self._strips, turn, top, count)
                )
                self.tiles.each_panel(panel, emit)
            e.when(count > e.i64(0), some)

    def _panel(self, top: Expr, count: Expr, panel: Opened) -> None:
        e = self.e

        def tile(index: Expr, height: int) -> None:
            row_indices = [e.share(top + index + e.i64(r)) for r in range(height)]
            sinks = [e.share(row * e.i64(self.of.columns) + panel.column) for row in row_indices]
            self.tiles.tile(self._rows_at(row_indices), sinks, panel)

        self.tiles.each_tile(count, tile, self._known)

    def _strips(self, turn: Turn, top: Expr, count: Expr, panel: Opened) -> None:
        e = self.e
        assert self.amx is not None
        strips = e.divide_up(count, TILE), partial(self._strip, turn, (top, count), panel)
        block = e.divide_down(top, self.amx.block_rows)
        self.amx.each_strip(turn.buffer, turn.pitch, strips, panel, block)

    def _strip(self, turn: Turn, rows: tuple[Expr, Expr], panel: Opened, number: Expr) -> Strip:
        """Return a strip of a run of rows, given the run's first one and how many it has."""
        e, (top, count) = self.e, rows
        first = e.share(number * e.i64(TILE))
        row = e.share(top + first)

        def sink(index: Expr) -> tuple[Expr, Expr | None]:
            return e.share((row + index) * e.i64(self.of.columns) + panel.column), None

        left = e.share(e.minimum(count - first, e.i64(TILE)))
        return Strip(e.share((row - turn.top) * turn.pitch), left, sink)

    def _rows_at(self, row_indices: list[Expr]) -> tuple[Buffer, list[Expr]]:
        """Return where rows lie, given their numbers: without VNNI in a copy in 16 bits."""
        e, depth, x = self.e, self.of.depth, self.buffers[self.of.x]
        tops = [e.share(row * e.i64(depth)) for row in row_indices]
        if e.has_dot4:
            return x, tops
        buffer, origin = self.wide_rows
        sinks = [e.share(origin + e.i64(r * self._pitch)) for r in range(len(tops))]
        for source, sink in zip(tops, sinks, strict=True):

            def copy(at: Expr, count: int, source: Expr = source, sink: Expr = sink) -> None:
                dtype = "uint16" if count == 1 else f"uint16x{count}"
                e.put(buffer, sink + at, e.cast(e.part(x, source + at, count), dtype), count)

            if depth % 2:
                e.put(buffer, sink + e.i64(depth), e.constant(0, "uint16"), 1)
            e.each_block(depth, copy)
        return buffer, sinks


def match(signature: RegionSignature) -> Int8Product | Refused | None:
    """Return the region as an int8 matrix product; None if it is something else."""
    form = read_int8(signature, "MatMulInteger")
    return Int8Product(form) if isinstance(form, Int8Form) else form


#: One body stands for what quantizers write in six ways, with packed panels.
ANCHOR = Anchor("int8_product", match, regions="ortkit.fusion.int8.steps:regions")

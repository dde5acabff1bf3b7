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
from ortkit.kernels.layouts.int8_panels import GROUP, WIDTH
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, product
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_bf16, has_tiles

from ...forms.gemm_int8 import Floats, Int8Form, read_int8
from ..tile.program import Panels
from ..tile.registers import VECTOR
from .int8_emitter import Int8Emitter
from .int8_finish import Finisher, Place
from .nbits_emitter import BYTES

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

_LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-bf16")
# Rows of tiles, the largest first. With VNNI there are 16 accumulators, two vectors wide; AVX2
# has four, one vector of 16 columns wide: 8 registers.
_VNNI_ROWS, _PAIR_ROWS = (8, 4, 2, 1), (4, 2, 1)
# K, where rows and a panel are copied to 16 bits on the stack: 600 KB.
_MOST_PAIRS = 8192
# Of units that work is cut into at least, if there are rows for it.
_LEAST_UNITS = 32
# Of one core: 430 GOP/s with VNNI, 150 with pairs of 16 bits (Zen 4, 2026-11-27).
_VNNI_PICOSECONDS, _PAIR_PICOSECONDS = 5, 13
# A core reads weights at 11 GB/s from memory.
_PICOSECONDS_PER_BYTE = 90
_MOST_NANOSECONDS = 1_000_000_000
# Of a multiply-add on one thread (EPYC with Zen 4, VNNI, 2026-11-27): ONNX Runtime's product at
# 420 GOP/s, ours at 440.
_RUNTIME_NS, _OURS_NS = 2 / 420, 2 / 440
# Of a stage that is no float32 step, in the same unit as `Epilogue.flops`.
_FLOPS_OF_STAGE = 4
_PICOSECONDS_PER_FLOP = 31


@dataclass(frozen=True)
class Int8Product:
    """One product of a region."""

    form: Int8Form

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if has_tiles(level):
            return Refused("ONNX Runtime's int8 matrix products use the tiles of AMX")
        if level not in _LEVELS:
            return Refused(f"processors of level {level} have no int8 dot products")
        if not has_bf16(level) and self.form.depth > _MOST_PAIRS:
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

    def estimate(self) -> tuple[float, float]:
        """Return nanoseconds of the product, ONNX Runtime's and ours."""
        multiplies = product(self.form.leading).at(NOMINAL_SIZE)
        multiplies *= self.form.depth * self.form.columns
        return multiplies * _RUNTIME_NS, multiplies * _OURS_NS

    def launch(self, level: str) -> Launch:
        """Units are runs of rows of a panel of columns."""
        of = self.form
        each = _VNNI_PICOSECONDS if has_bf16(level) else _PAIR_PICOSECONDS
        flops = sum(
            one.epilogue.flops if isinstance(one, Floats) else _FLOPS_OF_STAGE for one in of.stages
        )
        cost = WIDTH * (of.depth * each + flops * _PICOSECONDS_PER_FLOP)
        rows = product(of.leading)
        points = Extent(-(-rows.static // self.runs)) if rows.static is not None else rows
        weight = of.depth * of.columns * _PICOSECONDS_PER_BYTE // 1000
        each_point = cost if rows.static is not None else max(1, cost // self.runs)
        return Launch(
            (Extent(self.panels.count), Extent(self.runs)), points, each_point,
            shared_nanoseconds=min(weight, _MOST_NANOSECONDS),
        )  # fmt: skip

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        return _Writer(self, symbol, level).function()


class _Writer:
    """One kernel in the making."""

    def __init__(self, product_: Int8Product, symbol: str, level: str) -> None:
        self.of, self.panels, self.runs = product_.form, product_.panels, product_.runs
        self.e = e = Int8Emitter(symbol, processor=level)
        self.buffers, self.begin, self.end = e.parameters(self.of.signature)
        self.rows = e.share(e.extent(product(self.of.leading)))
        self.heights = _VNNI_ROWS if e.has_dot4 else _PAIR_ROWS
        self.together = self.panels.vectors if e.has_dot4 else 1
        if not e.has_dot4:
            # A panel, and the rows of a tile, in 16 bits.
            self.wide = e.aligned(self._groups * GROUP * WIDTH, "uint16")
            self.wide_rows = e.aligned(self.heights[0] * self._pitch, "uint16")
        self.finisher = Finisher(e, self.of, self.buffers, self.panels.vectors)
        self.opened = e.local(1, "int64")

    @property
    def _groups(self) -> int:
        return -(-self.of.depth // GROUP)

    @property
    def _pitch(self) -> int:
        """Elements between rows in 16 bits: whole vectors."""
        return -(-self.of.depth // (2 * VECTOR)) * 2 * VECTOR

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e, height = self.e, self.heights[0]
        e.store(self.opened, e.i64(-1), e.i64(0))
        of_run = e.share(e.divide_up(e.divide_up(self.rows, height), self.runs) * e.i64(height))
        with e.loop(self.end - self.begin) as index:
            unit = e.share(self.begin + index)
            panel = e.share(e.divide_down(unit, self.runs))
            top = e.share((unit - panel * e.i64(self.runs)) * of_run)
            count = e.share(e.minimum(of_run, self.rows - top))
            with e.block() as some:
                self.panels.each(e, panel, partial(self._panel, panel, top, count))
            e.when(top < self.rows, some)
        return e.function()

    def _panel(self, panel: Expr, top: Expr, count: Expr, vectors: int, lanes: int) -> None:
        e = self.e
        column = e.share(panel * e.i64(WIDTH))
        start = e.share(panel * e.i64(self._groups * WIDTH * GROUP))
        with e.block() as new:
            self._open(column, start, vectors, lanes)
            e.store(self.opened, panel, e.i64(0))
        e.when(e.not_equal(self.opened[e.i64(0)], panel), new)
        done = e.share(top)
        for height in self.heights:
            number = e.share(e.divide_down(top + count - done, height))
            with e.loop(number) as index:
                row = e.share(done + index * e.i64(height))
                for first in range(0, vectors, self.together):
                    some = range(first, min(vectors, first + self.together))
                    self._tile(row, height, some, start, (column, vectors, lanes))
            done = e.share(done + number * e.i64(height))

    def _open(self, column: Expr, start: Expr, vectors: int, lanes: int) -> None:
        """Emit the sums of a panel's weights, and what is read once for all rows."""
        e = self.e
        sums = [e.begin_sum() for _ in range(vectors)]
        with e.loop(e.i64(self._groups)) as group:
            for vector, total in enumerate(sums):
                at = start + group * e.i64(WIDTH * GROUP) + e.i64(vector * BYTES)
                weights = e.share_bytes(e.sixty_four(self.buffers[self.of.weight], at))
                if e.has_dot4:
                    e.add_fours(total, e.constant(0x01010101, "uint32"), weights)
                    continue
                for number, pair in enumerate(e.widened(weights)):
                    pair = e.share_row(pair, 2 * VECTOR, "uint16")
                    e.add_pairs(total, e.constant(0x00010001, "uint32"), pair)
                    to = self._wide_at(group * e.i64(2) + e.i64(number), vector)
                    e.put(self.wide[0], to, pair, 2 * VECTOR)
        self.finisher.open(column, sums, lanes)

    def _wide_at(self, pair: Expr, vector: int) -> Expr:
        """Return where a pair along K of 16 columns lies in the panel of 16 bits."""
        e = self.e
        return self.wide[1] + (pair + e.i64(vector * 2 * self._groups)) * e.i64(2 * VECTOR)

    def _tile(
        self, row: Expr, height: int, vectors: range, start: Expr, panel: tuple[Expr, int, int]
    ) -> None:
        """Emit a tile of rows by vectors: its sums, then its results."""
        e, totals = self.e, [[self.e.begin_sum() for _ in vectors] for _ in range(height)]
        if e.has_dot4:
            self._add_fours(row, totals, vectors, start)
        else:
            if vectors.start == 0:
                self._widen_rows(row, height)
            self._add_pairs(totals, vectors)
        column, count, lanes = panel
        for r, own in enumerate(totals):
            sink = e.share((row + e.i64(r)) * e.i64(self.of.columns) + column)
            for vector, total in zip(vectors, own, strict=True):
                width = VECTOR if vector < count - 1 else lanes
                place = Place(e.share(sink + e.i64(vector * VECTOR)), width, vector)
                self.finisher.write(e.sums(total), place)

    def _add_fours(
        self, row: Expr, totals: list[list[Buffer]], vectors: range, start: Expr
    ) -> None:
        """Emit sums of four products at once."""
        e, depth, x = self.e, self.of.depth, self.buffers[self.of.x]
        tops = [e.share((row + e.i64(r)) * e.i64(depth)) for r in range(len(totals))]

        def step(group: Expr, four: list[Expr]) -> None:
            at = start + group * e.i64(WIDTH * GROUP)
            panel = self.buffers[self.of.weight]
            weights = [
                e.share_bytes(e.sixty_four(panel, at + e.i64(vector * BYTES)))
                for vector in vectors
            ]
            for own, value in zip(totals, four, strict=True):
                for total, weight in zip(own, weights, strict=True):
                    e.add_fours(total, value, weight)

        with e.loop(e.i64(depth // GROUP)) as group:
            at = e.share(group * e.i64(GROUP))
            step(group, [e.share(self._four(x, top + at)) for top in tops])
        if left := depth % GROUP:
            at = e.i64(depth - left)
            step(e.i64(depth // GROUP), [e.share(self._some(x, top + at, left)) for top in tops])

    def _widen_rows(self, row: Expr, height: int) -> None:
        """Emit a copy of rows in 16 bits; what follows K is 0."""
        e, depth, x = self.e, self.of.depth, self.buffers[self.of.x]
        buffer, origin = self.wide_rows
        for r in range(height):
            source = e.share((row + e.i64(r)) * e.i64(depth))
            sink = e.share(origin + e.i64(r * self._pitch))

            def copy(at: Expr, count: int, source: Expr = source, sink: Expr = sink) -> None:
                dtype = "uint16" if count == 1 else f"uint16x{count}"
                e.put(buffer, sink + at, e.cast(e.part(x, source + at, count), dtype), count)

            if depth % 2:
                e.put(buffer, sink + e.i64(depth), e.constant(0, "uint16"), 1)
            e.each_block(depth, copy)

    def _add_pairs(self, totals: list[list[Buffer]], vectors: range) -> None:
        """Emit sums of two products at once, of rows and a panel in 16 bits."""
        e, (buffer, origin) = self.e, self.wide_rows
        with e.loop(e.i64(-(-self.of.depth // 2))) as pair:
            weights = [
                e.share_row(
                    e.part(self.wide[0], self._wide_at(pair, vector), 2 * VECTOR),
                    2 * VECTOR,
                    "uint16",
                )
                for vector in vectors
            ]
            for r, own in enumerate(totals):
                at = origin + e.i64(r * self._pitch) + pair * e.i64(2)
                two = e.share(e.tir.reinterpret("uint32", e.part(buffer, at, 2)))
                for total, weight in zip(own, weights, strict=True):
                    e.add_pairs(total, two, weight)

    def _four(self, x: Buffer, at: Expr) -> Expr:
        return self.e.tir.reinterpret("uint32", self.e.part(x, at, GROUP))

    def _some(self, x: Buffer, at: Expr, count: int) -> Expr:
        """Return fewer than four neighbours; the others are 0, and not read."""
        e = self.e
        result = e.cast(x[at], "uint32")
        for number in range(1, count):
            shifted = e.cast(x[at + e.i64(number)], "uint32") << e.constant(8 * number, "uint32")
            result = result | shifted
        return result


def match(signature: RegionSignature) -> Int8Product | Refused | None:
    """Return the region as an int8 matrix product; None if it is something else."""
    form = read_int8(signature)
    return Int8Product(form) if isinstance(form, Int8Form) else form


#: One body stands for what quantizers write in six ways, with packed panels.
ANCHOR = Anchor("int8_product", match, regions="ortkit.fusion.gemm.int8_chain:regions")

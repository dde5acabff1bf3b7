"""Int8 depthwise convolutions of NHWC images: sums of four places of a filter at once.

With VNNI the bytes of four places are put side by side for each channel, 64 channels at a time,
and multiplied by what a filter has there. Without it these are pairs, in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortkit.kernels.layouts.int8_panels import GROUP, WIDTH
from ortkit.kernels.sizes import Extent, extent_of

from ...forms.gemm_int8 import Int8Form
from ..gemm.int8_finish import Finisher, OutputVector
from ..gemm.nbits_emitter import BYTES
from ..tile.registers import VECTOR
from .int8_padded_rows import Padded, PaddedRows

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..gemm.int8_emitter import Int8Emitter

# Vectors of channels that are computed together.
_VECTORS = 4


class DepthwiseWriter:
    """One kernel in the making.

    Args:
        e: The emitter that writes the statements.
        of: What is computed.
        padded: The lines that it is computed from.
        block: Rows of results of a unit.
    """

    def __init__(self, e: Int8Emitter, of: Int8Form, padded: Padded, block: int) -> None:
        self.e, self.of, self.padded, self.block = e, of, padded, block
        self.buffers, self.begin, self.end = e.parameters(of.signature)
        zero = e.u8(0) if of.zero is None else e.share(self.buffers[of.zero][e.i64(0)])
        self.padded_rows = PaddedRows(e, padded, self.buffers[of.x], zero, block)
        self.finisher = Finisher(e, of, self.buffers, _VECTORS)
        self.beside = self._beside()
        dtype = "uint8" if e.has_dot4 else "uint16"
        self.weights = e.aligned(self._groups * _VECTORS * BYTES, dtype)

    def _beside(self) -> int:
        """Return how many neighbouring pixels of few channels are computed as one of many."""
        wide, columns, window = _VECTORS * VECTOR, self.of.columns, self.padded.of.window
        if not self.e.has_dot4 or wide % columns or columns % VECTOR or window.strides[1] != 1:
            return 1
        count = wide // columns
        return 1 if self.padded.of.result[1] % count else count

    @property
    def _period(self) -> int:
        """After how many vectors channels begin again."""
        return _VECTORS // self.beside

    @property
    def _groups(self) -> int:
        """Groups of four places of the filter."""
        return -(-self.padded.of.window.taps // GROUP)

    @property
    def _taps(self) -> list[int]:
        """Where the places of the filter lie in the copy, up to a multiple of four."""
        window, channels = self.padded.of.window, self.of.columns
        found = [
            i * window.dilations[0] * self.padded.row_size + j * window.dilations[1] * channels
            for i in range(window.kernel[0])
            for j in range(window.kernel[1])
        ]
        # The weights of what comes in addition are 0.
        return found + [found[-1]] * (self._groups * GROUP - len(found))

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e, height = self.e, self.padded.of.result[0]
        blocks = -(-height // self.block)
        units = extent_of(self.of.signature.outputs[0].shape[0]), Extent(blocks)
        with e.loop(self.end - self.begin) as index:
            image, block = e.decode(self.begin + index, units)
            first = e.share(block * e.i64(self.block))
            count = e.share(e.minimum(e.i64(self.block), e.i64(height) - first))
            self.padded_rows.copy(image, first, count)
            line = e.share(image * e.i64(height) + first)
            for channel, number, vectors, lanes in self._channels():
                with e.loop(e.i64(number)) as some:
                    at = e.share(e.i64(channel) + some * e.i64(_VECTORS * VECTOR))
                    self._open(at, vectors, lanes)
                    self._image(at, (line, count), vectors, lanes)
        return e.function()

    def _channels(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield a first channel, groups that follow, a group's vectors, lanes of the last."""
        wide = _VECTORS * VECTOR
        whole, rest = divmod(self.of.columns * self.beside, wide)
        if whole:
            yield 0, whole, _VECTORS, VECTOR
        if rest:
            yield whole * wide, 1, -(-rest // VECTOR), rest % VECTOR or VECTOR

    def _is_wide(self, vectors: int) -> bool:
        return self.e.has_dot4 and vectors == _VECTORS

    # ---- weights
    def _open(self, channel: Expr, vectors: int, lanes: int) -> None:
        """Emit a copy of the weights of some channels, and what all of their results need."""
        e, sums = self.e, [self.e.begin_sum() for _ in range(vectors)]
        size = self._groups * WIDTH * GROUP
        start = e.share(e.divide_down(channel, WIDTH) * e.i64(size))
        with e.loop(e.i64(self._groups)) as group:
            found = []
            for vector, total in enumerate(sums):
                panel, half = divmod(vector % self._period, WIDTH // VECTOR)
                at = start + group * e.i64(WIDTH * GROUP) + e.i64(panel * size + half * BYTES)
                weights = e.share_bytes(e.sixty_four(self.buffers[self.of.weight], at))
                found.append(weights)
                self._add(total, weights)
            self._keep(group, found)
        self.finisher.open(channel, sums, lanes, self._period)

    def _add(self, total: Buffer, weights: Expr) -> None:
        e = self.e
        if e.has_dot4:
            e.add_fours(total, e.constant(0x01010101, "uint32"), weights)
            return
        for pair in e.widened(weights):
            e.add_pairs(total, e.constant(0x00010001, "uint32"), pair)

    def _keep(self, group: Expr, weights: list[Expr]) -> None:
        """Emit the copy of a group of places."""
        e, (buffer, origin) = self.e, self.weights
        to = e.share(origin + group * e.i64(_VECTORS * BYTES))
        if self._is_wide(len(weights)):
            words = [e.tir.reinterpret("int32x16", item) for item in weights]
            weights = [
                e.tir.reinterpret("uint8x64", e.blocks(words, part)) for part in range(_VECTORS)
            ]
        for vector, weight in enumerate(weights):
            at = to + e.i64(vector * BYTES)
            if e.has_dot4:
                e.put_bytes(buffer, at, weight)
                continue
            for number, pair in enumerate(e.widened(weight)):
                e.put(buffer, at + e.i64(number * 2 * VECTOR), pair, 2 * VECTOR)

    def _weight(self, group: int, vector: int, pair: int = 0) -> Expr:
        """Return 64 bytes, or 32 numbers of 16 bits."""
        e, (buffer, origin) = self.e, self.weights
        at = origin + e.i64((group * _VECTORS + vector) * BYTES)
        if e.has_dot4:
            return e.share_bytes(e.sixty_four(buffer, at))
        whole = e.part(buffer, at + e.i64(pair * 2 * VECTOR), 2 * VECTOR)
        return e.share_row(whole, 2 * VECTOR, "uint16")

    # ---- results
    def _image(self, channel: Expr, lines: tuple[Expr, Expr], vectors: int, lanes: int) -> None:
        """Emit some channels of all pixels of a block, given its first line and their number."""
        e, (width, window) = self.e, (self.padded.of.result[1], self.padded.of.window)
        origin = e.share(self.padded_rows.sink[1] + channel)
        with e.loop(lines[1]) as index:
            down = e.share(origin + index * e.i64(window.strides[0] * self.padded.row_size))
            row = e.share((lines[0] + index) * e.i64(width))
            with e.loop(e.i64(width // self.beside)) as column:
                size = self.of.columns * self.beside
                offset = e.share(down + column * e.i64(window.strides[1] * size))
                sink = e.share(row * e.i64(self.of.columns) + column * e.i64(size) + channel)
                for vector, sums in enumerate(self._sums(offset, vectors)):
                    count = VECTOR if vector < vectors - 1 else lanes
                    at = e.share(sink + e.i64(vector * VECTOR))
                    self.finisher.write(sums, OutputVector(at, count, vector))

    def _sums(self, offset: Expr, vectors: int) -> list[Expr]:
        """Return the sums of a pixel, 16 channels each."""
        e, totals = self.e, [self._begin(vector, vectors) for vector in range(vectors)]
        for group in range(self._groups):
            taps = self._taps[group * GROUP : (group + 1) * GROUP]
            if self._is_wide(vectors):
                self._add_wide(totals, group, [offset + e.i64(tap) for tap in taps])
                continue
            for vector, total in enumerate(totals):
                four = [offset + e.i64(tap + vector * VECTOR) for tap in taps]
                values = [e.part(self.padded_rows.sink[0], at, VECTOR) for at in four]
                if e.has_dot4:
                    e.add_mixed(total, e.mixed(values), self._weight(group, vector))
                    continue
                for pair in range(2):
                    two = values[2 * pair : 2 * pair + 2]
                    e.add_two(total, two, self._weight(group, vector, pair))
        whole = [e.sums(total) for total in totals]
        if not self._is_wide(vectors):
            return whole
        return [
            e.share_row(e.blocks(whole, number), VECTOR, "int32") for number in range(_VECTORS)
        ]

    def _begin(self, vector: int, vectors: int) -> Buffer:
        """Return sums with what they begin with, in the order of their channels."""
        e = self.e
        starts = [self.finisher.begin(each) for each in range(vectors)]
        return e.begin_sum(e.blocks(starts, vector) if self._is_wide(vectors) else starts[vector])

    def _add_wide(self, totals: list[Buffer], group: int, offsets: list[Expr]) -> None:
        """Emit the products of four places with 64 channels, four neighbours of 16 each time."""
        e = self.e
        values = [e.share_bytes(e.sixty_four(self.padded_rows.sink[0], at)) for at in offsets]
        for part, total in enumerate(totals):
            e.add_mixed(total, e.mixed(values, part), self._weight(group, part))

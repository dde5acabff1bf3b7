"""Rows of NHWC images of bytes, copied with their padding: what int8 convolutions read.

In the copy a row of a filter reads adjacent numbers, wherever it is in the image. Nothing is
copied once for each position of the filter, and no tile tests for the borders of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...forms.gemm_int8 import Filters
from ..tile.emitter import parts
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..gemm.int8_emitter import Int8Emitter

_BYTES = 64
#: Numbers after a copy that are read, and multiplied by 0: a group of four, a vector of channels.
_OVERREAD = 64


@dataclass(frozen=True)
class Padded:
    """The geometry of a copy.

    Args:
        of: The convolution's.
        channels: Of a pixel that is read.
    """

    of: Filters
    channels: int

    @property
    def width(self) -> int:
        """Pixels of a row."""
        window = self.of.window
        reach = (window.kernel[1] - 1) * window.dilations[1] + 1
        return (self.of.result[1] - 1) * window.strides[1] + reach

    @property
    def row_size(self) -> int:
        """Numbers of a row."""
        return self.width * self.channels

    @property
    def reach(self) -> int:
        """Rows that a row of results is made from."""
        return (self.of.window.kernel[0] - 1) * self.of.window.dilations[0] + 1

    def rows(self, results: int) -> int:
        """Return how many rows neighbouring rows of results are made from."""
        return (results - 1) * self.of.window.strides[0] + self.reach

    def size(self, results: int) -> int:
        """Return the numbers of a copy for `results` rows of results."""
        return self.rows(results) * self.row_size

    def block(self, room: int, pixels: int) -> int:
        """Return the most rows of results whose copy has `room`, and of about `pixels`."""
        height, width = self.of.result
        most = max(1, min(height, -(-pixels // width)))
        while most > 1 and self.size(most) > room:
            most -= 1
        # Blocks of one size, as far as that goes.
        return -(-height // -(-height // most))

    def offset_of(self, e: Int8Emitter, pixel: Expr, pitch: int) -> Expr:
        """Return where the numbers begin that a pixel of the block's results reads.

        Args:
            e: The emitter that writes the statements.
            pixel: Number of the pixel.
            pitch: Numbers between rows.
        """
        window, width = self.of.window, self.of.result[1]
        row = e.share(e.divide_down(pixel, width))
        column = e.share(pixel - row * e.i64(width))
        down = row * e.i64(window.strides[0] * pitch)
        return e.share(down + column * e.i64(window.strides[1] * self.channels))


class PaddedRows:
    """A copy in the making: bytes with VNNI, 16 bits without.

    Args:
        e: The emitter that writes the statements.
        of: Its geometry.
        image: NHWC, uint8.
        zero: One uint8, the padding.
        results: Rows of results of a block.
    """

    def __init__(
        self, e: Int8Emitter, of: Padded, image: Buffer, zero: Expr, results: int
    ) -> None:
        self.e, self.of, self.image, self.zero = e, of, image, zero
        dtype = "uint8" if e.has_dot4 else "uint16"
        self.sink = e.aligned(of.size(results) + _OVERREAD, dtype)

    def copy(self, number: Expr, first: Expr, count: Expr) -> None:
        """Emit the copy for some rows of results.

        Args:
            number: The image's.
            first: The first row of results.
            count: Number of rows.
        """
        e, of = self.e, self.of
        stride, height = of.of.window.strides[0], of.of.image[0]
        top = e.share(first * e.i64(stride) - e.i64(of.of.window.pads[0]))
        base = e.share(number * e.i64(height))
        with e.loop(e.share((count - e.i64(1)) * e.i64(stride) + e.i64(of.reach))) as index:
            row = e.share(top + index)
            to = e.share(self.sink[1] + index * e.i64(of.row_size))
            with e.block() as inside:
                self._row(e.share(base + row), to)
            with e.block() as outside:
                self._fill(to, of.row_size)
            e.branch(e.both(row >= e.i64(0), row < e.i64(height)), inside, outside)

    def _row(self, row: Expr, to: Expr) -> None:
        e, of, width = self.e, self.of, self.of.of.image[1]
        before = min(of.of.window.pads[1], of.width)
        length = min(width, of.width - before)
        self._fill(to, before * of.channels)
        source = e.share(row * e.i64(width * of.channels))
        sink = e.share(to + e.i64(before * of.channels))

        def run(at: Expr, count: int) -> None:
            self._put(sink + at, self._read(source + at, count), count)

        self._runs(length * of.channels, run)
        after = e.share(sink + e.i64(length * of.channels))
        self._fill(after, (of.width - before - length) * of.channels)

    def _read(self, at: Expr, count: int) -> Expr:
        e = self.e
        if count == _BYTES:
            return e.sixty_four(self.image, at)
        value = e.part(self.image, at, count)
        if e.has_dot4:
            return value
        return e.cast(value, "uint16" if count == 1 else f"uint16x{count}")

    def _fill(self, to: Expr, size: int) -> None:
        """Emit `size` times the padding."""
        e = self.e
        zero = self.zero if e.has_dot4 else e.cast(self.zero, "uint16")

        def run(at: Expr, count: int) -> None:
            value = zero if count == 1 else e.tir.Broadcast(zero, count)
            self._put(to + at, value, count)

        self._runs(size, run)

    def _put(self, to: Expr, value: Expr, count: int) -> None:
        if count == _BYTES:
            self.e.put_bytes(self.sink[0], to, value)
        else:
            self.e.put(self.sink[0], to, value, count)

    def _runs(self, count: int, run: Callable[[Expr, int], None]) -> None:
        """Emit a run for each vector of `count` numbers, and for the powers of two left."""
        e, width = self.e, _BYTES if self.e.has_dot4 else VECTOR
        if count >= width:
            with e.loop(e.i64(count // width)) as index:
                run(e.share(index * e.i64(width)), width)
        done = count // width * width
        while count - done >= VECTOR:
            run(e.i64(done), VECTOR)
            done += VECTOR
        for offset, size in parts(count - done):
            run(e.i64(done + offset), size)

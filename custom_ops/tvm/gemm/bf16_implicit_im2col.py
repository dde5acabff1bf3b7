"""Convolutions of stride 1 as products that read an image where it lies.

The lines of an image, with zeros around them, follow each other in one copy. In it a pixel's patch
is a run of elements for each line of the filter, and the next pixel's lies one pixel further. So
the copy itself, read at the distance of one pixel, is the matrix A of each line of the filter, and
nothing is copied once for each element of the filter. The pixels between two lines are computed
like all others, and left out where results are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.sizes import Extent

from ...forms.gemm_bf16 import Patches
from .bf16_emitter import PAIRS, Bf16Emitter
from .bf16_im2col import clear_run, copy_run
from .bf16_plan import Bf16Plan
from .bf16_writer import Piece, Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# More pixels between the lines than that cost more than copying im2col rows.
_MOST_BETWEEN = 0.5
# Weights of up to this size are read again for each slice of lines.
_NEAR_WEIGHT_BYTES = 1280 * 1024
_COPY_BYTES, _NEAR_COPY_BYTES = 600 * 1024, 128 * 1024


@dataclass(frozen=True)
class Padded:
    """An image with zeros around it.

    Args:
        of: The convolution's geometry.
    """

    of: Patches

    @property
    def reach(self) -> int:
        """Lines that a patch covers in addition to its first one."""
        return self.of.window.dilations[0] * (self.of.window.kernel[0] - 1)

    @property
    def width(self) -> int:
        """Pixels of a line."""
        return self.of.result[1] + self.of.window.kernel[1] - 1

    @property
    def height(self) -> int:
        """Lines of an image."""
        return self.of.result[0] + self.reach

    @property
    def line_size(self) -> int:
        """Elements of a line."""
        return self.width * self.of.channels

    def lines(self, results: int) -> int:
        """Return how many lines some neighbouring lines of results are made from, at most."""
        images = 1 + -(-(results - 1) // self.of.result[0])
        return results + images * self.reach


class ImagePlan(Bf16Plan):
    """A convolution whose units are lines of the result, of one panel or of all."""

    @property
    def padded(self) -> Padded:
        """The image."""
        assert self.form.patches is not None
        return Padded(self.form.patches)

    @property
    def span(self) -> int:
        """All panels, if their weights are near."""
        size = self.depth * self.panels * PAIRS * 2
        return self.panels if size <= _NEAR_WEIGHT_BYTES else 1

    @property
    def block_rows(self) -> int:
        """Lines of results in a block."""
        room = (_NEAR_COPY_BYTES if self.span == self.panels else _COPY_BYTES) // 2
        lines = 1
        while self.padded.lines(lines + 1) * self.padded.line_size <= room:
            lines += 1
        return lines

    @property
    def unit_axes(self) -> tuple[Extent, ...]:
        """Of the results, without columns and their groups."""
        return self.form.leading[:-1]

    @property
    def rows_of_unit(self) -> int:
        """Pixels that are computed for a line."""
        return self.padded.width


def suits(plan: Bf16Plan) -> bool:
    """Say whether a product is such a convolution."""
    of = plan.form.patches
    if of is None or of.channels % PAIRS:
        return False
    window, padded = of.window, Padded(of)
    between = padded.width - of.result[1]
    is_small = padded.lines(1) * padded.line_size * 2 <= _COPY_BYTES
    is_plain = window.strides == (1, 1) and window.dilations[1] == 1
    return is_plain and is_small and between <= _MOST_BETWEEN * of.result[1]


class ImageWriter(Writer):
    """Writes the kernel of such a convolution; rows of a piece are lines of the results."""

    of: ImagePlan
    # The copy is near, so that a panel of the weight need not be.
    most_steps = 24

    @property
    def _stride(self) -> int:
        return self.of.padded.of.channels

    @property
    def _copy_size(self) -> int:
        return self.of.padded.lines(self.of.block_rows) * self.of.padded.line_size

    @property
    def _steps_of_line(self) -> int:
        """Steps along the depth for a line of the filter."""
        window = self.of.padded.of.window
        return window.kernel[1] * self.of.padded.of.channels // PAIRS

    @property
    def _parts_of_line(self) -> int:
        return -(-self._steps_of_line // self.most_steps)

    @property
    def _parts(self) -> int:
        return self.of.padded.of.window.kernel[0] * self._parts_of_line

    def _part(self, part: Expr) -> tuple[Expr, Expr, Expr]:
        e, padded = self.e, self.of.padded
        steps, parts = self._steps_of_line, self._parts_of_line
        most = -(-steps // parts)
        line = e.share(e.divide_down(part, parts))
        within = e.share((part - line * e.i64(parts)) * e.i64(most))
        length = e.share(e.minimum(e.i64(most), e.i64(steps) - within))
        down = e.i64(padded.of.window.dilations[0] * padded.line_size)
        return (
            e.share(line * e.i64(steps) + within),
            length,
            e.share(line * down + within * e.i64(PAIRS)),
        )

    def _line(self, result: Expr) -> Expr:
        """Return the line of all padded images that a line of results begins at."""
        e, padded = self.e, self.of.padded
        image = e.share(e.divide_down(result, padded.of.result[0]))
        return e.share(result + image * e.i64(padded.reach))

    def _copy_rows(self, piece: Piece, start: Expr, stop: Expr) -> None:
        """Emit the copy of the lines for the results `start` .. `stop` - 1 of a piece."""
        e, padded = self.e, self.of.padded
        assert self.copy is not None
        first = self._line(e.share(piece.above + start))
        last = self._line(e.share(piece.above + stop - e.i64(1)))
        with e.loop(e.share(last - first + e.i64(padded.reach + 1))) as index:
            to = e.share(self.copy[1] + index * e.i64(padded.line_size))
            self._copy_line(e, e.share(first + index), to)

    def _copy_line(self, e: Bf16Emitter, line: Expr, to: Expr) -> None:
        padded, of = self.of.padded, self.of.padded.of
        assert self.copy is not None
        sink, source = self.copy[0], self.buffers[self.form.a]
        (top, left), (height, width) = of.window.pads[:2], of.image
        image = e.share(e.divide_down(line, padded.height))
        offset = e.share(line - image * e.i64(padded.height) - e.i64(top))
        # Pads may also be negative, and cut.
        before, skipped = max(left, 0), max(-left, 0)
        length = min(width - skipped, padded.width - before)
        after = padded.width - before - length
        with e.block() as inside:
            clear_run(e, sink, to, before * of.channels)
            pixel = (image * e.i64(height) + offset) * e.i64(width) + e.i64(skipped)
            begin = e.share(to + e.i64(before * of.channels))
            count = length * of.channels
            copy_run(e, (source, pixel * e.i64(of.channels)), (sink, begin), count)
            end = e.share(begin + e.i64(count))
            clear_run(e, sink, end, after * of.channels)
        with e.block() as outside:
            clear_run(e, sink, to, padded.line_size)
        is_inside = e.both(offset >= e.i64(0), offset < e.i64(height))
        e.branch(is_inside, inside, outside)

    def _origin_of(self, piece: Piece) -> Expr:
        """Return the first line of the copy, among those of all padded images."""
        first = piece.above if self.of.groups > 1 else piece.above + piece.start
        return self._line(self.e.share(first))

    def _tile_panel(self, piece: Piece, width: int) -> None:
        """Emit all pixels from the first to the last result of the piece."""
        e, padded = self.e, self.of.padded
        origin = self._origin_of(piece)
        first = self._line(e.share(piece.above + piece.start))
        last = self._line(e.share(piece.above + piece.stop - e.i64(1)))
        start = e.share((first - origin) * e.i64(padded.width))
        stop = e.share((last - origin) * e.i64(padded.width) + e.i64(padded.of.result[1]))
        pixels = Piece(piece.block, piece.panel, origin, piece.high, start, stop)
        super()._tile_panel(pixels, width)

    def _result_row(self, piece: Piece, row: Expr) -> tuple[Expr, Expr | None]:
        """Return the result of a pixel of the copy; `piece.above` is the copy's first line."""
        e, padded = self.e, self.of.padded
        height, width = padded.of.result
        down = e.share(e.divide_down(row, padded.width))
        column = e.share(row - down * e.i64(padded.width))
        line = e.share(piece.above + down)
        image = e.share(e.divide_down(line, padded.height))
        offset = e.share(line - image * e.i64(padded.height))
        target = e.share((image * e.i64(height) + offset) * e.i64(width) + column)
        return target, e.both(column < e.i64(width), offset < e.i64(height))

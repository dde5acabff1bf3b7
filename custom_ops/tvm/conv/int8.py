"""Int8 convolutions of NHWC images: products whose rows are read from a copy of lines.

A region is `finish(ConvInteger(x, w))`: x uint8, w int8 in panels of 32 filters. What `finish` is:
`forms/gemm_int8.py`. The sums are exact, and the same tiles compute them as those of matrix
products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.int8_panels import GROUP, WIDTH, filter_layout, joined_groups, lines_of
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_tiles, has_vnni

from ...forms.gemm_int8 import Filters, Int8Form, read_int8
from ..gemm.int8 import LEVELS, finish_picoseconds, multiply_picoseconds
from ..gemm.int8_amx import AmxTiles
from ..gemm.int8_emitter import Int8Emitter
from ..gemm.int8_tiles import Depth, Int8Tiles, Opened
from ..tile.program import Panels
from ..tile.registers import VECTOR
from .int8_amx_strips import each_strip
from .int8_depthwise import DepthwiseWriter
from .int8_padded_rows import Padded, PaddedRows

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Numbers of a copy of lines that stay in the second level of cache, and the most on the stack.
_ROOM, _MOST = 128 * 1024, 384 * 1024
# Pixels of a block: its panels of weights are read once for all of them.
_PIXELS, _DEPTHWISE_PIXELS = 224, 128
# Places of a depthwise filter, each of which is code of its own: 31x31 takes 20 s to compile.
_MOST_TAPS = 400
# Of a number that is copied: each slice of units copies its lines.
_COPY_PICOSECONDS = 30
# Numbers of a panel, which without VNNI is copied to 16 bits on the stack.
_MOST_PAIRS = 8192


@dataclass(frozen=True)
class Int8Convolution:
    """One convolution of a region."""

    form: Int8Form

    @property
    def filters(self) -> Filters:
        """The geometry."""
        assert self.form.filters is not None
        return self.form.filters

    @property
    def padded(self) -> Padded:
        """What is copied."""
        return Padded(self.filters, self.form.depth)

    @property
    def block(self) -> int:
        """Rows of results of a unit."""
        pixels = _DEPTHWISE_PIXELS if self.filters.is_depthwise else _PIXELS
        return self.padded.block(_ROOM, pixels)

    def is_direct(self, level: str) -> bool:
        """Say whether rows are read where they lie: single pixels, in the type that they have."""
        window = self.filters.window
        has_bytes = has_vnni(level) or self.form.is_narrow
        if has_tiles(level) and self.group_depth % GROUP:
            return False
        return has_bytes and window.kernel == (1, 1) and not any(window.pads)

    @property
    def blocks(self) -> int:
        """Units of an image, for each panel."""
        return -(-self.filters.result[0] // self.block)

    @property
    def panels(self) -> Panels:
        """The panels of columns."""
        return Panels(self.form.columns, WIDTH // VECTOR)

    def depth_of(self, level: str) -> Depth:
        """Return what a row consists of on a level."""
        return Depth(self.group_depth) if self.is_direct(level) else self.depth

    @property
    def group_depth(self) -> int:
        """Channels of a group."""
        return self.form.depth // self.filters.groups

    @property
    def depth(self) -> Depth:
        """What a row consists of in a copy of lines."""
        window, channels = self.filters.window, self.form.depth
        lines, run = window.taps, self.group_depth
        if self.filters.groups == 1:
            lines, run = lines_of(window.kernel, window.dilations, channels)
        down, across = window.dilations[0] * self.padded.row_size, window.dilations[1] * channels
        height = window.kernel[0]
        return Depth(run, (height, lines // height), (down, across), is_padded=True)

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level not in LEVELS:
            return Refused(f"processors of level {level} have no int8 dot products")
        if self.padded.size(1) > _MOST:
            return Refused(f"lines of {self.padded.row_size} numbers, which are too long to copy")
        if self.filters.is_depthwise and self.filters.window.taps > _MOST_TAPS:
            return Refused(f"depthwise filters of {self.filters.window.taps} places")
        depth = self.depth.all_groups * GROUP
        if not has_vnni(level) and not self.filters.is_depthwise and depth > _MOST_PAIRS:
            return Refused(f"filters of {depth} numbers, more than {_MOST_PAIRS}, without VNNI")
        return None

    def launch(self, level: str) -> Launch:
        """Units are blocks of lines of a panel of columns, of a depthwise one of all."""
        of, batch = self.form, extent_of(self.form.signature.outputs[0].shape[0])
        pixels = self.block * self.filters.result[1]
        each, finish = multiply_picoseconds(of, level), finish_picoseconds(of)
        if self.filters.is_depthwise:
            # A fourth of the lanes of a group is wasted, and numbers are put side by side.
            cost = of.columns * (int(self.filters.window.taps * 4 * each) + finish)
            return Launch((batch, Extent(self.blocks)), Extent(pixels), cost)
        cost = int(WIDTH * self.depth.all_groups * GROUP * each) + WIDTH * finish
        units = batch, Extent(self.blocks), Extent(self.panels.count)
        copied = 0 if self.is_direct(level) else self.padded.size(self.block) // pixels
        return Launch(
            units, Extent(pixels), cost, slice_picoseconds=copied * _COPY_PICOSECONDS
        )  # fmt: skip

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        e = Int8Emitter(symbol, processor=level, is_narrow=self.form.is_narrow)
        if self.filters.is_depthwise:
            return DepthwiseWriter(e, self.form, self.padded, self.block).function()
        return _Writer(self, e, level).function()


class _Writer:
    """One kernel in the making."""

    def __init__(self, of: Int8Convolution, e: Int8Emitter, level: str) -> None:
        self.of, self.e, form = of, e, of.form
        self.buffers, self.begin, self.end = e.parameters(form.signature)
        self.padded_rows: PaddedRows | None = None
        if not of.is_direct(level):
            zero = e.u8(0) if form.zero is None else e.share(self.buffers[form.zero][e.i64(0)])
            self.padded_rows = PaddedRows(e, of.padded, self.buffers[form.x], zero, of.block)
        self.amx: AmxTiles | None = None
        if has_tiles(level):
            self.amx = AmxTiles(e, form, self.buffers, of.panels, of.depth_of(level))
        self.tiles = self.amx or Int8Tiles(e, form, self.buffers, of.panels, of.depth_of(level))
        self.copied = e.local(1, "int64")
        e.store(self.copied, e.i64(-1), e.i64(0))

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e, of = self.e, self.of
        height, width = of.filters.result
        with e.loop(self.end - self.begin) as index:
            unit = e.share(self.begin + index)
            block = e.share(e.divide_down(unit, of.panels.count))
            panel = e.share(unit - block * e.i64(of.panels.count))
            image = e.share(e.divide_down(block, of.blocks))
            first = e.share((block - image * e.i64(of.blocks)) * e.i64(of.block))
            count = e.share(e.minimum(e.i64(of.block), e.i64(height) - first))
            source = self._source(block, image, first, count)
            pixel = e.share((image * e.i64(height) + first) * e.i64(width))
            pixels = e.share(count * e.i64(width))
            self.tiles.each_panel(panel, partial(self._panel, source, pixel, pixels))
        if self.amx:
            self.amx.release()
        return e.function()

    def _source(self, block: Expr, image: Expr, first: Expr, count: Expr) -> tuple[Buffer, Expr]:
        """Return what rows are read from, and where the block begins there."""
        e, of = self.e, self.of
        if self.padded_rows is None:
            (height, width), down = of.filters.image, of.filters.window.strides[0]
            line = e.share(image * e.i64(height) + first * e.i64(down))
            return self.buffers[of.form.x], e.share(line * e.i64(width * of.form.depth))
        with e.block() as new:
            self.padded_rows.copy(image, first, count)
            e.store(self.copied, block, e.i64(0))
        e.when(e.not_equal(self.copied[e.i64(0)], block), new)
        return self.padded_rows.sink

    def _panel(self, source: tuple[Buffer, Expr], first: Expr, count: Expr, panel: Opened) -> None:
        e, (buffer, origin), padded = self.e, source, self.of.padded
        pitch = padded.row_size
        if self.padded_rows is None:
            pitch = self.of.filters.image[1] * self.of.form.depth

        if self.of.filters.groups > 1:
            each = self.of.form.columns // self.of.filters.groups
            group = e.divide_down(panel.column, each)
            origin = e.share(origin + group * e.i64(self.of.group_depth))

        if self.amx:
            each_strip(self.amx, self.of.filters, (buffer, origin, pitch), (first, count), panel)
            return

        def tile(index: Expr, height: int, origin: Expr = origin) -> None:
            pixels = [e.share(index + e.i64(r)) for r in range(height)]
            tops = [
                e.share(origin + padded.offset_of(e, offset_of, pitch)) for offset_of in pixels
            ]
            sinks = [
                e.share((first + item) * e.i64(self.of.form.columns) + panel.column)
                for item in pixels
            ]
            self.tiles.tile((buffer, tops), sinks, panel)

        height, width = self.of.filters.result
        known = {lines * width for lines in (self.of.block, height % self.of.block) if lines}
        self.tiles.each_tile(count, tile, known)


def match(signature: RegionSignature) -> Int8Convolution | Refused | None:
    """Return the region as an int8 convolution; None if it is something else."""
    form = read_int8(signature, "ConvInteger")
    return Int8Convolution(form) if isinstance(form, Int8Form) else form


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        multiply: A multiply-add.
        depthwise: One of a depthwise convolution.
        output: An element that is rounded and written.
        step: One that goes through a further operator on bytes.
        gather: A place of the filter for a pixel of few channels, or for one of its groups, which
            is copied by itself.
    """

    multiply: float
    depthwise: float
    output: float
    step: float
    gather: float


#: One thread of an EPYC with Zen 4 (VNNI), onnxruntime 1.31.1, layers of resnet50 and
#: mobilenet_v2, 2026-11-28. Further operators of ONNX Runtime are passes over memory.
_RUNTIME = Rates(1 / 223, 0.035, 0.081, 0.147, 1.3)
_OURS = Rates(1 / 229, 0.029, 0.075, 0.09, 0.0)
#: Without a rounding behind it ONNX Runtime's convolution is one of float32, at 57 products a
#: nanosecond; what follows it is pointwise.
_RUNTIME_FLOAT = Rates(1 / 57, 0.05, 0.4, 0.5, 0.0)
_OURS_FLOAT = replace(_OURS, output=0.15, step=0.25)
#: Channels of a pixel up to which ONNX Runtime copies places one by one.
_FEW = 4
#: Multiply-adds of ours in the time in which ONNX Runtime copies one pixel of one group.
_GATHERED = 290


def _takes(sizes: ConvSizes) -> bool | Refused:
    columns, depth = sizes.filters[:2]
    if not _is_depthwise(sizes) and _depth(sizes) > depth + _GATHERED * sizes.groups / columns:
        return Refused(
            f"its groups of {depth} channels and {columns // sizes.groups} filters leave most of a"
            " vector empty"
        )
    return True


def _is_depthwise(sizes: ConvSizes) -> bool:
    columns, depth = sizes.filters[:2]
    return sizes.groups == columns and depth == 1 and sizes.groups != 1


def _depth(sizes: ConvSizes) -> int:
    """Return the channels that a filter is multiplied with, those of zeros included."""
    return sizes.filters[1] * joined_groups(sizes.filters[0], sizes.groups)


def _estimate(sizes: ConvSizes) -> tuple[float, float]:
    before, after = (_RUNTIME, _OURS) if sizes.is_rounded else (_RUNTIME_FLOAT, _OURS_FLOAT)
    return _cost(sizes, sizes.filters[1], before), _cost(sizes, _depth(sizes), after)


def _cost(sizes: ConvSizes, depth: int, rates: Rates) -> float:
    columns, is_depthwise = sizes.filters[0], _is_depthwise(sizes)
    work = sizes.taps * (rates.depthwise if is_depthwise else depth * rates.multiply)
    if not is_depthwise and (depth <= _FEW or sizes.groups > 1):
        work += sizes.taps * rates.gather * sizes.groups / columns
    return sizes.outputs * (work + rates.output + max(0, sizes.steps - 1) * rates.step)


ANCHOR = ConvAnchor("int8_conv", _takes, filter_layout, _estimate, dtype="uint8")

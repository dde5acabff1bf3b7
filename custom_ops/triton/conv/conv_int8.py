"""Int8 convolutions of NHWC images: products of bytes on tensor cores, and what follows them.

A region is `finish(ConvInteger(x, w))`: x uint8, w int8. What `finish` is: `forms/gemm_int8.py`.
The sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.layouts.conv_filters import bytes_as_image
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import (
    Call,
    Map,
    Passed,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.triton.unsigned import unsigned_functions
from ortkit.operators.window import Window
from ortkit.refusal import Refused

from ...forms.gemm_int8 import Filters, Int8Form, read_int8
from ..alignment import UNALIGNED_ARCHITECTURES
from .conv_int8_hopper import hopper_variant, plan_of
from .conv_source import Source, spread
from .conv_tiles import UNALIGNED, Tile, power
from .conv_tma import Grid, box_of, grid_of
from .int8_finish import FinishWriter, whole_operands

#: Bytes that strides of maps are multiples of.
_VECTOR = 16
#: Fewer channels are gathered several taps at a time.
_FEW_CHANNELS = 16
#: Where the number of pixels is not known.
_NOMINAL_IMAGES = 32
#: Up to this many pixels tiles are small, so that there are enough of them.
_FEW_PIXELS = 1024
#: From this depth on a tile's products take longer than what follows them.
_DEEP = 1024
#: Positions of pixels have 32 bits.
_MOST_PIXELS = 2**31 - 1 - 256
_HOPPER = (90,)
#: Up to this many channels a convolution reads them outermost, as images come, if a step of its
#: window is over no more numbers.
_MOST_PLANAR_CHANNELS, _MOST_NUMBERS = 4, 256


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
    def planar(self) -> bool:
        """See `Imaged`."""
        return self.filters.is_planar

    @property
    def gate(self) -> int | None:
        """See `Imaged`."""
        return None

    @property
    def window(self) -> Window:
        """See `Imaged`."""
        return self.filters.window

    @property
    def image(self) -> tuple[Extent, Extent, int]:
        """See `Imaged`."""
        height, width = self.filters.image
        return Extent(height), Extent(width), self.form.depth

    @property
    def channels(self) -> int:
        """See `Imaged`."""
        return self.form.columns

    @property
    def output(self) -> TensorSpec:
        """See `Imaged`."""
        return self.form.signature.outputs[0]

    @property
    def pixels(self) -> Extent:
        """See `Imaged`."""
        return product(extent_of(size) for size in self.output.shape[:3])

    def variants(self) -> tuple[VariantSource, ...]:
        """Return kernels of boxes, the gathering one, and that for unaligned tensors."""
        plan, pixels = plan_of(self), self.pixels.static
        boxes: list[VariantSource | None] = []
        if plan is None:
            boxes = [self._boxes(_MOST_PIXELS)]
        else:
            # Without a number of pixels both are there.
            if pixels is None or pixels < plan.fewest_pixels:
                boxes.append(self._boxes(plan.fewest_pixels - 1))
            if pixels is None or pixels >= plan.fewest_pixels:
                boxes.append(hopper_variant(self, plan))
        source = self.source()
        assert isinstance(source, Source)
        aligned = self._gathered(source, self._tile(source), is_aligned=True)
        unaligned = self._gathered(source, UNALIGNED, is_aligned=False)
        return (*(each for each in boxes if each is not None), aligned, unaligned)

    # ---- gathered
    def source(self) -> Source | Refused:
        """Return what the product gathers: the image, or its space-to-depth."""
        form, window = self.form, self.window
        if self.planar:
            grid = form.given
            rounding = None if grid is None else (grid.scale, grid.zero)
            return spread(self, form.x, form.weight, ("uint8", "int8"), form.zero, rounding)
        return Source(
            Tensor(form.x), Tensor(form.weight), *self.image, self.form.depth, window.kernel,
            window.strides, window.dilations, window.pads[:2], window.is_point,
        )  # fmt: skip

    def _tile(self, source: Source) -> Tile:
        channels = source.channels
        depth = channels if channels >= _FEW_CHANNELS else 64
        columns = max(16, min(64, power(self.channels)))
        pixels = self.pixels.static or _FEW_PIXELS + 1
        # A first layer of 7 x 7 has four steps: 128 images take 188 microseconds alone, 210 with
        # three ahead, and the same within a net (H200, 2026-11).
        return Tile(
            32 if pixels <= _FEW_PIXELS else 128, columns, max(32, min(64, power(depth))), 4,
            4 if source.calls else 3,
        )  # fmt: skip

    def _gathered(self, source: Source, tile: Tile, *, is_aligned: bool) -> VariantSource:
        form = self.form
        finish = FinishWriter(form, None)
        text = finish.text()
        inputs = len(form.signature.inputs)
        arguments: tuple[Passed, ...] = (
            source.x, source.weight,
            None if form.zero is None else Tensor(form.zero), source.moved, Tensor(inputs),
            None if form.kept is None else Tensor(inputs + 1),
            *map(Tensor, finish.operands), Size(self.pixels), Size(source.height),
            Size(source.width), source.channels, source.pitch,
            *(Size(extent_of(size)) for size in self.output.shape[1:3]), self.channels,
            *source.kernel, *source.strides, *source.dilations, *source.pads,
            source.is_point, source.channels < _FEW_CHANNELS,
            tile.pixels, tile.channels, tile.depth,
        )  # fmt: skip
        grid = ((Extent(self.channels), tile.channels), (self.pixels, tile.pixels), (ONE, 1))
        call = Call(
            "conv_int8_kernel", arguments, grid, tile.warps, tile.stages, fp_fusion=False
        )  # fmt: skip
        conditions = (
            Condition(self.pixels, at_most=min(_MOST_PIXELS, MAX_GRID[1] * tile.pixels)),
        )
        # Launches without products of bytes have a text of their own: `is_unsigned` looks at it.
        before = (
            replace(each, text=kernel_text("space_to_depth_kernel")) for each in source.calls
        )
        module = _module("conv_int8_kernel", finish, text)
        return hand_variant(
            form.signature, (*before, call), module, conditions, is_aligned=is_aligned,
            architectures=None if is_aligned else UNALIGNED_ARCHITECTURES, scratch=source.scratch,
        )  # fmt: skip

    # ---- boxes
    def _box_tile(self, grid: Grid) -> Tile | None:
        """Return the tile of boxes; None where they do not reach what a step reads.

        Measured on an H200 (2026-11) for 128 images: short products are bound by what follows
        them, so that small tiles with few steps ahead are faster, of which more fit.
        """
        channels, taps = self.form.depth, self.window.taps
        step = max(32, min(128, power(channels)))
        if grid.strides != (1, 1):
            while channels % step:  # a box would reach into the next column
                step //= 2
        if step < 32:
            return None
        columns = max(16, min(128, power(self.channels)))
        if (self.pixels.static or _FEW_PIXELS + 1) <= _FEW_PIXELS:
            return Tile(64, min(32, columns), step, 4, 4)
        if taps * channels >= _DEEP:
            return Tile(64, columns, step, 4, 3)
        if self.channels > channels:
            return Tile(128, min(64, columns), step, 4, 2)
        return Tile(128, columns, step, 4, 3)

    def _boxes(self, most: int) -> VariantSource | None:
        form = self.form
        grid = grid_of(self, _VECTOR)
        # Copies have 0 outside of an image, and one result.
        if grid is None or form.zero is not None or form.kept is not None:
            return None
        tile = self._box_tile(grid)
        if tile is None:
            return None
        images, rows, columns = grid.pixels
        count = images.static or _NOMINAL_IMAGES
        side = columns.static or _NOMINAL_IMAGES * 1024
        box = box_of(count, rows.static or 1, side, tile.pixels)
        channels, out = Extent(form.depth), Extent(self.channels)
        taps = Extent(self.window.taps)

        def whole(tensor: int) -> Map:
            strides = (rows * columns * out, columns * out, out)
            return Map(tensor, (*grid.pixels, out), strides, (*box, tile.channels))

        finish = FinishWriter(form, f"{tile.pixels}, {tile.channels}")
        text = finish.text()
        maps = whole_operands(form)
        weight = Map(
            form.weight, (out, taps, channels), (taps * channels, channels),
            (tile.channels, 1, tile.depth),
        )  # fmt: skip
        arguments: tuple[Passed, ...] = (
            Map(form.x, *grid.source, (box[0], box[1], 1, box[2], tile.depth)), weight,
            whole(len(form.signature.inputs)),
            *(whole(each) if each in maps else Tensor(each) for each in finish.operands),
            Size(columns), form.depth, self.channels, *self.window.kernel, *grid.strides,
            *self.window.dilations, *self.window.pads[:2], *box, tile.channels, tile.depth,
        )  # fmt: skip
        image_grid = (columns, box[2])
        if rows.static != 1:
            assert columns.static is not None
            assert rows.static is not None
            image_grid = (Extent(-(-rows.static // box[1]) * -(-columns.static // box[2])), 1)
        call = Call(
            "conv_int8_box_kernel", arguments,
            ((Extent(-(-self.channels // tile.channels)), 1), image_grid, (images, box[0])),
            tile.warps, tile.stages, fp_fusion=False,
        )  # fmt: skip
        conditions = (
            Condition(self.pixels, at_most=most),
            Condition(image_grid[0], at_most=MAX_GRID[1] * image_grid[1]),
            Condition(images, at_most=MAX_GRID[2] * box[0]),
        )
        return hand_variant(
            form.signature, (call,), _module("conv_int8_tma_kernel", finish, text), conditions,
            architectures=_HOPPER, is_optional=True,
        )  # fmt: skip


def _module(name: str, finish: FinishWriter, text: str) -> str:
    """Return a kernel's text with what it calls; `operands` become those that `finish` has."""
    names = "".join(f"{name}, " for name in finish.read.values())
    kernel = kernel_text(name).replace("operands, ", names).replace("operands,\n", f"{names}\n")
    kernel = kernel.replace(", operands)", ", " + names.rstrip(", ") + ")")
    return kernel + "\n\n" + unsigned_functions() + text


def _takes(sizes: ConvSizes) -> bool | Refused:
    return sizes.groups == 1 or Refused("it has groups of channels")


def _takes_planar(sizes: ConvSizes) -> bool:
    """Say whether an image is read as it comes; a residual sum would read it as NHWC too."""
    numbers = sizes.given[1] * sizes.strides[0] * sizes.strides[1]
    is_first = sizes.given[1] <= _MOST_PLANAR_CHANNELS and sizes.made[1] != sizes.given[1]
    return sizes.groups == 1 and is_first and numbers <= _MOST_NUMBERS


PLANAR = ConvAnchor(
    "int8_conv", _takes_planar, bytes_as_image, dtype="uint8", has_points=True, is_planar=True,
    rounds=True,
)  # fmt: skip
ANCHOR = ConvAnchor("int8_conv", _takes, bytes_as_image, dtype="uint8", has_points=True)


def match(signature: RegionSignature) -> Int8Convolution | Refused | None:
    """Return the region as an int8 convolution; None if it is something else."""
    found = read_int8(signature, "ConvInteger", bytes_as_image, takes_planar=True)
    if found is None or isinstance(found, Refused):
        return found
    if found.filters is None or found.filters.groups != 1 or found.filters.is_depthwise:
        return Refused("a convolution of groups of channels in bytes")
    made = Int8Convolution(found)
    source = made.source()
    return source if isinstance(source, Refused) else made

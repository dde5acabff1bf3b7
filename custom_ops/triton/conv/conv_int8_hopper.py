"""Short convolutions of bytes on Hopper: their tiles, and the launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Map, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.gemm_int8 import Int8Form
from .conv_tiles import PROCESSORS, power
from .conv_tma import Grid, box_of, grid_of
from .imaged import Imaged
from .int8_finish import FinishWriter, whole_operands

#: Bytes that strides of maps are multiples of.
_VECTOR = 16
_WARPS = 4
#: Where the number of images is not known.
_NOMINAL_IMAGES = 32
#: Positions of pixels have 32 bits.
_MOST_PIXELS = 2**31 - 1 - 256
#: Tiles, of these pixels by these channels. With 64 by 128 128 images of 56 x 56 or 28 x 28 take a
#: tenth longer (H200, 2026-11).
_PIXELS, _CHANNELS = 128, 64
#: Shared memory of a multiprocessor; what each block takes of it further, and barriers.
_SHARED, _FURTHER = 233472, 1024 + 256
#: Blocks of a multiprocessor, most first.
_BESIDE = (4, 3, 2)
#: Registers of a multiprocessor.
_REGISTERS = 65536


@dataclass(frozen=True)
class Tile:
    """One way to cut a convolution.

    Args:
        depth: Of a step.
        beside: Blocks of a multiprocessor.
    """

    depth: int
    beside: int


class Int8Conv(Imaged, Protocol):
    """What is asked of a convolution here."""

    @property
    def form(self) -> Int8Form:
        """What is computed."""


@dataclass(frozen=True)
class Plan:
    """How a convolution is launched.

    Args:
        grid: The pixels as boxes see them.
        extra: The input of the result's shape that is read; None if there is none.
        tile: How it is cut.
        across: Tiles of channels.
        blocks: Of threads, a multiple of that.
    """

    grid: Grid
    extra: int | None
    tile: Tile
    across: int
    blocks: int

    @property
    def fewest_pixels(self) -> int:
        """From how many pixels on it is used: blocks without further tiles gain nothing."""
        return 2 * self.blocks // self.across * _PIXELS


def _tile_of(conv: Int8Conv, *, has_extra: bool) -> Tile | None:
    depth, taps = conv.form.depth, conv.window.taps
    step = max(32, min(128, power(depth)))
    steps = taps * -(-depth // step)
    shared = steps * (_CHANNELS + _PIXELS) * step + _PIXELS * _CHANNELS * (1 + has_extra)
    fitting = (each for each in _BESIDE if each * (shared + _FURTHER) <= _SHARED)
    beside = next(fitting, None)
    return None if beside is None else Tile(step, beside)


def plan_of(conv: Int8Conv) -> Plan | None:
    """Return the plan; None where another kernel is faster, or takes what this one does not."""
    form = conv.form
    grid = grid_of(conv, _VECTOR)
    # Copies have 0 outside of an image, and one result. Long products bound others.
    if grid is None or form.zero is not None or form.kept is not None:
        return None
    if conv.channels % _CHANNELS or conv.channels <= form.depth * conv.window.taps:
        return None
    wholes = whole_operands(form)
    specs = (*form.signature.inputs, *form.signature.outputs)
    made = len(form.signature.inputs)
    if len(wholes) > 1 or {specs[each].dtype for each in (*wholes, made)} != {"uint8"}:
        return None
    tile = _tile_of(conv, has_extra=bool(wholes))
    if tile is None:
        return None
    if grid.strides != (1, 1) and form.depth % tile.depth:
        return None  # a box would reach into the next column
    across = conv.channels // _CHANNELS
    blocks = PROCESSORS * tile.beside // across * across
    return Plan(grid, next(iter(wholes), None), tile, across, blocks) if blocks else None


def hopper_variant(conv: Int8Conv, plan: Plan) -> VariantSource:
    """Return the kernel."""
    form, window, grid, tile = conv.form, conv.window, plan.grid, plan.tile
    result, out = len(form.signature.inputs), conv.channels
    images, rows, columns = grid.pixels
    side = columns.static or _NOMINAL_IMAGES * 1024
    box = box_of(images.static or _NOMINAL_IMAGES, rows.static or 1, side, _PIXELS)
    depth = Extent(window.taps * form.depth)

    def whole(tensor: int) -> Map:
        channels = Extent(out)
        strides = (rows * columns * channels, columns * channels, channels)
        return Map(tensor, (*grid.pixels, channels), strides, (*box, _CHANNELS))

    # See the kernel: channels of a tile are 4 runs, which are read in turns.
    run = _CHANNELS // 4
    weight = Map(
        form.weight, (*map(Extent, (plan.across, run // 2, 4, 2)), depth),
        tuple(Extent(each) * depth for each in (_CHANNELS, 2, run, 1)),
        (1, run // 2, 4, 2, tile.depth),
    )  # fmt: skip
    finish = FinishWriter(form, None, is_gluon=True)
    text = finish.text()
    arguments: tuple[Passed, ...] = (
        Map(form.x, *grid.source, (box[0], box[1], 1, box[2], tile.depth)), weight,
        whole(result), whole(result if plan.extra is None else plan.extra),
        *map(Tensor, finish.operands), *map(Size, grid.pixels), form.depth, out,
        *window.kernel, *grid.strides, *window.dilations, *window.pads[:2], *box,
        _CHANNELS, tile.depth, plan.extra is not None,
    )  # fmt: skip
    # Warps that copy give registers to those that compute.
    threads = 2 * _WARPS * 32
    call = Call(
        "conv_int8_hopper_kernel", arguments,
        ((Extent(plan.blocks), 1), (ONE, 1), (ONE, 1)), _WARPS, is_gluon=True, workers=_WARPS,
        fp_fusion=False,
        registers=_REGISTERS // (tile.beside * threads) // 8 * 8,
    )  # fmt: skip
    return hand_variant(
        form.signature, (call,), _module(finish, text),
        (Condition(conv.pixels, at_most=_MOST_PIXELS),), architectures=(90,), is_optional=True,
    )  # fmt: skip


def _module(finish: FinishWriter, text: str) -> str:
    names = "".join(f"{name}, " for name in finish.read.values()).rstrip()
    return kernel_text("conv_int8_hopper_kernel").replace("finish_operands,", names) + text

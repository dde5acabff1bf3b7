"""Convolutions of NHWC tensors in half precision, as a region's body has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ortkit.kernels.layouts.conv_filters import as_image, channels_last
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.emit import Emitter
from ortkit.kernels.triton.expr import Expr, bare
from ortkit.kernels.triton.hand import Call, Passed, Scratch, Size, Tensor
from ortkit.refusal import Refused

from . import conv as convolution
from .conv import Convolution, packed_weight, read_convolution
from .epilogue import Epilogue

HALF_DTYPES = ("float16", "bfloat16")
#: Elements whose parts a block adds up, where there are few, and otherwise. With this many blocks,
#: about one for each multiprocessor, the next launch may begin at once: its blocks spread as
#: evenly as without. With half as many that took up to a microsecond more than it saved (H200,
#: 2026-11).
_FEW_SUMMED, _SUMMED, _EVEN = 256, 512, range(66, 133)


@dataclass(frozen=True)
class HalfConvolution(Convolution):
    """A convolution of tensors of one type of half precision.

    Args:
        weight: The input [O, KH, KW, C], of a depthwise one [KH, KW, 1, C].
    """

    weight: int

    @property
    def image(self) -> tuple[Extent, Extent, int]:
        """Height, width and channels of x."""
        height, width, channels = (2, 3, 1) if self.planar else (1, 2, 3)
        shape = self.input.shape
        return extent_of(shape[height]), extent_of(shape[width]), _known(shape[channels])

    @property
    def pixels(self) -> Extent:
        """Of the result, of all images."""
        return product(extent_of(size) for size in self.output.shape[:3])


def read_half(signature: RegionSignature) -> HalfConvolution | Refused | None:
    """Return the region as a convolution in half precision; None if it is something else."""
    found = read_convolution(signature, signature.outputs[0].dtype)
    if found is None or isinstance(found, Refused):
        return found
    if refused := unfit(signature):
        return refused
    if found.groups != 1 and not found.groups == found.depth == found.channels:
        return Refused("a convolution of groups of several channels")
    layout, channels = (as_image, 0) if found.groups == 1 else (channels_last, 1)
    weight = packed_weight(found, layout, channels)
    if weight is None:
        return Refused("a convolution whose weight is computed")
    given = {each.name: getattr(found, each.name) for each in fields(found)}
    half = HalfConvolution(**given, weight=weight)
    return _misfit(half) or half


def unfit(signature: RegionSignature) -> Refused | None:
    """Say why a region's tensors are not what these kernels work on; None if they are."""
    dtype = signature.outputs[0].dtype
    return convolution.unfit(signature, (dtype,) if dtype in HALF_DTYPES else ())


def epilogue_text(
    name: str,
    epilogue: Epilogue,
    extras: int = 1,
    *,
    is_rough: bool = False,
    is_gluon: bool = False,
) -> str:
    """Return a function of the result and `extras` further operands, in float32.

    Args:
        name: Of the function.
        epilogue: What the epilogue computes.
        extras: Number of additional operands.
        is_rough: With the device's own exponential and quotient, for results in half precision: a
            quotient rounded to the last bit of float32 is a call that 60 registers are kept for.
        is_gluon: In Gluon, which is rough in any case.
    """
    e = Emitter(is_rough=is_rough or is_gluon)
    others = [Expr(f"b{number}", "float32") for number in range(extras)]
    result = epilogue.write(e, Expr("a", "float32"), others[: len(epilogue.extras)])
    lines = [*e.lines, f"return {bare(result.text)}"]
    parameters = ", ".join(["a", *(other.text for other in others)])
    text = "\n".join(
        [
            "",
            "",
            "@triton.jit",
            f"def {name}({parameters}):",
            *(f"    {line}" for line in lines),
            "",
        ]
    )
    if e.is_rough:
        text = text.replace("tl.div_rn(", "tl.fdiv(")
    if not is_gluon:
        return text
    text = text.replace("@triton.", "@gluon.")
    # A number of Triton's has a layout in Gluon, which a plain one takes from what it meets.
    text = re.sub(r"\btl\.full\(\(\), ([^,]+), tl\.float32\)", r"\1", text)
    return re.sub(r"\btl\.", "gl.", text)


def optional(index: int | None) -> Tensor | None:
    """Return an input as a kernel's argument, None if there is none."""
    return None if index is None else Tensor(index)


def sum_call(conv: HalfConvolution, parts: Scratch, split: int) -> tuple[Call, Extent]:
    """Return the launch of `conv_sum_kernel` and the bytes of the parts that it adds up.

    Args:
        conv: What is computed.
        parts: Of the sums, float32.
        split: How many there are.
    """
    size = conv.pixels * Extent(conv.channels)
    is_few = size.static is not None and size.static <= _FEW_SUMMED * _EVEN[-1]
    summed = _FEW_SUMMED if is_few else _SUMMED
    arguments: tuple[Passed, ...] = (
        parts, optional(conv.bias), optional(next(iter(conv.epilogue.extras), None)),
        Tensor(len(conv.signature.inputs)), Size(conv.pixels), conv.channels, split, summed,
    )  # fmt: skip
    grid = ((size, summed), (ONE, 1), (ONE, 1))
    is_light = -(-(size.static or 0) // summed) in _EVEN
    call = Call("conv_sum_kernel", arguments, grid, warps=4, stages=1, is_light=is_light)
    return call, Extent(4 * split) * size


def _misfit(conv: HalfConvolution) -> Refused | None:
    if len(conv.epilogue.extras) > 1:
        return Refused("more than one further operand")
    if conv.gate is not None and not conv.window.is_point:
        return Refused("a gate of something else than single pixels")
    return None


def _known(size: int | str) -> int:
    assert isinstance(size, int)
    return size

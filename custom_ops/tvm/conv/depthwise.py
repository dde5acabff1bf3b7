"""Depthwise convolutions of NHWC tensors: vectors of channels, with bias, epilogue, row means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import channels_last
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, known, product
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_bf16

from ...forms.body import integer
from ...forms.conv import Convolution, packed_weight, read_convolution
from ..gemm.bf16_emitter import Bf16Emitter
from ..tile.emitter import TileEmitter
from ..tile.program import ConvKernel, Tuned
from .depthwise_row import TILE, Filter, Row, Sink, Source, row_taps

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


_PICOSECONDS_PER_MULTIPLY = 25
# See `rates`: of a multiply-add.
_RUNTIME_NS, _OURS_NS = 1 / 33, 1 / 45


@dataclass(frozen=True)
class DepthwiseConv(Tuned, ConvKernel):
    """One filter for each channel: NHWC, as many groups as channels in and out.

    Its weight is float32 [kh, kw, 1, C]. `pixels` of a row are computed together, at most.

    Args:
        means: Whether a second output has the means of the result's rows, [N, OH, C].
    """

    parameters = ("pixels",)

    means: bool

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        window = self.conv.window
        return f"depthwise,{'x'.join(map(str, window.kernel))},stride {window.strides[1]}"

    @property
    def _sizes(self) -> tuple[int, int]:
        width, columns = known((self.conv.input.shape[2], self.conv.output.shape[2]))
        return width, columns

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, *_ = self.conv.output.shape
        points = product(extent_of(size) for size in self.conv.output.shape[2:])
        cost = self.conv.window.taps * _PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        return Launch((extent_of(batch), extent_of(height)), points, cost, ())

    def filter_of(self, buffers: list[Buffer]) -> Filter:
        """Return what is applied to every row, given the kernel's tensors."""
        width, columns = self._sizes
        conv = self.conv
        bias = None if conv.bias is None else buffers[conv.bias]
        extras = tuple(buffers[extra] for extra in conv.epilogue.extras)
        return Filter(
            conv.window, width, columns, conv.channels, buffers[self.weight], bias, conv.epilogue,
            extras, self.pixels or TILE,
        )  # fmt: skip

    def emitter(self, symbol: str, level: str) -> TileEmitter:
        """Return what writes the function: where results are rounded, it may know how."""
        rounds = self.conv.output.dtype == "bfloat16" and has_bf16(level)
        return (Bf16Emitter if rounds else TileEmitter)(symbol, processor=level)

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a row of the result."""
        (unit, image, row), height = at, e.extent(self.conv.input.shape[1])
        (width, columns), channels = self._sizes, self.conv.channels
        window, output = self.conv.window, len(self.signature.inputs)
        top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
        start = e.share((image * height + top) * e.i64(width * channels))
        pitch = e.i64(window.dilations[0] * width * channels)
        taps = row_taps(e, window, top, height)
        sink = e.share(unit * e.i64(columns * channels))
        to = e.share(unit * e.i64(channels))
        means = (buffers[output + 1], to) if self.means else None
        x, dtype = buffers[self.conv.x], self.conv.input.dtype
        Row(
            e,
            self.filter_of(buffers),
            Source(x, channels, lambda tap: start + tap * pitch, taps, dtype),
            Sink(buffers[output], sink, e.i64(0), channels, means, self.conv.output.dtype),
        ).emit()


def match(signature: RegionSignature) -> DepthwiseConv | Refused | None:
    """Return the region as a depthwise convolution; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if conv.planar or conv.groups == 1 or conv.groups != conv.input.shape[3]:
        return None
    if conv.gate is not None:
        return Refused("a depthwise convolution of gated values")
    return depthwise_of(conv, conv.groups)


def depthwise_of(conv: Convolution, channels: int) -> DepthwiseConv | Refused:
    """Return a convolution of this many channels as a depthwise one, or why it is none."""
    signature = conv.signature
    if channels != conv.groups or channels != conv.channels:
        return Refused("a depthwise convolution with several filters for a channel")
    weight = packed_weight(conv, channels_last, 1)
    if weight is None:
        return Refused("a depthwise weight that is not [kh, kw, 1, C]")
    if not all(isinstance(shape[2], int) for shape in (conv.input.shape, conv.output.shape)):
        return Refused("a depthwise convolution over rows of a width that is not known")
    if len(signature.outputs) > 1 and conv.output.dtype != "float32":
        return Refused("a depthwise convolution with means, and a result in bfloat16")
    if 0 in conv.output.shape:
        return Refused("an empty result")
    means = len(signature.outputs) == 2
    if len(signature.outputs) > 1 and not (means and _has_means(conv)):
        return Refused("a depthwise convolution with a second result that is not its rows' means")
    return DepthwiseConv(conv, weight, means)


def _takes(sizes: ConvSizes) -> bool | Refused:
    if sizes.groups == 1 or sizes.groups != sizes.given[1]:
        return False
    if sizes.filters[0] != sizes.given[1]:
        return Refused("it has several filters for a channel")
    return True


def _estimate(sizes: ConvSizes) -> tuple[float, float]:
    multiplies = sizes.outputs * sizes.taps
    return multiplies * _RUNTIME_NS, multiplies * _OURS_NS


ANCHOR = ConvAnchor("depthwise_conv", _takes, channels_last, _estimate, is_narrow=True)


def _has_means(conv: Convolution) -> bool:
    """Say whether the second output is Transpose(ReduceMean(result over W)), [N, OH, C]."""
    body = conv.body
    source = body.transposed(body.function.output[1], (0, 2, 1))
    node = None if source is None else body.producer(source, "ReduceMean")
    if node is None or node.input[0] != conv.result:
        return False
    return body.axes(node) == (3,) and integer(node, "keepdims", 1) == 0

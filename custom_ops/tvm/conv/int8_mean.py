"""Means of NHWC images of bytes, rounded to a grid of their own: exact sums of each channel.

A region is `QLinearGlobalAveragePool (x, scale, zero, scale, zero)` with `channels_last`. Results
are ONNX Runtime's to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, known
from ortkit.refusal import Refused

from ...forms.body import Body, integer
from ...forms.gemm_int8 import MICROSOFT
from ..gemm.int8 import LEVELS
from ..gemm.int8_emitter import Int8Emitter
from ..tile.emitter import parts
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Channels that are added up together: a line of the cache.
_CHANNELS = 64
_PICOSECONDS_PER_BYTE = 40
# Of bytes, so that sums lie in 31 bits.
_MOST_PIXELS = 1 << 22
_INPUTS = ("uint8", "float32", "uint8", "float32", "uint8")


@dataclass(frozen=True)
class Int8Mean:
    """Means over lines and pixels.

    Args:
        signature: Of x uint8 [N, H, W, C] and the result, uint8 [N, 1, 1, C]; all sizes but N are
            known.
        indices: The inputs that are x, its scale and zero point, and those of the result.
    """

    signature: RegionSignature
    indices: tuple[int, ...]

    @property
    def _sizes(self) -> tuple[int, int]:
        """Pixels and channels of an image."""
        height, width, channels = known(self._x.shape[1:])
        return height * width, channels

    @property
    def _x(self) -> TensorSpec:
        return self.signature.inputs[self.indices[0]]

    @property
    def _groups(self) -> int:
        return -(-self._sizes[1] // _CHANNELS)

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level not in LEVELS:
            return Refused(f"means of bytes for processors of level {level}")
        return None

    def launch(self, level: str) -> Launch:
        """Units are 64 channels of an image."""
        del level
        batch = extent_of(self._x.shape[0])
        cost = self._sizes[0] * _PICOSECONDS_PER_BYTE
        return Launch((batch, Extent(self._groups)), Extent(_CHANNELS), cost)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        e = Int8Emitter(symbol, processor=level)
        parameters, begin, end = e.parameters(self.signature)
        buffers = [*(parameters[offset] for offset in self.indices), parameters[-1]]
        (pixels, channels), first = self._sizes, e.i64(0)
        scales = [buffers[number][first] for number in (1, 3)]
        zeros = [e.cast(buffers[number][first], "int32") for number in (2, 4)]
        off = e.share(zeros[0] * e.i32(pixels))
        scale = e.share(scales[0] / (scales[1] * e.f32(float(pixels))))
        to = _Grid(off, scale, e.share(zeros[1]))
        units = extent_of(self._x.shape[0]), Extent(self._groups)
        last = channels - (self._groups - 1) * _CHANNELS
        with e.loop(end - begin) as index:
            image, group = e.decode(begin + index, units)
            column = e.share(group * e.i64(_CHANNELS))
            source = e.share(image * e.i64(pixels * channels) + column)
            sink = e.share(image * e.i64(channels) + column)

            def some(count: int, source: Expr = source, sink: Expr = sink) -> None:
                self._channels(e, (buffers[0], source), (buffers[-1], sink), count, to)

            e.peel_last(group, self._groups, _CHANNELS, last, some)
        return e.function()

    def _channels(
        self,
        e: Int8Emitter,
        source: tuple[Buffer, Expr],
        sink: tuple[Buffer, Expr],
        count: int,
        to: _Grid,
    ) -> None:
        """Emit the means of neighbouring channels, given where they begin."""
        pixels, channels = self._sizes
        vectors = _vectors(count)
        sums = [e.begin_sum() for _ in vectors]
        with e.loop(e.i64(pixels)) as pixel:
            offset = e.share(source[1] + pixel * e.i64(channels))
            for total, (start, lanes) in zip(sums, vectors, strict=True):
                with e.lanes(lanes) as lane:
                    value = e.cast(source[0][offset + e.i64(start) + lane], "int32")
                    e.store(total, total[lane] + value, lane)
        for total, (start, lanes) in zip(sums, vectors, strict=True):
            value = to.rounded(e, e.sums(total))
            e.put_sixteen(sink[0], e.share(sink[1] + e.i64(start)), value, lanes, "uint8")


@dataclass(frozen=True)
class _Grid:
    """What sums are rounded to.

    Args:
        off: Subtracted from them, int32.
        scale: Of the result's numbers, float32.
        zero: Of the result, int32.
    """

    off: Expr
    scale: Expr
    zero: Expr

    def rounded(self, e: Int8Emitter, sums: Expr) -> Expr:
        """Return 16 numbers, int32."""
        zero = e.cast(self.zero, "float32")
        low, high = (e.tir.Broadcast(e.f32(end) - zero, VECTOR) for end in (0.0, 255.0))
        moved = e.share_row(sums - e.tir.Broadcast(self.off, VECTOR), VECTOR, "int32")
        scaled = e.cast(moved, f"float32x{VECTOR}") * e.tir.Broadcast(self.scale, VECTOR)
        found = e.nearest_within(e.fenced(scaled), low, high)
        return e.share_row(found + e.tir.Broadcast(self.zero, VECTOR), VECTOR, "int32")


def _vectors(count: int) -> list[tuple[int, int]]:
    """Return the first channel and the lanes of vectors that make up some channels."""
    whole = count // VECTOR * VECTOR
    rest = [(whole + start, lanes) for start, lanes in parts(count - whole)]
    return [*((start, VECTOR) for start in range(0, whole, VECTOR)), *rest]


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return nanoseconds by bytes of the image; one thread of an EPYC with Zen 4, 2026-11-28."""
    return 0.1 * sizes.given, 0.04 * sizes.given


_OPERATORS = (
    ("", "GlobalAveragePool"),
    ("", "ReduceMean"),
    (MICROSOFT, "QLinearGlobalAveragePool"),
)
ANCHOR = ImageAnchor(
    "int8_mean", _OPERATORS, "ortkit.fusion.conv.int8_images:ImagesOfBytes", estimate,
    alone="means and products of images",
)  # fmt: skip


def match(signature: RegionSignature) -> Int8Mean | Refused | None:
    """Return the region as means of images of bytes; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("QLinearGlobalAveragePool", MICROSOFT)
    if len(nodes) != 1:
        return None
    (node,) = nodes
    is_alone = len(body.function.node) == 1 and set(node.input) == set(body.inputs)
    if not is_alone or integer(node, "channels_last", 0) != 1:
        return Refused("means of bytes with more around them, or not in NHWC")
    indices = tuple(body.inputs[name] for name in node.input)
    if tuple(signature.inputs[offset].dtype for offset in indices) != _INPUTS:
        return Refused("means of other types than uint8")
    shape, made = signature.inputs[indices[0]].shape, signature.outputs[0].shape
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return Refused("means of images of unknown size")
    if 0 in shape or made != (shape[0], 1, 1, shape[3]):
        return Refused("means of nothing")
    found = Int8Mean(signature, indices)
    if found._sizes[0] > _MOST_PIXELS:
        return Refused(f"means of more than {_MOST_PIXELS} pixels")
    return found

"""Products of images of bytes in NHWC: by one number of each channel, or by another image.

A region is `QLinearMul (x, scale, zero, by, scale, zero, scale, zero)`, as it ends
squeeze-and-excite. Results are ONNX Runtime's to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, known
from ortkit.refusal import Refused

from ...forms.body import Body
from ...forms.gemm_int8 import MICROSOFT
from ..gemm.int8 import LEVELS
from ..gemm.int8_emitter import Int8Emitter
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

_PICOSECONDS_PER_BYTE = 100
_OPERAND = ("uint8", "float32", "uint8")
_INPUTS = (*_OPERAND, *_OPERAND, "float32", "uint8")
_FLOATS = f"float32x{VECTOR}"


@dataclass(frozen=True)
class Int8Scale:
    """A product of bytes.

    Args:
        signature: Of x uint8 [N, H, W, C]; what it is multiplied by, uint8 [N, 1, 1, C] or of x's
            sizes; and the result, of x's sizes. All sizes but N are known.
        indices: The inputs that are x, its scale and zero point, the other operand with its own,
            and the scale and zero point of the result.
    """

    signature: RegionSignature
    indices: tuple[int, ...]

    def _operand(self, number: int) -> TensorSpec:
        return self.signature.inputs[self.indices[number]]

    @property
    def _sizes(self) -> tuple[int, int, int]:
        height, width, channels = known(self._operand(0).shape[1:])
        return height, width, channels

    @property
    def _is_by_channel(self) -> bool:
        return self._operand(3).shape != self._operand(0).shape

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level not in LEVELS:
            return Refused(f"products of images of bytes for processors of level {level}")
        return None

    def launch(self, level: str) -> Launch:
        """Units are lines."""
        del level
        height, width, channels = self._sizes
        batch = extent_of(self._operand(0).shape[0])
        return Launch(
            (batch, Extent(height)), Extent(width * channels), _PICOSECONDS_PER_BYTE
        )  # fmt: skip

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        e = Int8Emitter(symbol, processor=level)
        parameters, begin, end = e.parameters(self.signature)
        buffers = [*(parameters[offset] for offset in self.indices), parameters[-1]]
        height, width, channels = self._sizes
        batch, first = extent_of(self._operand(0).shape[0]), e.i64(0)
        zeros = [e.share(e.cast(buffers[number][first], "float32")) for number in (2, 5, 7)]
        scale = e.share(buffers[1][first] * buffers[4][first])
        scale = e.share(scale / buffers[6][first])
        with e.loop(end - begin) as index:
            image, line = e.decode(begin + index, (batch, Extent(height)))
            start = e.share((image * e.i64(height) + line) * e.i64(width * channels))

            def block(at: Expr, lanes: int, start: Expr = start, image: Expr = image) -> None:
                offset = e.share(start + at)
                by = None
                if self._is_by_channel:
                    row = e.share(image * e.i64(channels) + at)
                    by = self._moved(e, buffers[3], row, lanes, zeros[1])
                with e.loop(e.i64(width)) as column:
                    to = e.share(offset + column * e.i64(channels))
                    x = self._moved(e, buffers[0], to, lanes, zeros[0])
                    factor = self._moved(e, buffers[3], to, lanes, zeros[1]) if by is None else by
                    # The product of bytes is exact; the scale rounds it, and so does the sum.
                    scaled = e.fenced(x * factor * e.tir.Broadcast(scale, VECTOR))
                    moved = scaled + e.tir.Broadcast(zeros[2], VECTOR)
                    ends = [e.tir.Broadcast(e.f32(item), VECTOR) for item in (0.0, 255.0)]
                    made = e.share_row(e.nearest_within(moved, *ends), VECTOR, "int32")
                    e.put_sixteen(buffers[8], to, made, lanes, "uint8")

            e.each_block(channels, block)
        return e.function()

    def _moved(self, e: Int8Emitter, bytes_: Buffer, at: Expr, lanes: int, zero: Expr) -> Expr:
        """Return 16 float32: bytes without their zero point."""
        wide = e.cast(e.sixteen(bytes_, at, lanes, "uint8"), _FLOATS)
        return e.share_row(wide - e.tir.Broadcast(zero, VECTOR), VECTOR, "float32")


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return nanoseconds by bytes of the image; one thread of an EPYC with Zen 4, 2026-11-28."""
    return 0.3 * sizes.given, 0.1 * sizes.given


_OPERATORS = (("", "Mul"), (MICROSOFT, "QLinearMul"))
ANCHOR = ImageAnchor(
    "int8_scale", _OPERATORS, "ortkit.fusion.conv.int8_images:ImagesOfBytes", estimate,
    alone="means and products of images",
)  # fmt: skip


def match(signature: RegionSignature) -> Int8Scale | Refused | None:
    """Return the region as a product of images of bytes; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("QLinearMul", MICROSOFT)
    if len(nodes) != 1 or len(body.function.node) != 1:
        return None
    if set(nodes[0].input) != set(body.inputs):
        return Refused("a product of bytes with constants")
    indices = tuple(body.inputs[name] for name in nodes[0].input)
    if tuple(signature.inputs[offset].dtype for offset in indices) != _INPUTS:
        return Refused("a product of other types than uint8")
    shape, by = (signature.inputs[indices[number]].shape for number in (0, 3))
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return Refused("a product of images of unknown size")
    if 0 in shape or signature.outputs[0].shape != shape:
        return Refused("a product of nothing, or that is larger than its first operand")
    if by not in (shape, (shape[0], 1, 1, shape[3])):
        return Refused("a product of an image and what is no row of channels")
    return Int8Scale(signature, indices)

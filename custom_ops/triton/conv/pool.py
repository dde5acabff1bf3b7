"""MaxPool of NHWC tensors."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.cuda import Condition
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import Call, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.operators.window import Window
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import TO_NCHW, TO_NHWC, Body, integer
from ...forms.conv import window_of
from ...forms.conv_half import unfit
from ..alignment import for_any_alignment
from .conv_tiles import power
from .depthwise import block_of, bound_of

_MOST_TAPS = 64
#: From this many rows of pixels on blocks are large.
_MANY_LINES = 1056


@dataclass(frozen=True)
class MaxPool:
    """The region's one input is [N, H, W, C], its output [N, OH, OW, C]."""

    signature: RegionSignature
    window: Window
    bound: tuple[Condition, ...]

    def variants(self) -> tuple[VariantSource, ...]:
        """Return one kernel: a block for each row of pixels and some channels."""
        window = self.window
        batch, height, width, _ = (extent_of(item) for item in self.signature.inputs[0].shape)
        rows, columns = (extent_of(one) for one in self.signature.outputs[0].shape[1:3])
        channels = extent_of(self.signature.outputs[0].shape[3]).factor
        is_bytes = self.signature.inputs[0].dtype == "uint8"
        lines = (batch * rows).static
        # Of bytes a thread has a whole vector, so that a pixel's are read by one block.
        block = block_of(
            columns.static, channels, is_many=is_bytes and (lines is None or lines >= _MANY_LINES)
        )
        call = Call(
            "max_pool_kernel",
            (
                Tensor(0), Tensor(1), Size(height), Size(width), channels,
                Size(rows), Size(columns),
                *window.kernel, *window.strides, *window.dilations, *window.pads[:2],
                block.pixels, block.channels,
                "0" if is_bytes else "-inf",
            ),
            grid=((batch * rows, 1), (Extent(channels), block.channels), (ONE, 1)),
            warps=block.warps,
            stages=1,
        )  # fmt: skip
        text = kernel_text("pool_kernel")
        return for_any_alignment(self.signature, (call,), text, conditions=self.bound)


ANCHOR = ImageAnchor("max_pool", (("", "MaxPool"),), "ortkit.fusion.conv.max_pool:MaxPool")


@refusals
def match(signature: RegionSignature) -> MaxPool | Refused | None:
    """Return the region as a MaxPool; None if it is something else."""
    body = Body(signature)
    pools = body.nodes("MaxPool")
    if len(pools) != 1 or len(signature.inputs) != 1 or len(signature.outputs) != 1:
        return None
    (pool,) = pools
    result = body.transposed(body.function.output[0], TO_NHWC)
    if result != pool.output[0] or body.input_through(pool.input[0], TO_NCHW) != 0:
        return Refused("a MaxPool of something else than NHWC")
    window = needed(window_of(pool))
    is_bytes = {tensor.dtype for tensor in (*signature.inputs, *signature.outputs)} == {"uint8"}
    if not is_bytes and (refused := unfit(signature)):
        return refused
    if integer(pool, "ceil_mode", 0) or power(window.kernel[0] * window.kernel[1]) > _MOST_TAPS:
        return Refused("a MaxPool with too large a window, or of windows that are cut")
    channels = signature.inputs[0].shape[3:]
    if channels != signature.outputs[0].shape[3:]:
        return Refused("a MaxPool that changes the number of channels")
    bound = needed(bound_of(product(map(extent_of, signature.inputs[0].shape[1:]))))
    return MaxPool(signature, window, bound)

"""A convolution with an epilogue, as a region's body has it; what its kernels have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from ortkit.kernels.layouts.conv_filters import Sizes, by_channel
from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import known
from ortkit.operators.window import Window
from ortkit.refusal import Refused, needed, refusals

from .body import TO_NCHW, TO_NHWC, Body, integer, integers
from .casts import BFLOAT16, source_of_cast, wide_input
from .epilogue import Epilogue, read_epilogue


@dataclass(frozen=True)
class Convolution:
    """epilogue(Conv(x * gate, weight) + bias) with NHWC tensors; numbers are the region's inputs.

    Args:
        signature: The region's.
        x: [N, H, W, C], or [N, C, H, W] if `planar`; bfloat16 where a kernel takes it.
        planar: Whether x has its channels outermost.
        gate: [N, 1, 1, C], a factor for each channel; None if there is none.
        weight: In the layout that the kernel wants; what that is follows from `weight_value`.
        weight_value: The body's name of the weight as the Conv reads it.
        bias: [M]; None if there is none.
        groups: Of the Conv.
        window: Of the Conv.
        epilogue: What is computed on each result.
    """

    body: Body
    x: int
    planar: bool
    gate: int | None
    weight_value: str
    bias: int | None
    groups: int
    window: Window
    epilogue: Epilogue
    result: str
    """The body's name of the result in NCHW."""

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.body.signature

    @property
    def input(self) -> TensorSpec:
        """The spec of x."""
        return self.signature.inputs[self.x]

    @property
    def output(self) -> TensorSpec:
        """The spec of the result, [N, OH, OW, M]."""
        return self.signature.outputs[0]

    @property
    def narrow(self) -> Refused | None:
        """Why a kernel that knows float32 alone does not fit; None if it does."""
        if self.input.dtype == self.output.dtype == "float32":
            return None
        return Refused("a convolution in float32 with an end in bfloat16")

    @property
    def channels(self) -> int:
        """How many the result has."""
        return known(self.output.shape[3:])[0]

    @property
    def depth(self) -> int:
        """How many x has."""
        return known((self.input.shape[1 if self.planar else 3],))[0]


@refusals
def read_convolution(
    signature: RegionSignature, own: str = "float32"
) -> Convolution | Refused | None:
    """Return the region as a convolution; None if it has none or more than one.

    Args:
        signature: The region's.
        own: The type that is computed in; in float32 the ends may be bfloat16.
    """
    body = Body(signature)
    convs = body.nodes("Conv")
    if len(convs) != 1:
        return None
    conv = convs[0]
    result = body.transposed(body.function.output[0], TO_NHWC)
    if result is not None and signature.outputs[0].dtype != own:
        result = source_of_cast(body, result, BFLOAT16)
    if result is None:
        return Refused("a convolution whose result is not NHWC")
    if refused := unfit(signature, ("float32", "bfloat16") if own == "float32" else (own,)):
        return refused
    epilogue = needed(read_epilogue(body, conv.output[0], result, own))
    source = needed(_source(body, conv.input[0], own))
    x, planar, gate = source
    bias = body.inputs.get(conv.input[2]) if len(conv.input) > 2 else None
    if len(conv.input) > 2 and bias is None:
        return Refused("a convolution whose bias is computed")
    window = needed(window_of(conv))
    found = Convolution(
        body, x, planar, gate, str(conv.input[1]), bias, integer(conv, "group", 1), window,
        epilogue, result,
    )  # fmt: skip
    return _misfit(found, own) or found


def unfit(signature: RegionSignature, dtypes: tuple[str, ...] = ("float32",)) -> Refused | None:
    """Say why a region's tensors are not what these kernels work on; None if they are."""
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.dtype not in dtypes:
            return Refused(f"a convolution with a tensor of type {tensor.dtype}")
    output = signature.outputs[0]
    if len(output.shape) != 4 or not isinstance(output.shape[3], int):
        return Refused("a convolution with a number of channels that is not known")
    return None


def _misfit(conv: Convolution, own: str) -> Refused | None:
    inputs = conv.signature.inputs
    channels = conv.input.shape[1 if conv.planar else 3] if len(conv.input.shape) == 4 else ""
    if not isinstance(channels, int):
        return Refused("a convolution of a number of channels that is not known")
    others = [*inputs[: conv.x], *inputs[conv.x + 1 :], *conv.signature.outputs[1:]]
    if any(tensor.dtype != own for tensor in others):
        return Refused(f"a convolution in {own} with a further operand of another type")
    if any(inputs[extra].shape != conv.output.shape for extra in conv.epilogue.extras):
        return Refused("a further operand of another shape than the convolution's result")
    if conv.bias is not None and inputs[conv.bias].shape != (conv.channels,):
        return Refused("a bias of another size than the number of channels")
    if conv.gate is not None and inputs[conv.gate].shape != (conv.input.shape[0], 1, 1, channels):
        return Refused("a gate that is not one factor for each channel")
    return None


def _source(body: Body, name: str, own: str) -> tuple[int, bool, int | None] | Refused:
    """Return what is convolved: the input's number, whether it is NCHW, and its gate's number."""
    if name in body.inputs:
        return body.inputs[name], True, None
    source = body.transposed(name, TO_NCHW)
    read = None if source is None else body.inputs.get(source)
    if source is not None and own == "float32":
        read = wide_input(body, source)
    if read is not None:
        return read, False, None
    product = body.producer(name, "Mul")
    if product is not None:
        first, second = (body.input_through(each, TO_NCHW) for each in product.input)
        if first is not None and second is not None:
            pair = sorted(
                (first, second), key=lambda i: body.signature.inputs[i].shape[1:3] == (1, 1)
            )
            return pair[0], False, pair[1]
    return Refused("a convolution of something that is computed in the region")


def window_of(conv: onnx.NodeProto) -> Window | Refused:
    """Return how a Conv's filter moves, if that is stated."""
    kernel = integers(conv, "kernel_shape", ())
    if len(kernel) != 2 or any(each.name == "auto_pad" for each in conv.attribute):
        return Refused("a convolution that is not two-dimensional with kernel and pads stated")
    strides, dilations = integers(conv, "strides", (1, 1)), integers(conv, "dilations", (1, 1))
    top, left, bottom, right = integers(conv, "pads", (0, 0, 0, 0))
    return Window(
        (kernel[0], kernel[1]), (strides[0], strides[1]), (dilations[0], dilations[1]),
        (top, left, bottom, right),
    )  # fmt: skip


def packed_weight(
    conv: Convolution, layout: Callable[[Sizes], Prepack] = by_channel, channels: int = 0
) -> int | None:
    """Return the input that a convolution's weight is packed in; None for none.

    It reads all channels of x, or `channels` of them.
    """
    sizes = conv.channels, channels or conv.depth, *conv.window.kernel
    return conv.body.packed(conv.weight_value, layout(sizes))

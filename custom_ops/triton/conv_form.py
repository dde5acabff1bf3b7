"""Convolutions of NHWC tensors in half precision, as a region's body has them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.kernels.triton.emit import Emitter
from ortkit.kernels.triton.expr import Expr, bare

from ..tvm.body import TO_NCHW, TO_NHWC, Body, integer, integers
from ..tvm.convolution import Window, window_of
from ..tvm.epilogue import Epilogue, read_epilogue

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Convolution:
    """epilogue(Conv(x * gate, weight) + bias) of NHWC tensors; numbers are the region's inputs.

    Args:
        body: The region's.
        x: [N, H, W, C], or [N, C, H, W] if `is_planar`.
        is_planar: Whether x has its channels outermost.
        gate: [N, 1, 1, C], a factor for each channel; None if there is none.
        weight: [O, KH, KW, C], of a depthwise one [KH, KW, 1, C].
        bias: [O]; None if there is none.
        groups: Of the Conv.
        window: Of the Conv.
        epilogue: What follows, with one further operand at most.
        result: The body's name of the result in NCHW.
    """

    body: Body
    x: int
    is_planar: bool
    gate: int | None
    weight: int
    bias: int | None
    groups: int
    window: Window
    epilogue: Epilogue
    result: str

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.body.signature

    @property
    def output(self) -> TensorSpec:
        """The spec of the result, [N, OH, OW, O]."""
        return self.signature.outputs[0]

    @property
    def image(self) -> tuple[Extent, Extent, int]:
        """Height, width and channels of x."""
        shape = self.signature.inputs[self.x].shape
        height, width, channels = (2, 3, 1) if self.is_planar else (1, 2, 3)
        return extent_of(shape[height]), extent_of(shape[width]), _known(shape[channels])

    @property
    def channels(self) -> int:
        """Of the result."""
        return _known(self.output.shape[3])

    @property
    def pixels(self) -> Extent:
        """Of the result, of all images."""
        return product(extent_of(size) for size in self.output.shape[:3])


def read_convolution(signature: RegionSignature) -> Convolution | Refused | None:
    """Return the region as a convolution in half precision; None if it is something else."""
    body = Body(signature)
    convs = body.nodes("Conv")
    if len(convs) != 1:
        return None
    conv = convs[0]
    result = body.transposed(body.function.output[0], TO_NHWC)
    if result is None:
        return Refused("a convolution whose result is not NHWC")
    dtype = signature.outputs[0].dtype
    if refused := unfit(signature):
        return refused
    epilogue = read_epilogue(body, conv.output[0], result, dtype)
    if isinstance(epilogue, Refused):
        return epilogue
    source = _source(body, conv.input[0])
    if isinstance(source, Refused):
        return source
    x, is_planar, gate = source
    groups = integer(conv, "group", 1)
    weight = body.input_behind(conv.input[1], TO_NCHW if groups == 1 else (3, 2, 0, 1))
    bias = body.inputs.get(conv.input[2]) if len(conv.input) > 2 else None
    if weight is None or (len(conv.input) > 2 and bias is None):
        return Refused("a convolution whose weight or bias is computed")
    window = window_of(conv)
    if isinstance(window, Refused):
        return window
    found = Convolution(body, x, is_planar, gate, weight, bias, groups, window, epilogue, result)
    return _misfit(found, conv) or found


def unfit(signature: RegionSignature) -> Refused | None:
    """Say why a region's tensors are not what these kernels work on; None if they are."""
    dtype = signature.outputs[0].dtype
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.dtype != dtype or dtype not in HALVES:
            return Refused(f"a convolution with a tensor of type {tensor.dtype}")
    output = signature.outputs[0]
    if len(output.shape) != 4 or not isinstance(output.shape[3], int):
        return Refused("a convolution with a number of channels that is not known")
    return None


def epilogue_text(name: str, epilogue: Epilogue, extras: int = 1) -> str:
    """Return a function of the result and `extras` further operands, in float32."""
    e = Emitter()
    others = [Expr(f"b{number}", "float32") for number in range(extras)]
    result = epilogue.write(e, Expr("a", "float32"), others[: len(epilogue.extras)])  # type: ignore[arg-type]
    lines = [*e.lines, f"return {bare(result.text)}"]
    parameters = ", ".join(["a", *(other.text for other in others)])
    return "\n".join(
        ["", "", "@triton.jit", f"def {name}({parameters}):", *(f"    {one}" for one in lines), ""]
    )


def _misfit(conv: Convolution, node: onnx.NodeProto) -> Refused | None:
    inputs, (_, _, channels) = conv.signature.inputs, conv.image
    if any(inputs[extra].shape != conv.output.shape for extra in conv.epilogue.extras):
        return Refused("a further operand of another shape than the convolution's result")
    if len(conv.epilogue.extras) > 1:
        return Refused("more than one further operand")
    if conv.bias is not None and inputs[conv.bias].shape != (conv.channels,):
        return Refused("a bias of another size than the number of channels")
    batch = inputs[conv.x].shape[0]
    if conv.gate is not None and inputs[conv.gate].shape != (batch, 1, 1, channels):
        return Refused("a gate that is not one factor for each channel")
    if conv.gate is not None and not conv.window.is_point:
        return Refused("a gate of something else than single pixels")
    kernel = integers(node, "kernel_shape", ())
    if conv.groups == 1:
        expected: tuple[int, ...] = (conv.channels, *kernel, channels)
    elif conv.groups == channels == conv.channels:
        expected = (*kernel, 1, channels)
    else:
        return Refused("a convolution of groups of several channels")
    if inputs[conv.weight].shape != expected:
        return Refused("a weight of another shape than the convolution's")
    return None


def _source(body: Body, name: str) -> tuple[int, bool, int | None] | Refused:
    """Return what is convolved: the input's number, whether it is NCHW, and its gate's number."""
    if name in body.inputs:
        return body.inputs[name], True, None
    if (x := body.input_behind(name, TO_NCHW)) is not None:
        return x, False, None
    mul = body.producer(name, "Mul")
    if mul is not None:
        first, second = (body.input_behind(each, TO_NCHW) for each in mul.input)
        if first is not None and second is not None:
            return first, False, second
    return Refused("a convolution of something that is computed in the region")


def _known(size: int | str) -> int:
    assert isinstance(size, int)
    return size

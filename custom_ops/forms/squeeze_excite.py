"""Squeeze-and-excite as a region's body has it: two layers after the means over rows."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused, RefusedError, needed, refusals

from .body import TO_NHWC, Body
from .epilogue import Epilogue, read_epilogue


@dataclass(frozen=True)
class SqueezeExciteForm:
    """act2(W2 act1(W1 m + b1) + b2) of m, the mean over the rows of [N, rows, C].

    Args:
        signature: The region's; its result is [N, 1, 1, C].
        means: The input [N, rows, C].
        squeeze: The inputs W1 [H, C, 1, 1] and b1 [H], None if there is none.
        excite: The inputs W2 transposed, [1, 1, H, C], and b2 [C], None if there is none.
        inner: act1.
        outer: act2.
        hidden: H.
        channels: C.
    """

    signature: RegionSignature
    means: int
    squeeze: tuple[int, int | None]
    excite: tuple[int, int | None]
    inner: Epilogue
    outer: Epilogue
    hidden: int
    channels: int


@refusals
def read_squeeze_excite(signature: RegionSignature) -> SqueezeExciteForm | Refused | None:
    """Return the region as squeeze-and-excite; None if it is something else."""
    body, inputs = Body(signature), signature.inputs
    pools, convs = body.nodes("GlobalAveragePool"), body.nodes("Conv")
    if len(pools) != 1 or len(convs) != 2 or len(signature.outputs) != 1:
        return None
    first, second = sorted(convs, key=lambda conv: conv.input[0] != pools[0].output[0])
    means = _means(body, pools[0].input[0])
    result = body.transposed(body.function.output[0], TO_NHWC)
    if means is None or result is None or first.input[0] != pools[0].output[0]:
        return Refused("squeeze-and-excite of something else than means over rows")
    weight, permutation = body.inputs.get(first.input[1]), (3, 2, 0, 1)
    excite = body.input_through(second.input[1], permutation)
    if weight is None or excite is None:
        return Refused("squeeze-and-excite with weights that are not the region's inputs")
    biases = _bias(body, first), _bias(body, second)
    dtype, shape = signature.outputs[0].dtype, inputs[weight].shape
    inner = needed(read_epilogue(body, first.output[0], second.input[0], dtype))
    outer = needed(read_epilogue(body, second.output[0], result, dtype))
    hidden, channels = shape[:2] if len(shape) == 4 else ("", "")
    if not isinstance(hidden, int) or not isinstance(channels, int):
        return Refused("squeeze-and-excite with weights of unknown sizes")
    expected = [
        (weight, (hidden, channels, 1, 1)), (biases[0], (hidden,)),
        (excite, (1, 1, hidden, channels)), (biases[1], (channels,)),
        (means, (*inputs[means].shape[:2], channels)),
    ]  # fmt: skip
    if any(number is not None and inputs[number].shape != sizes for number, sizes in expected):
        return Refused("squeeze-and-excite with sizes that do not fit")
    if inner.extras or outer.extras:
        return Refused("squeeze-and-excite with further operands")
    return SqueezeExciteForm(
        signature, means, (weight, biases[0]), (excite, biases[1]), inner, outer, hidden, channels
    )


def _bias(body: Body, conv: onnx.NodeProto) -> int | None:
    """Return the input that is the bias, None if there is none."""
    if len(conv.input) < 3 or not conv.input[2]:
        return None
    if conv.input[2] not in body.inputs:
        raise RefusedError("squeeze-and-excite with weights that are not the region's inputs")
    return body.inputs[conv.input[2]]


def _means(body: Body, name: str) -> int | None:
    """Return the input [N, rows, C] that `name` is in NCHW, with a width of 1."""
    shaped = body.producer(name, "Reshape")
    shape = None if shaped is None else body.constant(shaped.input[1])
    if shaped is None or shape is None or [*shape.flat] != [0, 0, -1, 1]:
        return None
    return body.input_through(shaped.input[0], (0, 2, 1))

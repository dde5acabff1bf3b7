"""Rows that are rounded to fp8 for a matmul, with a norm prologue."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, extent_of, product
from ortkit.kernels.triton.hand import Call, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import Body, integer
from ...forms.conv_half import optional
from ...forms.gemm_norms import Norm, read_norm
from ..alignment import for_any_alignment
from ..conv.conv_tiles import power
from .fp8 import FP8, FP8_ARCHITECTURES, quantized

_FLOAT, _FP8 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.FLOAT8E4M3FN)
_SOURCES = ("float16", "bfloat16", "float32")
#: Elements of a block's rows, and of a row, at most.
_BLOCK, _MOST = 4096, 16384
#: Of a warp.
_EACH = 512


@dataclass(frozen=True)
class RoundedRows:
    """norm(x) / factor in fp8; numbers are inputs.

    Args:
        signature: The region's.
        y: The output that has the rows; another one, if there is one, has their factors.
        x: [..., depth].
        norm: What is done to the rows before, None if nothing is.
        factor: Of all rows, None where each has one.
        largest: What the largest magnitude of a row is multiplied by for its factor.
        least: Of factors.
    """

    signature: RegionSignature
    y: int
    x: int
    norm: Norm | None
    factor: float | None
    largest: float = 0.0
    least: float = 0.0

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel, and one for unaligned tensors."""
        inputs, norm = self.signature.inputs, self.norm
        *leading, depth = inputs[self.x].shape
        assert isinstance(depth, int)
        rows, block, first = product(map(extent_of, leading)), power(depth), len(inputs)
        height = max(1, _BLOCK // (2 * block))
        call = Call(
            "fp8_rows",
            (
                Tensor(self.x), None if norm is None else Tensor(norm.scale),
                optional(None if norm is None else norm.shift), Tensor(first + self.y),
                None if self.factor is not None else Tensor(first + 1 - self.y), Size(rows),
                depth, height, block, 0.0 if norm is None else norm.epsilon,
                norm is not None and norm.is_centred,
                1.0 if self.factor is None else self.factor, self.largest, self.least,
            ),
            ((rows, height), (ONE, 1), (ONE, 1)),
            max(1, min(16, power(height * block // _EACH))),
        )  # fmt: skip
        text = kernel_text("fp8_quantize_rows_kernel")
        return for_any_alignment(self.signature, (call,), text, architectures=FP8_ARCHITECTURES)


@refusals
def match(signature: RegionSignature) -> RoundedRows | Refused | None:
    """Return the region as rows that are rounded; None if it is something else."""
    indices = [index for index, output in enumerate(signature.outputs) if output.dtype == FP8]
    if len(indices) != 1 or any(spec.dtype == FP8 for spec in signature.inputs):
        return None
    (y,) = indices
    body = Body(signature)
    if body.nodes("MatMul") or body.nodes("Gemm"):
        return None
    found = _static(body) if len(signature.outputs) == 1 else _by_row(body, y)
    if found is None:
        return None
    name, factor, largest, least = found
    shape = signature.outputs[y].shape
    if not shape or not isinstance(shape[-1], int) or shape[-1] > _MOST:
        return Refused("fp8 rows of too many or an unknown number of elements")
    norm = needed(read_norm(body, name, shape))
    x = body.inputs.get(name if norm is None else norm.source)
    if x is None:
        return None
    if signature.inputs[x].shape != shape or signature.inputs[x].dtype not in _SOURCES:
        return Refused("fp8 rows of something else than such rows")
    return RoundedRows(signature, y, x, norm, factor, largest, least)


def _static(body: Body) -> tuple[str, float | None, float, float] | None:
    """Return what QuantizeLinear rounds with one factor."""
    found = quantized(body, str(body.function.output[0]))
    return None if found is None else (found[0], found[1], 0.0, 0.0)


def _by_row(body: Body, y: int) -> tuple[str, float | None, float, float] | None:
    """Return what is rounded with a factor for each row: its largest magnitude's part.

    y = Cast(Div(x, f), FLOAT8E4M3FN), f = Max(Mul(ReduceMax(Abs(x)), largest), least), x float32.
    """
    if len(body.function.output) != 2:
        return None
    rounded, factor = str(body.function.output[y]), str(body.function.output[1 - y])
    cast = body.producer(rounded, "Cast")
    ratio = None if cast is None else body.producer(cast.input[0], "Div")
    bound = body.producer(factor, "Max")
    part = None if bound is None else body.producer(bound.input[0], "Mul")
    top = None if part is None else body.producer(part.input[0], "ReduceMax")
    size = None if top is None else body.producer(top.input[0], "Abs")
    if cast is None or ratio is None or bound is None or part is None or top is None:
        return None
    if size is None or integer(cast, "to", 0) != _FP8 or not integer(cast, "saturate", 1):
        return None
    if ratio.input[1] != factor or size.input[0] != ratio.input[0]:
        return None
    rank = len(body.signature.outputs[y].shape)
    if body.axes(top) not in ((-1,), (rank - 1,)) or not integer(top, "keepdims", 1):
        return None
    largest, least = body.constant(part.input[1]), body.constant(bound.input[1])
    if largest is None or least is None or largest.size != 1 or least.size != 1:
        return None
    wide = body.producer(ratio.input[0], "Cast")
    if wide is not None and integer(wide, "to", 0) != _FLOAT:
        return None
    name = str(ratio.input[0] if wide is None else wide.input[0])
    return name, None, float(largest.reshape(())), float(least.reshape(()))

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
from ...forms.fp8_rounding import FP8, quantized
from ...forms.gemm_norms import Norm, read_norm, summed
from ..alignment import for_any_alignment
from ..conv.conv_tiles import power
from .fp8 import FP8_ARCHITECTURES

_FLOAT, _FP8 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.FLOAT8E4M3FN)
_SOURCES = ("float16", "bfloat16", "float32")
#: Elements of a block's rows, and of a row, at most.
_BLOCK, _MOST = 4096, 16384
#: Of a warp.
_EACH = 512


@dataclass(frozen=True)
class Rounding:
    """How rows become fp8.

    Args:
        name: Of the rows in the body.
        factor: Of all rows, None where each has one.
        factors: The output that has the factor of each row; None with one of all.
        largest: What the largest magnitude of a row is multiplied by for its factor.
        least: Of factors.
    """

    name: str
    factor: float | None
    factors: int | None = None
    largest: float = 0.0
    least: float = 0.0


@dataclass(frozen=True)
class RoundedRows:
    """norm(x + skip + added) / factor in fp8; numbers are inputs, of results outputs.

    Args:
        signature: The region's.
        y: The output that has the rows.
        x: [..., depth].
        norm: What is done to the rows before, None if nothing is.
        rounding: To eight bits.
        skip: What is added to x before, of its shape, None if nothing is.
        added: A row that is added to all.
        total: The output that has the sum, None where nothing else reads it.
        normed: The output that has the norm, alike.
    """

    signature: RegionSignature
    y: int
    x: int
    norm: Norm | None
    rounding: Rounding
    skip: int | None = None
    added: int | None = None
    total: int | None = None
    normed: int | None = None

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel, and one for unaligned tensors."""
        inputs, norm, how = self.signature.inputs, self.norm, self.rounding
        *leading, depth = inputs[self.x].shape
        assert isinstance(depth, int)
        rows, block, first = product(map(extent_of, leading)), power(depth), len(inputs)
        height = max(1, _BLOCK // (2 * block))
        call = Call(
            "fp8_rows",
            (
                Tensor(self.x), optional(self.skip), optional(self.added),
                None if norm is None else Tensor(norm.scale),
                optional(None if norm is None else norm.shift), Tensor(first + self.y),
                *(None if one is None else Tensor(first + one)
                  for one in (how.factors, self.total, self.normed)), Size(rows),
                depth, height, block, 0.0 if norm is None else norm.epsilon,
                norm is not None and norm.is_centred,
                1.0 if how.factor is None else how.factor, how.largest, how.least,
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
    how = _by_row(body, y) or _static(body, y)
    if how is None:
        return None
    shape = signature.outputs[y].shape
    if not shape or not isinstance(shape[-1], int) or shape[-1] > _MOST:
        return Refused("fp8 rows of too many or an unknown number of elements")
    norm = needed(read_norm(body, how.name, shape))
    source = how.name if norm is None else norm.source
    terms = summed(body, source)
    if not terms or (norm is None and len(terms) > 1):
        return None
    sizes = [signature.inputs[number] for number in terms]
    rows = [number for number, each in zip(terms, sizes, strict=True) if each.shape == shape]
    flat = [number for number in terms if number not in rows]
    is_row = all(signature.inputs[number].shape == shape[-1:] for number in flat)
    types = {each.dtype for each in sizes}
    if not is_row or not 0 < len(rows) < 3 or len(flat) > 1 or len(types) > 1:
        return Refused("fp8 rows of something else than such rows")
    if not types <= {*_SOURCES}:
        return Refused("fp8 rows of something else than such rows")
    kept = {how.name: "normed", source: "total"} if norm is not None else {}
    results: dict[str, int] = {}
    for index, spec in enumerate(signature.outputs):
        if index in (y, how.factors):
            continue
        name = str(body.function.output[index])
        if name not in kept or spec.dtype not in types:
            return Refused("fp8 rows with a further result")
        results[kept[name]] = index
    skip, added = (*rows[1:], None)[0], (*flat, None)[0]
    return RoundedRows(signature, y, rows[0], norm, how, skip, added, **results)


def _static(body: Body, y: int) -> Rounding | None:
    """Return what is rounded with one factor."""
    found = quantized(body, str(body.function.output[y]))
    return None if found is None else Rounding(*found)


def _by_row(body: Body, y: int) -> Rounding | None:
    """Return what is rounded with a factor for each row: its largest magnitude's part.

    y = Cast(Div(x, f), FLOAT8E4M3FN), f = Max(Mul(ReduceMax(Abs(x)), largest), least), x float32.
    """
    rounded = str(body.function.output[y])
    cast = body.producer(rounded, "Cast")
    ratio = None if cast is None else body.producer(cast.input[0], "Div")
    factor = "" if ratio is None else str(ratio.input[1])
    outputs = [str(name) for name in body.function.output]
    if factor not in outputs:
        return None
    bound = body.producer(factor, "Max")
    part = None if bound is None else body.producer(bound.input[0], "Mul")
    top = None if part is None else body.producer(part.input[0], "ReduceMax")
    size = None if top is None else body.producer(top.input[0], "Abs")
    if cast is None or ratio is None or bound is None or part is None or top is None:
        return None
    if size is None or integer(cast, "to", 0) != _FP8 or not integer(cast, "saturate", 1):
        return None
    if size.input[0] != ratio.input[0]:
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
    parts = (float(each.reshape(())) for each in (largest, least))
    return Rounding(name, None, outputs.index(factor), *parts)

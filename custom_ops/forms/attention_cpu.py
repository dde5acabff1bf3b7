"""Reading a region as scaled dot-product attention: where Q, K and V lie, and what is added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of
from ortkit.refusal import Refused, needed, refusals

from ..tvm.tile.registers import VECTOR
from . import attention_cuda
from .body import Body, integer
from .casts import BFLOAT16, FLOAT, before_rounding, source_of_cast

#: Wider heads would need more scratch than a thread's stack should hold.
MOST_WIDTH = 192
_ATTRIBUTES = frozenset(
    {
        "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap",
        "softmax_precision",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Heads(attention_cuda.Heads):
    """Q, K or V: heads of rows, in one of the region's inputs.

    Args:
        bias: The input float32 [N] that is added to every row, and its column of `first`.
        is_rounded: Whether its elements are rounded to bfloat16, or are bfloat16.
    """

    bias: tuple[int, int] | None = None
    is_rounded: bool = False


@dataclass(frozen=True)
class Mask:
    """What is added to the scores, or, of bool, which of them count.

    Args:
        tensor: The input, of float32 or bool; its last two dims are queries and keys.
        by_batch: Whether each sample has its own.
        by_head: Whether each head has its own.
    """

    tensor: int
    by_batch: bool
    by_head: bool


@dataclass(frozen=True)
class AttentionForm:
    """softmax(scale Q K^T + mask) V; the result lies as Q does.

    Computed in float32, or, of operands that are rounded to bfloat16, with such products.
    """

    signature: RegionSignature
    q: Heads
    k: Heads
    v: Heads
    mask: Mask | None
    scale: float
    is_causal: bool

    @property
    def is_rounded(self) -> bool:
        """Whether Q, K and V are rounded to bfloat16."""
        return self.q.is_rounded

    @property
    def result(self) -> Heads:
        """Where the result's heads lie."""
        q, width = self.q, self.v.width
        pitch = width if q.stacked else q.heads * width
        return Heads(
            len(self.signature.inputs), q.stacked, q.heads, width, q.batch, q.length, pitch
        )


@refusals
def read_attention(signature: RegionSignature) -> AttentionForm | Refused | None:
    """Return the region as one Attention of ONNX; None if it has none.

    Its operands may be parts of a tensor that is split along its columns, with a bias added before
    or after.
    """
    body = Body(signature)
    nodes = body.nodes("Attention")
    if not nodes:
        return None
    node = nodes[0]
    if len(nodes) > 1 or not _is_result(body, node):
        return Refused("a region of more than one attention, or of more than its result")
    if refused := _misfit(node):
        return refused
    heads = (integer(node, "q_num_heads", 0), *[integer(node, "kv_num_heads", 0)] * 2)
    operands = []
    for name, count in zip(node.input[:3], heads, strict=True):
        operand = needed(_read_heads(body, name, count))
        operands.append(operand)
    q, k, v = operands
    if refused := _mismatch(q, k, v):
        return refused
    mask = needed(_read_mask(body, node, q, k))
    if refused := _wrong_type(signature, (q, k, v), mask):
        return refused
    scales = [float(each.f) for each in node.attribute if each.name == "scale"]
    scale = scales[0] if scales else 1.0 / sqrt(q.width)
    if not scale > 0.0:
        return Refused("attention with a scale that is not positive")
    return AttentionForm(signature, q, k, v, mask, scale, bool(integer(node, "is_causal", 0)))


def _is_result(body: Body, node: onnx.NodeProto) -> bool:
    """Say whether the attention's value, as it is or rounded, is the region's only result."""
    (*others, output) = body.function.output
    if others or not node.output:
        return False
    return node.output[0] in (output, source_of_cast(body, output, BFLOAT16))


def _misfit(node: onnx.NodeProto) -> Refused | None:
    """Say what the operator does that no kernel does."""
    names = [name for name in node.input[4:] if name]
    if names or any(node.output[1:]):
        return Refused("attention with past keys, lengths, or a second result")
    unknown = {each.name for each in node.attribute} - _ATTRIBUTES
    if unknown:
        return Refused(f"attention with attribute {min(unknown)!r}")
    if any(each.f for each in node.attribute if each.name == "softcap"):
        return Refused("attention with a soft cap")
    if integer(node, "softmax_precision", FLOAT) not in (0, FLOAT):
        return Refused("attention with a softmax of another type than float32")
    return None


def _wrong_type(
    signature: RegionSignature, operands: tuple[Heads, ...], mask: Mask | None
) -> Refused | None:
    """Say whether a tensor is of a type that there is no kernel for."""
    if len({each.is_rounded for each in operands}) > 1:
        return Refused("attention of which some operands are rounded, and others not")
    narrow = ("float32", "bfloat16") if operands[0].is_rounded else ("float32",)
    allowed = {each.tensor: narrow for each in operands}
    allowed[len(signature.inputs)] = narrow
    if mask is not None:
        allowed[mask.tensor] = ("float32", "bool")
    for index, tensor in enumerate((*signature.inputs, *signature.outputs)):
        if tensor.dtype not in allowed.get(index, ("float32",)):
            return Refused(f"attention of {tensor.dtype}")
    return None


@dataclass(frozen=True)
class _Columns:
    """A range of an input's columns, the bias that is added, and whether the sum is rounded."""

    tensor: int
    first: int
    count: int
    bias: tuple[int, int] | None = None
    is_rounded: bool = False


@refusals
def _read_heads(body: Body, name: str, heads: int) -> Heads | Refused:
    before = before_rounding(body, name)
    tensor = body.inputs.get(before or name)
    shape = () if tensor is None else body.signature.inputs[tensor].shape
    if tensor is not None and len(shape) == 4:
        count, width = shape[1], shape[3]
        if not isinstance(count, int) or not isinstance(width, int):
            return Refused("attention of heads whose number or width is not known")
        batch, length = extent_of(shape[0]), extent_of(shape[2])
        return Heads(
            tensor, True, count, width, batch, length, width, is_rounded=before is not None
        )
    columns = needed(_read_columns(body, name))
    if heads < 1 or columns.count % heads:
        return Refused(f"attention of {heads} heads in {columns.count} columns")
    shape = body.signature.inputs[columns.tensor].shape
    assert isinstance(shape[2], int)
    return Heads(
        columns.tensor, False, heads, columns.count // heads, extent_of(shape[0]),
        extent_of(shape[1]), shape[2], columns.first, columns.bias, columns.is_rounded,
    )  # fmt: skip


def _read_columns(body: Body, name: str) -> _Columns | Refused:
    if name in body.inputs:
        tensor = body.inputs[name]
        shape = body.signature.inputs[tensor].shape
        if len(shape) != 3 or not isinstance(shape[2], int):
            return Refused("attention of rows whose length is not known")
        return _Columns(tensor, 0, shape[2])
    if (before := before_rounding(body, name)) is not None:
        columns = _read_columns(body, before)
        if isinstance(columns, _Columns) and columns.bias is not None:
            return Refused("attention of a sum that is rounded")
        return replace(columns, is_rounded=True) if isinstance(columns, _Columns) else columns
    if (split := body.producer(name, "Split")) is not None:
        return _read_part(body, split, name)
    if (add := body.producer(name, "Add")) is not None:
        return _read_biased(body, add)
    return Refused("attention of something that its kernel does not compute")


@refusals
def _read_part(body: Body, split: onnx.NodeProto, name: str) -> _Columns | Refused:
    whole = needed(_read_columns(body, split.input[0]))
    sizes = body.split_sizes(split, whole.count)
    if integer(split, "axis", 0) not in (2, -1) or sizes is None:
        return Refused("attention of parts that are no known columns")
    part = list(split.output).index(name)
    start = sum(sizes[:part])
    bias = None if whole.bias is None else (whole.bias[0], whole.bias[1] + start)
    return replace(whole, first=whole.first + start, count=sizes[part], bias=bias)


@refusals
def _read_biased(body: Body, add: onnx.NodeProto) -> _Columns | Refused:
    for bias, rows in (add.input, [*add.input][::-1]):
        tensor = body.inputs.get(bias)
        if tensor is None or len(body.signature.inputs[tensor].shape) != 1:
            continue
        columns = needed(_read_columns(body, rows))
        fits = body.signature.inputs[tensor].shape == (columns.count,)
        if columns.bias is not None or columns.is_rounded or not fits:
            break
        return replace(columns, bias=(tensor, 0))
    return Refused("attention after a sum of something else than rows and one bias")


def _mismatch(q: Heads, k: Heads, v: Heads) -> Refused | None:
    if len({each.stacked for each in (q, k, v)}) > 1:
        return Refused("attention of operands of different rank")
    if q.heads % max(k.heads, 1) or k.heads != v.heads or q.width != k.width:
        return Refused("attention of heads that do not fit each other")
    if not q.batch == k.batch == v.batch or k.length != v.length:
        return Refused("attention whose operands are not known to have equal sizes")
    for width in (q.width, v.width):
        if width % VECTOR or not 0 < width <= MOST_WIDTH:
            return Refused(
                f"attention of heads of {width}, no multiple of {VECTOR} up to {MOST_WIDTH}"
            )
    return None


def _read_mask(body: Body, node: onnx.NodeProto, q: Heads, k: Heads) -> Mask | Refused | None:
    if len(node.input) < 4 or not node.input[3]:
        return None
    tensor = body.inputs.get(node.input[3])
    if tensor is None:
        return Refused("attention with a mask that its kernel does not compute")
    shape = [extent_of(dim) for dim in body.signature.inputs[tensor].shape]
    if not 2 <= len(shape) <= 4 or shape[-2:] != [q.length, k.length]:
        return Refused("attention with a mask that is not known to be of queries and keys")
    batch, heads = [ONE, ONE, *shape[:-2]][-2:]
    if batch not in (ONE, q.batch) or heads not in (ONE, Extent(q.heads)):
        return Refused("attention with a mask of another number of samples or heads")
    return Mask(tensor, batch != ONE, heads != ONE)

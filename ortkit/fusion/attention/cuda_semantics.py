"""What the attention ops compute that ONNX Runtime has for CUDA, read from a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import onnx_ir as ir

from ortkit.fusion.attention.cuda_caches import cache_row, depends, shared_rows
from ortkit.fusion.attention.cuda_masks import MaskSource, before_expand, mask_source
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.attention_body import AttentionBody
from ortkit.refusal import Refused, needed, refusals
from ortkit.rewrite.scope import Scope

MULTI_HEAD = "com.microsoft", "MultiHeadAttention"
GROUPED = "com.microsoft", "GroupQueryAttention"
STANDARD = "", "Attention"
#: What a key that is masked gets added in MultiHeadAttention unless the node says something else.
DEFAULT_FILL = -10000.0
_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = int(ir.DataType.FLOAT)
#: Attributes that are read; any other has to be as these say: what it does by default.
_READ = {
    MULTI_HEAD: {"mask_filter_value", "num_heads", "scale", "unidirectional"},
    GROUPED: {"kv_num_heads", "local_window_size", "num_heads", "scale", "softcap"},
    STANDARD: {"is_causal", "kv_num_heads", "q_num_heads", "scale", "softcap"},
}
#: Where keys of earlier steps come in, those of values after them; they leave after the result.
_PAST = {MULTI_HEAD: 6, STANDARD: 4}
_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    "do_rotary": (0,), "is_packed_qkv": (0,), "qk_matmul_output_mode": (0,), "qk_output": (0,),
    "rotary_interleaved": (0, 1), "smooth_softmax": (0, -1), "softmax_precision": (0, _FLOAT),
}  # fmt: skip


#: Where an Attention says in `ir.Node.meta` that it is `Written`.
WRITTEN = "ortkit.attention"


@dataclass(frozen=True)
class Written:
    """An Attention that stands for nodes: its scores are bound before a mask is added.

    Args:
        zeroes: Whether a query that sees no key gives 0, and not NaN.
    """

    zeroes: bool


@dataclass(frozen=True)
class AttentionNode:
    """An attention.

    Args:
        body: The function body of what it computes.
        operands: Q, K, V, and a mask if there is one; before what only repeats it.
        queries: Rows of Q.
        keys: Rows of K.
        batch: Samples.
        is_of_keys: Whether all queries have one mask.
        caches: Keys and values of earlier steps, and these with the new rows appended: values that
            the node reads and makes.
        at: Where one new row is written into them, [1, 1]; None if they grow.
        writers: The nodes that do, where others than the attention.
    """

    body: AttentionBody
    operands: tuple[ir.Value, ...]
    queries: Size
    keys: Size
    batch: Size
    is_of_keys: bool = False
    caches: tuple[tuple[ir.Value, ir.Value], ...] = ()
    at: ir.Value | None = None
    writers: tuple[ir.Node, ...] = ()


def is_attention(node: ir.Node) -> bool:
    """Say whether the node is of an op that is read here."""
    return (node.domain, node.op_type) in _READ


def read_node(scope: Scope, node: ir.Node) -> AttentionNode | Refused:
    """Return what an attention computes, or why that is not known or not written here."""
    kind = node.domain, node.op_type
    first = _PAST.get(kind)
    caches = [] if first is None else [*node.inputs, *[None] * 16][first : first + 2]
    made = node.outputs[1 + (2 if any(caches) else 0) :]
    if any(value.uses() or value.is_graph_output() for value in made):
        return Refused("attention whose keys, values or scores are results too")
    for name, attribute in node.attributes.items():
        if name in _READ[kind]:
            continue
        value = attribute.value
        if name not in _DEFAULTS or value not in _DEFAULTS[name]:
            return Refused(f"attention with attribute {name!r}")
    inputs = [*node.inputs, *[None] * 16]
    q, k, v = inputs[:3]
    if q is None or k is None or v is None:
        return Refused("attention of Q, K and V that are packed")
    shapes = [scope.shapes.shape(value) for value in (q, k, v)]
    dtype = scope.shapes.dtype(q)
    if dtype not in _TYPES or any(scope.shapes.dtype(value) != dtype for value in (k, v)):
        return Refused("attention of something else than float16 or bfloat16")
    if any(shape is None for shape in shapes):
        return Refused("operands of unknown shape")
    found = _Reader(scope, node, kind, [shape for shape in shapes if shape is not None]).read()
    return found if isinstance(found, Refused) else _of_one_query(scope, node, found)


def _of_one_query(scope: Scope, node: ir.Node, found: AttentionNode) -> AttentionNode:
    """Return an attention of one query with K and V before what repeats and transposes their
    heads."""
    body = found.body
    if found.caches or found.queries != 1 or body.causal:
        return found
    q, *operands = found.operands
    rows = [shared_rows(scope, node, value) for value in operands[:2]]
    k, v = rows
    if k is None or v is None:
        return found
    if (k.batch, k.kv_heads, k.times) != (v.batch, v.kv_heads, v.times):
        return found
    if k.batch != found.batch and body.mask:
        # Heads stand among the samples, and one mask is for all only if it says so.
        shape = scope.shapes.shape(found.operands[3])
        if shape is None or body.mask == "keys" or any(size != 1 for size in shape[:-2]):
            return found
    body = replace(
        body,
        heads=k.kv_heads * k.times,
        kv_heads=k.kv_heads,
        stacked=True,
        columns=0 if body.stacked else body.heads * body.v_width,
    )
    caches = [cache_row(scope, item.value) for item in (k, v)]
    changed = replace(
        found, body=body, operands=(q, k.value, v.value, *operands[2:]), batch=k.batch
    )
    first, second = caches
    if first is None or second is None or first.at is not second.at:
        return changed
    writers = (*first.nodes, *second.nodes)
    inputs = (q, first.new, second.new, *operands[2:], first.past, second.past)
    if first.nodes[-1] is second.nodes[-1] or depends(inputs, writers):
        return changed
    if any(writer.graph is not node.graph for writer in writers):
        return changed
    return replace(
        changed,
        operands=(q, first.new, second.new, *operands[2:]),
        caches=((first.past, first.present), (second.past, second.present)),
        at=first.at,
        writers=writers,
    )


class _Reader:
    def __init__(
        self, scope: Scope, node: ir.Node, kind: tuple[str, str], shapes: Sequence[Sequence[Size]]
    ) -> None:
        self._scope = scope
        self._node = node
        self._kind = kind
        self._shapes = shapes
        self._cached: tuple[tuple[ir.Value, ir.Value], ...] = ()

    def _input(self, index: int) -> ir.Value | None:
        return self._node.inputs[index] if index < len(self._node.inputs) else None

    def _number(self, name: str, default: float) -> float:
        attribute = self._node.attributes.get(name)
        return default if attribute is None else float(attribute.value)

    @refusals
    def read(self) -> AttentionNode | Refused:
        q, k, v = self._shapes
        is_stacked = len(q) == 4
        counts = self._heads()
        if {len(q), len(k), len(v)} != {4 if is_stacked else 3}:
            return Refused("attention of operands of different rank")
        if is_stacked and self._kind != STANDARD:
            return Refused("attention of Q with four axes")
        if is_stacked:
            counts = q[1], k[1]
        heads, kv_heads = counts
        widths = [shape[-1] for shape in self._shapes]
        if not (isinstance(heads, int) and isinstance(kv_heads, int) and heads > 0 < kv_heads):
            return Refused("attention of heads whose number is not known")
        if not all(isinstance(width, int) for width in widths):
            return Refused("attention of heads whose width is not known")
        numbers = [int(width) for width in widths if isinstance(width, int)]
        if not is_stacked:
            each = heads, kv_heads, kv_heads
            if any(number % count for number, count in zip(numbers, each, strict=True)):
                return Refused("attention of columns that are no whole heads")
            numbers = [number // count for number, count in zip(numbers, each, strict=True)]
        if heads % kv_heads or numbers[0] != numbers[1] or numbers[0] < 1:
            return Refused("attention of heads that do not fit each other")
        dtype = self._scope.shapes.dtype(self._operands()[0])
        assert dtype is not None
        scale = self._number("scale", 0.0) or 1.0 / sqrt(numbers[0])
        rows = -2 if is_stacked else 1
        caches = needed(self._caches())
        keys = k[rows]
        if caches:
            present = self._scope.shapes.shape(caches[0][1])
            assert present is not None
            self._cached, keys = caches, present[2]
        sizes = q[rows], keys, q[0]
        body = AttentionBody(
            heads, kv_heads, numbers[0], numbers[2], dtype.numpy(), scale, is_stacked,
            self._number("softcap", 0.0),
        )  # fmt: skip
        if self._kind == MULTI_HEAD:
            return self._multi_head(body, sizes)
        return self._grouped(body, sizes) if self._kind == GROUPED else self._standard(body, sizes)

    def _caches(self) -> tuple[tuple[ir.Value, ir.Value], ...] | Refused:
        """Return the caches that are appended to, each with what it becomes."""
        first = _PAST.get(self._kind)
        if first is None:
            return ()
        pasts = self._input(first), self._input(first + 1)
        if pasts[0] is None and pasts[1] is None:
            return ()
        presents = [*self._node.outputs[1:3], None, None][:2]
        found = [
            (past, present)
            for past, present in zip(pasts, presents, strict=True)
            if past is not None and present is not None
        ]
        shapes = [self._scope.shapes.shape(value) for pair in found for value in pair]
        if len(found) < 2 or any(shape is None or len(shape) != 4 for shape in shapes):
            return Refused("attention with past keys of unknown shape, or without present ones")
        return tuple(found)

    def _heads(self) -> tuple[Size, Size]:
        if self._kind == STANDARD:
            q = int(self._number("q_num_heads", 0))
            return q, int(self._number("kv_num_heads", 0))
        heads = int(self._number("num_heads", 0))
        return heads, int(self._number("kv_num_heads", heads))

    def _operands(self) -> tuple[ir.Value, ...]:
        return tuple(value for value in self._node.inputs[:3] if value is not None)

    def _found(
        self,
        body: AttentionBody,
        sizes: tuple[Size, Size, Size],
        carried: ir.Value | None = None,
        **more: Any,
    ) -> AttentionNode:
        queries, keys, batch = sizes
        changed = replace(body, **more)
        operands = self._operands() if carried is None else (*self._operands(), carried)
        shape = () if carried is None else self._scope.shapes.shape(carried) or ()
        is_of_keys = changed.mask == "keys" or (len(shape) > 1 and shape[-2] == 1)
        return AttentionNode(changed, operands, queries, keys, batch, is_of_keys, self._cached)

    def _multi_head(
        self, body: AttentionBody, sizes: tuple[Size, Size, Size]
    ) -> AttentionNode | Refused:
        if any(self._input(index) is not None for index in (3, 8, 9)):
            return Refused("attention with a bias of its operands, or a cache of other form")
        causal = "first" if self._number("unidirectional", 0) else ""
        if causal and sizes[0] != sizes[1]:
            return Refused("causal attention of other keys than queries")
        keys, added = self._input(4), self._input(5)
        if keys is None:
            if added is None:
                return self._found(body, sizes, causal=causal)
            return self._with_mask(body, sizes, added, causal=causal)
        if added is not None:
            return Refused("attention with two masks")
        if self._scope.shapes.shape(keys) != (sizes[2], sizes[1]):
            return Refused("attention with lengths, or a mask not known to be of its keys")
        if self._scope.shapes.dtype(keys) != ir.DataType.INT32:
            return Refused("attention with a mask of keys that is not int32")
        fill = self._number("mask_filter_value", DEFAULT_FILL)
        return self._found(body, sizes, keys, causal=causal, mask="keys", fill=fill)

    def _standard(
        self, body: AttentionBody, sizes: tuple[Size, Size, Size]
    ) -> AttentionNode | Refused:
        if self._input(6) is not None:
            return Refused("attention with lengths")
        first = "last" if self._cached else "first"
        causal = first if self._number("is_causal", 0) else ""
        mask = self._input(3)
        if mask is None:
            return self._found(body, sizes, causal=causal)
        written = self._node.meta.get(WRITTEN)
        if body.softcap and written is None:
            return Refused("attention with a mask and a bound of its scores")
        if written is not None:
            body = replace(body, zeroes=written.zeroes)
        return self._with_mask(body, sizes, mask, causal=causal)

    def _grouped(
        self, body: AttentionBody, sizes: tuple[Size, Size, Size]
    ) -> AttentionNode | Refused:
        if any(self._input(index) is not None for index in (3, 4, *range(9, 16))):
            return Refused("attention with past keys, places or a mask")
        if sizes[0] != sizes[1] or not self._are_whole(sizes[1]):
            return Refused("attention of samples whose lengths are known in a run only")
        # How many keys a query sees, its own among them; -1 for all.
        window = int(self._number("local_window_size", -1))
        if window < 1 and window != -1:
            return Refused(f"attention with a window of {window} keys")
        return self._found(body, sizes, causal="first", window=max(window, 0))

    def _are_whole(self, keys: Size) -> bool:
        """Say whether each sample of a GroupQueryAttention is as long as the operands."""
        last, total = self._input(5), self._input(6)
        array, count = self._scope.array(last), self._scope.array(total)
        if array is not None and count is not None:
            return bool((array == count.reshape(()) - 1).all()) and int(count.reshape(())) == keys
        # The total has to be the number of keys where there are no past ones.
        expand = None if last is None else last.producer()
        if expand is None or expand.op_type != "Expand" or expand.inputs[0] is None:
            return False
        sub = expand.inputs[0].producer()
        one = None if sub is None or sub.op_type != "Sub" else self._scope.array(sub.inputs[1])
        return one is not None and sub is not None and (one == 1).all() and sub.inputs[0] is total

    def _with_mask(
        self,
        body: AttentionBody,
        sizes: tuple[Size, Size, Size],
        mask: ir.Value,
        *,
        causal: str,
    ) -> AttentionNode | Refused:
        if self._scope.shapes.dtype(mask) == ir.DataType.BOOL:
            source = MaskSource(before_expand(self._scope, mask), -inf)
        else:
            source = mask_source(self._scope, mask)
        mask, fill = source.value, source.fill
        shape, dtype = self._scope.shapes.shape(mask), self._scope.shapes.dtype(mask)
        queries, keys, batch = sizes
        if shape is None or not 2 <= len(shape) <= 4:
            return Refused("attention with a mask of unknown shape")
        wanted = (batch, body.heads, queries, keys)
        ranks = zip(reversed(shape), reversed(wanted), strict=False)
        if shape[-1] != keys or any(size not in (1, whole) for size, whole in ranks):
            return Refused("attention with a mask that is not known to fit")
        if fill is not None and dtype == ir.DataType.BOOL:
            return self._found(body, sizes, mask, causal=causal, mask="chosen", fill=fill)
        if fill is not None or dtype is None or dtype.numpy() != body.dtype:
            return Refused("attention with a mask of another type")
        return self._found(body, sizes, mask, causal=causal, mask="added")

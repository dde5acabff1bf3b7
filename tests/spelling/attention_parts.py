"""Attention, put together from the choices that exporters and authors make."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.spelling.masks import HEADS
from tests.spelling.rotary import angles_given, cos_sin, rotate_half, turned
from tests.spelling.writer import Writer

HEAD = 8
HIDDEN = HEADS * HEAD
Mask = Callable[[Writer, str], str]
Values = tuple[str, str, str]


@dataclass(frozen=True)
class Style:
    """How one attention block is written; the defaults are old BERT's."""

    project: Literal["three", "split", "slice", "gather", "gemm", "by head", "given"] = "three"
    """Three products; one that is Split, Sliced or indexed; GPT-2's Gemm on rows; NeoX's Split
    of each head; or heads from outside."""
    bias: bool = True
    key: Literal["early", "late", "flat"] = "late"
    """Keys by Transpose 0231; by 0213 and 0132; or torch.export's detour over [B * H, T, D]."""
    scale: Literal[
        "scores div", "scores mul", "query", "query div", "key", "both", "both div", "read", "none"
    ] = "scores div"
    mask: Mask | None = None
    guard: bool = False
    """torch's SDPA: where(isnan(p), 0, p)."""
    cap: float = 0.0
    kv_heads: int = HEADS
    repeat: Literal["expand", "tile", "concat"] = "expand"
    norm: bool = False
    """RMSNorm of each head of queries and keys."""
    rotary: bool = False
    cross: bool = False
    past: bool = False
    join: Literal["zeros", "read", "rows"] = "zeros"
    softmax: Literal["op", "written out", "float32"] = "op"
    """`float32`: between casts that change nothing, as `softmax(dtype=float32)` leaves them."""
    einsum: bool = False

    def __call__(self, w: Writer) -> tuple[str, ...]:
        """Write the block and what follows it."""
        q, k, v = self._heads(w)
        if self.norm:
            q, k = _head_norm(w, q), _head_norm(w, k)
        if self.rotary:
            angles = angles_given(w, HEAD)
            cos, sin = (w.unsqueeze(value, 1) for value in cos_sin(w, angles))
            q, k = (turned(w, x, cos, sin, rotate_half(w, x, HEAD)) for x in (q, k))
        present: tuple[str, ...] = ()
        if self.past:
            k, v = (self._extended(w, name, x) for name, x in (("k", k), ("v", v)))
            present = (k, v)
        k, v = self._repeated(w, k), self._repeated(w, v)
        y = self._attended(w, q, k, v)
        return (self._joined(w, y), *present)

    # ---- projections ----

    def _heads(self, w: Writer) -> Values:
        """Return queries, keys and values, [B, H, S, D]."""
        if self.project == "given":
            names = (
                ("q", "S", HEADS),
                ("k", self._keys, self.kv_heads),
                ("v", self._keys, self.kv_heads),
            )
            q, k, v = (w.input(name, "B", heads, size, HEAD) for name, size, heads in names)
            return (w.mul(q, w.number(HEAD**-0.5)) if self.scale == "query" else q), k, v
        x = w.input("x", "B", "S", HIDDEN)
        if self.project == "gather":
            packed = w.reshape(
                w.linear(x, HIDDEN, 3 * HIDDEN, bias=self.bias), 0, 0, 3, HEADS, HEAD
            )
            packed = w.transpose(packed, 2, 0, 3, 1, 4)
            parts = [
                w.op("Gather", packed, w.array(np.array(i, np.int64)), axis=0) for i in range(3)
            ]
            return parts[0], parts[1], parts[2]
        if self.project == "by head":
            packed = w.reshape(
                w.linear(x, HIDDEN, 3 * HIDDEN, bias=self.bias), 0, 0, HEADS, 3 * HEAD
            )
            q, k, v = w.split(w.transpose(packed, 0, 2, 1, 3), -1, HEAD, HEAD, HEAD)
            return q, k, v
        q, k, v = self._flat(w, x)
        if self.scale == "query":
            q = w.mul(q, w.number(HEAD**-0.5))
        return (
            _split_heads(w, q, HEADS),
            _split_heads(w, k, self.kv_heads),
            _split_heads(w, v, self.kv_heads),
        )

    @property
    def _keys(self) -> str:
        return "T" if self.cross else "S"

    def _flat(self, w: Writer, x: str) -> Values:
        """Return the three products, [B, S, H * D]."""
        width = self.kv_heads * HEAD
        if self.project == "three":
            source = w.input("z", "B", "T", HIDDEN) if self.cross else x
            return (
                w.linear(x, HIDDEN, HIDDEN, bias=self.bias),
                w.linear(source, HIDDEN, width, bias=self.bias),
                w.linear(source, HIDDEN, width, bias=self.bias),
            )
        if self.project == "gemm":
            rows = w.reshape(x, -1, HIDDEN)
            packed = w.op("Gemm", rows, w.weight(HIDDEN, 3 * HIDDEN), w.weight(3 * HIDDEN))
            packed = w.reshape(packed, w.dim(x, 0), w.dim(x, 1), 3 * HIDDEN)
        else:
            packed = w.linear(x, HIDDEN, HIDDEN + 2 * width, bias=self.bias)
        if self.project == "slice":
            ends = (0, HIDDEN, HIDDEN + width, HIDDEN + 2 * width)
            q, k, v = (w.slice(packed, 2, ends[i], ends[i + 1]) for i in range(3))
        else:
            q, k, v = w.split(packed, 2, HIDDEN, width, width)
        return q, k, v

    def _extended(self, w: Writer, name: str, x: str) -> str:
        past = w.input(f"past_{name}", "B", self.kv_heads, "P", HEAD)
        return w.op("Concat", past, x, axis=2)

    def _repeated(self, w: Writer, x: str) -> str:
        """Repeat each head of keys or values for the queries that share it."""
        group = HEADS // self.kv_heads
        if group == 1:
            return x
        five = w.unsqueeze(x, 2)
        batch, length = w.dim(x, 0), w.dim(x, 2)
        if self.repeat == "concat":
            five = w.op("Concat", *[five] * group, axis=2)
        elif self.repeat == "tile":
            five = w.op("Tile", five, w.ints(1, 1, group, 1, 1))
        else:
            five = w.op("Expand", five, w.sizes(batch, self.kv_heads, group, length, HEAD))
        return w.reshape(five, batch, HEADS, length, HEAD)

    # ---- the core ----

    def _attended(self, w: Writer, q: str, k: str, v: str) -> str:
        if self.scale == "both div":
            q, k = (w.div(x, w.number(HEAD**0.25)) for x in (q, k))
        if self.scale == "both":
            q = w.mul(q, w.number(HEAD**-0.25))
        if self.scale == "key":
            k = w.mul(k, w.number(HEAD**-0.5))
        if self.scale == "query div":
            q = w.div(q, w.number(math.sqrt(HEAD)))
        if self.einsum:
            scores = w.op("Einsum", q, k, equation="bhqd,bhkd->bhqk")
        else:
            turned_keys = self._turned_keys(w, k)
            if self.scale == "both":
                turned_keys = w.mul(turned_keys, w.number(HEAD**-0.25))
            scores = w.op("MatMul", q, turned_keys)
        if self.scale == "scores div":
            scores = w.div(scores, w.number(math.sqrt(HEAD)))
        if self.scale == "scores mul":
            scores = w.mul(scores, w.number(HEAD**-0.5))
        if self.scale == "read":
            width = w.cast(w.squeeze(w.dim(q, 3), 0), np.float32)
            scores = w.div(scores, w.op("Sqrt", width))
        if self.cap:
            tanh = w.op("Tanh", w.div(scores, w.number(self.cap)))
            scores = w.mul(tanh, w.number(self.cap))
        if self.mask:
            scores = self.mask(w, scores)
        weights = self._softmax(w, scores)
        if self.guard:
            weights = w.op("Where", w.op("IsNaN", weights), w.number(0), weights)
        if self.einsum:
            return w.op("Einsum", weights, v, equation="bhqk,bhkd->bhqd")
        return w.op("MatMul", weights, v)

    def _turned_keys(self, w: Writer, k: str) -> str:
        if self.key == "late":
            return w.transpose(k, 0, 1, 3, 2)
        if self.key == "early":
            # Keys that come from Transpose 0213 are turned by one Transpose in its place.
            made = next((node for node in w.nodes if k in node.output), None)
            if made is not None and made.op_type == "Transpose":
                w.nodes.remove(made)
                return w.transpose(made.input[0], 0, 2, 3, 1)
            return w.transpose(k, 0, 1, 3, 2)
        batch, length = w.dim(k, 0), w.dim(k, 2)
        flat = w.transpose(w.reshape(k, -1, length, HEAD), 0, 2, 1)
        return w.reshape(flat, batch, HEADS, HEAD, length)

    def _softmax(self, w: Writer, scores: str) -> str:
        if self.softmax == "float32":
            scores = w.cast(scores, np.float32)
        if self.softmax != "written out":
            y = w.op("Softmax", scores, axis=-1)
            return w.cast(y, np.float32) if self.softmax == "float32" else y
        exp = w.op("Exp", w.sub(scores, w.reduce("ReduceMax", scores, -1)))
        return w.div(exp, w.reduce("ReduceSum", exp, -1))

    def _joined(self, w: Writer, y: str) -> str:
        """Return the output projection of [B, H, S, D]."""
        batch, length = w.dim(y, 0), w.dim(y, 2)
        turned_back = w.transpose(y, 0, 2, 1, 3)
        if self.join == "rows":
            rows = w.reshape(turned_back, -1, HIDDEN)
            out = w.op("Gemm", rows, w.weight(HIDDEN, HIDDEN), w.weight(HIDDEN))
            return w.reshape(out, batch, length, HIDDEN)
        if self.join == "zeros":
            joined = w.reshape(turned_back, 0, 0, HIDDEN)
        else:
            joined = w.reshape(turned_back, batch, length, HIDDEN)
        return w.linear(joined, HIDDEN, HIDDEN)


def _split_heads(w: Writer, x: str, heads: int) -> str:
    return w.transpose(w.reshape(x, 0, 0, heads, HEAD), 0, 2, 1, 3)


def _head_norm(w: Writer, x: str) -> str:
    mean = w.reduce("ReduceMean", w.op("Pow", x, w.number(2)), -1)
    y = w.mul(x, w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6)))))
    return w.mul(w.weight(HEAD, mean=1), y)


def three_dimensional(w: Writer, *, sequence_first: bool = False) -> str:
    """Heads in the batch: [B * H, S, D] (torch's MultiheadAttention, BART, fairseq)."""
    x = w.input("x", *(("S", "B") if sequence_first else ("B", "S")), HIDDEN)
    q = w.mul(w.linear(x, HIDDEN, HIDDEN), w.number(HEAD**-0.5))
    k, v = w.linear(x, HIDDEN, HIDDEN), w.linear(x, HIDDEN, HIDDEN)
    if sequence_first:
        length, both = w.dim(x, 0), w.op("Mul", w.dim(x, 1), w.ints(HEADS))
        parts = [w.transpose(w.reshape(y, length, both, HEAD), 1, 0, 2) for y in (q, k, v)]
    else:
        length, both = w.dim(x, 1), w.op("Mul", w.dim(x, 0), w.ints(HEADS))
        parts = [w.reshape(_split_heads(w, y, HEADS), both, -1, HEAD) for y in (q, k, v)]
    scores = w.op("MatMul", parts[0], w.transpose(parts[1], 0, 2, 1))
    y = w.op("MatMul", w.op("Softmax", scores, axis=-1), parts[2])
    if sequence_first:
        joined = w.reshape(w.transpose(y, 1, 0, 2), length, w.dim(x, 1), HIDDEN)
    else:
        y = w.reshape(y, w.dim(x, 0), HEADS, length, HEAD)
        joined = w.reshape(w.transpose(y, 0, 2, 1, 3), 0, 0, HIDDEN)
    return w.linear(joined, HIDDEN, HIDDEN)


def sequence_first(w: Writer) -> str:
    """The same of [S, B, H * D]."""
    return three_dimensional(w, sequence_first=True)


def three_dimensional_masked(w: Writer) -> str:
    """BART: the mask is added to [B, H, S, T], between two Reshapes."""
    x = w.input("x", "B", "S", HIDDEN)
    mask = w.input("attention_mask", "B", "S", kind="mask", dtype=np.int64)
    q = w.mul(w.linear(x, HIDDEN, HIDDEN), w.number(HEAD**-0.5))
    k, v = w.linear(x, HIDDEN, HIDDEN), w.linear(x, HIDDEN, HIDDEN)
    batch, length = w.dim(x, 0), w.dim(x, 1)
    parts = [w.reshape(_split_heads(w, y, HEADS), -1, length, HEAD) for y in (q, k, v)]
    scores = w.op("MatMul", parts[0], w.transpose(parts[1], 0, 2, 1))
    scores = w.reshape(scores, batch, HEADS, length, length)
    blocked = w.sub(w.number(1), w.cast(w.unsqueeze(mask, 1, 2), np.float32))
    scores = w.add(scores, w.mul(blocked, w.number(float(np.finfo(np.float32).min))))
    scores = w.reshape(scores, -1, length, length)
    y = w.op("MatMul", w.op("Softmax", scores, axis=-1), parts[2])
    y = w.transpose(w.reshape(y, batch, HEADS, length, HEAD), 0, 2, 1, 3)
    return w.linear(w.reshape(y, batch, length, HIDDEN), HIDDEN, HIDDEN)

"""Attention in standard operators, for the bodies of fused nodes on CUDA.

A body runs wherever there is no kernel for the node, also in other runtimes: nothing in it is
ONNX Runtime's own, or newer than `SINCE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from ortkit.kernels.node_writer import NodeWriter

#: Shape has had a first and a last dim since then, Trilu is older.
SINCE = 15
#: A cache's rows before batch and heads, and back.
ROWS_FIRST, ROWS_BACK = (2, 0, 1, 3), (1, 2, 0, 3)


@dataclass(frozen=True)
class AttentionBody:
    """An attention to be written.

    Args:
        heads: Of the query.
        kv_heads: Of keys and values; each serves `heads / kv_heads` heads in a row.
        width: Of a head of queries and keys.
        v_width: Of a head of values.
        dtype: Of all but a mask that is a condition.
        scale: Of the scores.
        stacked: Operands and result are [batch, heads, rows, width], and not
            [batch, rows, heads * width].
        softcap: The bound of the scores, 0 for none.
        mask: "added": numbers, broadcast to [batch, heads, queries, keys]; "chosen": a condition
            of bool, as broad; "keys": one of int32, [batch, keys], which holds where it is not 0.
        fill: What is added to the score where a condition does not hold.
        causal: "first": query i sees keys up to i; "last": the last query sees all.
        window: How many of these a query sees, 0 for all.
        columns: Of one query, whose operand and result are of three axes, the heads of K and V
            standing for themselves: the result's last axis; 0 where `stacked` says all.
        zeroes: Whether a query that sees no key gives 0, and not NaN.
    """

    heads: int
    kv_heads: int
    width: int
    v_width: int
    dtype: np.dtype
    scale: float
    stacked: bool = False
    softcap: float = 0.0
    mask: Literal["", "added", "chosen", "keys"] = ""
    fill: float = -np.inf
    causal: Literal["", "first", "last"] = ""
    window: int = 0
    columns: int = 0
    zeroes: bool = False

    def nodes(
        self,
        inputs: Sequence[str],
        output: str,
        caches: Sequence[tuple[str, str]] = (),
        at: str = "",
    ) -> list[onnx.NodeProto]:
        """Return the nodes.

        Args:
            inputs: The names of Q, K, V and, if there is one, the mask.
            output: The result's name, which the names of inner values begin with.
            caches: The names of keys' and of values' [batch, kv_heads, rows, width] of earlier
                steps, and of these with the new rows appended.
            at: The name of the place, [1, 1], where one new row is written instead. K and V are
                [1, batch, kv_heads, width] then, and Q is stacked.
        """
        writer = NodeWriter(f"{output}_", self.dtype)
        q, k, v = inputs[:3]
        if self.columns:
            q = writer.op("Reshape", q, writer.integers(-1, self.heads, 1, self.width))
        if not self.stacked:
            q = _split_heads(writer, q, self.heads, self.width)
            k = _split_heads(writer, k, self.kv_heads, self.width)
            v = _split_heads(writer, v, self.kv_heads, self.v_width)
        if caches:
            k, v = (
                _written(writer, past, at, new, present)
                if at
                else writer.named(present, "Concat", past, new, axis=2)
                for (past, present), new in zip(caches, (k, v), strict=True)
            )
        k = self._repeated(writer, k, self.width)
        v = self._repeated(writer, v, self.v_width)
        transposed = writer.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = writer.op("MatMul", writer.op("Mul", q, writer.number(self.scale)), transposed)
        if self.softcap:
            cap = writer.number(self.softcap)
            bent = writer.op("Tanh", writer.op("Div", scores, cap))
            scores = writer.op("Mul", bent, cap)
        if self.mask:
            scores = self._masked(writer, scores, inputs[3])
        if self.causal:
            seen = self._seen(writer, q, transposed)
            scores = writer.op("Where", seen, scores, writer.number(-np.inf))
        shares = writer.op("Softmax", scores, axis=-1)
        if self.zeroes:
            is_lost = writer.op("IsNaN", shares)
            shares = writer.op("Where", is_lost, writer.number(0.0), shares)
        is_made = self.stacked and not self.columns
        made = writer.named(output if is_made else "", "MatMul", shares, v)
        if self.columns:
            writer.named(output, "Reshape", made, writer.integers(-1, 1, self.columns))
        elif not self.stacked:
            rows = writer.op("Transpose", made, perm=[0, 2, 1, 3])
            columns = writer.integers(0, 0, self.heads * self.v_width)
            writer.named(output, "Reshape", rows, columns)
        return writer.nodes

    def _repeated(self, writer: NodeWriter, value: str, width: int) -> str:
        times = self.heads // self.kv_heads
        if times == 1:
            return value
        unflattened = writer.op("Unsqueeze", value, writer.integers(2))
        repeated = writer.op("Tile", unflattened, writer.integers(1, 1, times, 1, 1))
        return writer.op("Reshape", repeated, writer.integers(0, self.heads, -1, width))

    def _masked(self, writer: NodeWriter, scores: str, mask: str) -> str:
        if self.mask == "added":
            return writer.op("Add", scores, mask)
        if self.mask == "keys":
            condition = writer.op("Cast", mask, to=onnx.TensorProto.BOOL)
            mask = writer.op("Unsqueeze", condition, writer.integers(1, 2))
        fill = writer.number(self.fill)
        if np.isinf(self.fill):
            return writer.op("Where", mask, scores, fill)
        added = writer.op("Where", mask, writer.number(0.0), fill)
        return writer.op("Add", scores, added)

    def _seen(self, writer: NodeWriter, q: str, transposed: str) -> str:
        queries = writer.op("Shape", q, start=2, end=3)
        keys = writer.op("Shape", transposed, start=3, end=4)
        sizes = writer.op("Concat", queries, keys, axis=0)
        condition = numpy_helper.from_array(np.array([True]))
        ones = writer.op("ConstantOfShape", sizes, value=condition)
        moved: tuple[str, ...] = ()
        if self.causal == "last":
            moved = (writer.op("Squeeze", writer.op("Sub", keys, queries)),)
        seen = writer.op("Trilu", ones, *moved, upper=0)
        if not self.window:
            return seen
        beyond = writer.constant(-self.window)
        beyond = writer.op("Add", *moved, beyond) if moved else beyond
        gone = writer.op("Trilu", ones, beyond, upper=0)
        return writer.op("And", seen, writer.op("Not", gone))


def _written(writer: NodeWriter, past: str, at: str, new: str, present: str) -> str:
    transposed = writer.op("Transpose", past, perm=ROWS_FIRST)
    written = writer.op("ScatterND", transposed, at, new)
    return writer.named(present, "Transpose", written, perm=ROWS_BACK)


def _split_heads(writer: NodeWriter, value: str, heads: int, width: int) -> str:
    unflattened = writer.op("Reshape", value, writer.integers(0, 0, heads, width))
    return writer.op("Transpose", unflattened, perm=[0, 2, 1, 3])

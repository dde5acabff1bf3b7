"""Rotated positions in attention on CUDA: apart from it while regions are looked for.

`GroupQueryAttention` rotates queries and keys with a kernel of its own, 13.6 of the 30
microseconds that it takes at 512 positions of 16 heads of 128 on an H100. The attention kernel has
no place for it: keys would be rotated once for each block of queries. Before it, one generated
kernel rotates both. Where attention did not go into a region the operator is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import onnx_ir as ir

from ortkit.fusion.attention.cuda_semantics import GROUPED
from ortkit.fusion.decompose.run import Decomposition, Surroundings, Wanted
from ortkit.refusal import RefusedError
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Inputs of GroupQueryAttention.
_COS, _SIN, _POSITIONS = 7, 8, 9
#: The default domain's Split takes its sizes as an input since.
_SINCE = 13


@dataclass(frozen=True)
class DecomposeRotary(Decomposition):
    """Let attention read rotated queries and keys, and rotate no more.

    Before:
        y = GroupQueryAttention<do_rotary = 1>(q, k, v, ..., cos, sin)
    After:
        y = GroupQueryAttention<do_rotary = 0>(rotated(q), rotated(k), v, ...)

    Skips:
        * Pairs of neighbours, parts of heads, positions that are given.
    """

    wanted: Wanted
    """Says of an attention without its rotation whether a kernel takes it."""

    @classmethod
    def of(cls, around: Surroundings) -> Self:
        return cls(around.takes_attention)

    name: ClassVar[str] = "decompose-rotary"
    ops: ClassVar[Sequence[str]] = ("::".join(GROUPED),)

    def rewrite(self, site: Site) -> None:
        scope, node = site.scope, site.node
        if site.opset < _SINCE or not _is_rotated(scope, node) or not site.claim("rotary"):
            return
        rotated = _Writer(scope, node, _width(scope, node)).rotated()
        rest = list(node.inputs[len(rotated) :])
        for index in (_COS, _SIN):
            rest[index - len(rotated)] = None
        scope.set_inputs(node, [*rotated, *rest])
        scope.set_attribute(node, "do_rotary", 0)
        if not self.wanted(scope, node):
            raise RefusedError("no kernel takes the attention without its rotation")


def _is_rotated(scope: Scope, node: ir.Node) -> bool:
    """Say whether halves of all heads are rotated, by tables that have a row for each position."""
    if not node.attributes.get_int("do_rotary", 0) or len(node.inputs) <= _SIN:
        return False
    if node.attributes.get_int("rotary_interleaved", 0):
        return False
    if any(value is not None for value in node.inputs[_POSITIONS:]):
        return False
    values = [node.inputs[index] for index in (0, 1, _COS, _SIN)]
    shapes = [None if value is None else scope.shapes.shape(value) for value in values]
    q, k, cos, sin = shapes
    if q is None or k is None or cos is None or cos != sin or len(q) != 3 or len(k) != 3:
        return False
    width = _width(scope, node)
    return width > 0 and width % 2 == 0 and cos == (q[1], width // 2) and q[1] == k[1]


def _counts(node: ir.Node) -> tuple[int, int]:
    count = node.attributes.get_int("num_heads", 0)
    return count, node.attributes.get_int("kv_num_heads", count)


def _width(scope: Scope, node: ir.Node) -> int:
    """Return the columns of a head of Q and K, 0 if that is not known."""
    columns = [_columns(scope, value) for value in node.inputs[:2]]
    counts = _counts(node)
    if min(counts) < 1 or 0 in columns:
        return 0
    widths = {size // count for size, count in zip(columns, counts, strict=True)}
    is_whole = not any(size % count for size, count in zip(columns, counts, strict=True))
    return widths.pop() if is_whole and len(widths) == 1 else 0


def _columns(scope: Scope, value: ir.Value | None) -> int:
    shape = None if value is None else scope.shapes.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


class _Writer:
    """Writes the rotation before a node."""

    def __init__(self, scope: Scope, node: ir.Node, width: int) -> None:
        self._scope = scope
        self._node = node
        self._width = width
        self._heads, self._kv_heads = _counts(node)
        self._tables = [
            self._op("Unsqueeze", node.inputs[index], self._integers(1)) for index in (_COS, _SIN)
        ]

    def rotated(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the queries, the keys and the values to be read.

        Parts of one tensor that lie side by side are rotated at once.
        """
        q, k, v = (value for value in self._node.inputs[:3] if value is not None)
        split = q.producer()
        whole = None if split is None or k.producer() is not split else self._whole(split)
        if split is None or whole is None or not self._are_neighbours(split, q, k):
            return self._rows(q, self._heads), self._rows(k, self._kv_heads), self._alone(v)
        parts = list(split.outputs)
        first = sum(_columns(self._scope, part) for part in parts[: parts.index(q)]) // self._width
        all_heads = _columns(self._scope, whole) // self._width
        both = self._rows(whole, all_heads, first, self._heads + self._kv_heads)
        sizes = (self._heads * self._width, self._kv_heads * self._width)
        q, k = self._split(both, sizes)
        return q, k, self._alone(v)

    def _are_neighbours(self, split: ir.Node, q: ir.Value, k: ir.Value) -> bool:
        """Say whether the keys lie after the queries, and these begin as a head does."""
        parts = list(split.outputs)
        index = parts.index(q)
        first = sum(_columns(self._scope, part) for part in parts[:index])
        return parts[index + 1 : index + 2] == [k] and first % self._width == 0

    def _alone(self, part: ir.Value) -> ir.Value:
        """Return a part of a tensor by a Split of its own, which a region can take in."""
        split = part.producer()
        whole = None if split is None else self._whole(split)
        if split is None or whole is None:
            return part
        sizes = [_columns(self._scope, output) for output in split.outputs]
        return self._split(whole, sizes)[list(split.outputs).index(part)]

    def _whole(self, split: ir.Node) -> ir.Value | None:
        """Return what a Split takes whole heads of, None if it is something else."""
        if split.op_type != "Split" or split.domain or not split.inputs:
            return None
        axis, whole = split.attributes.get_int("axis", 0), split.inputs[0]
        columns = _columns(self._scope, whole)
        if axis not in (2, -1) or not columns or columns % self._width:
            return None
        return whole if all(_columns(self._scope, output) for output in split.outputs) else None

    def _rows(self, rows: ir.Value, heads: int, first: int = 0, count: int = 0) -> ir.Value:
        """Return rows of heads, rotated: all of them, or `count` from the first one on."""
        x = self._op("Reshape", rows, self._integers(0, 0, heads, self._width))
        if count:
            x = self._op(
                "Slice", x, self._integers(first), self._integers(first + count), self._integers(2)
            )
        half = self._width // 2
        low, high = self._insert("Split", [x, self._integers(half, half)], {"axis": 3}, 2)
        cos, sin = self._tables
        parts = (
            self._op("Sub", self._op("Mul", low, cos), self._op("Mul", high, sin)),
            self._op("Add", self._op("Mul", high, cos), self._op("Mul", low, sin)),
        )
        (rotated,) = self._insert("Concat", parts, {"axis": 3})
        return self._op("Reshape", rotated, self._integers(0, 0, (count or heads) * self._width))

    def _split(self, rows: ir.Value, sizes: Sequence[int]) -> tuple[ir.Value, ...]:
        return self._insert("Split", [rows, self._integers(*sizes)], {"axis": 2}, len(sizes))

    def _op(self, op_type: str, *inputs: ir.Value | None) -> ir.Value:
        return self._insert(op_type, inputs)[0]

    def _insert(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, int] | None = None,
        outputs: int = 1,
    ) -> tuple[ir.Value, ...]:
        name = f"{self._node.name}/rotated"
        return self._scope.insert(
            self._node, op_type, inputs, attributes, outputs=outputs, name=name
        )

    def _integers(self, *values: int) -> ir.Value:
        array = np.array(values, np.int64)
        return self._scope.constant(array, f"{self._node.name}/sizes", self._node)

"""Regions of attention, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortkit.fusion.attention_bodies import AttentionBody
from ortkit.kernels import RegionSignature, TensorSpec
from ortkit.kernels.signature import body_text

Size = int | str


def numpy_type(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Case:
    """An attention, sizes by name or number.

    Args:
        packed: Whether Q, K and V are columns of one input.
        mask: The shape of a mask, and of what type.
        others: What else `AttentionBody` is told.
    """

    body: AttentionBody
    batch: Size = 1
    queries: Size = "s"
    keys: Size = "s"
    packed: bool = False
    mask: tuple[Size, ...] = ()
    mask_dtype: str = "float16"

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of Q, K and V."""
        one = self.body
        return one.heads * one.width, one.kv_heads * one.width, one.kv_heads * one.v_width

    def signature(self) -> RegionSignature:
        one, dtype = self.body, self.body.dtype.name
        nodes: list[onnx.NodeProto] = []
        inputs: list[TensorSpec] = []
        lengths = (self.queries, self.keys, self.keys)
        if self.packed:
            inputs.append(TensorSpec("p", dtype, (self.batch, self.queries, sum(self.widths))))
            sizes = numpy_helper.from_array(np.array(self.widths, np.int64))
            nodes.append(helper.make_node("Constant", [], ["sizes"], value=sizes))
            nodes.append(helper.make_node("Split", ["x0", "sizes"], ["q", "k", "v"], axis=2))
            names = ["q", "k", "v"]
        else:
            counts = (one.heads, one.kv_heads, one.kv_heads)
            each = (one.width, one.width, one.v_width)
            for count, width, rows in zip(counts, each, lengths, strict=True):
                flat = (self.batch, rows, count * width)
                shape = (self.batch, count, rows, width) if one.stacked else flat
                inputs.append(TensorSpec("x", dtype, shape))
            names = ["x0", "x1", "x2"]
        if self.mask:
            names.append(f"x{len(inputs)}")
            inputs.append(TensorSpec("m", self.mask_dtype, self.mask))
        nodes += one.nodes(names, "y")
        rows = (self.batch, self.queries, one.heads * one.v_width)
        result = (self.batch, one.heads, self.queries, one.v_width) if one.stacked else rows
        function = helper.make_function(
            "", "attention", [f"x{i}" for i in range(len(inputs))], ["y"], nodes,
            [helper.make_opsetid("", 20)],
        )  # fmt: skip
        output = TensorSpec("y", dtype, result)
        return RegionSignature("attention", body_text(function), tuple(inputs), (output,))

    def expected(self, feeds: list[np.ndarray]) -> np.ndarray:
        """What it computes, in float64; queries that see no key give zero."""
        one = self.body
        wide = [np.asarray(feed, np.float64) for feed in feeds]
        operands = wide[:3]
        if self.packed:
            operands = np.split(wide[0], np.cumsum(self.widths)[:2], -1)
        if not one.stacked:
            counts = (one.heads, one.kv_heads, one.kv_heads)
            operands = [
                x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)
                for x, count in zip(operands, counts, strict=True)
            ]
        q, k, v = operands
        k, v = (np.repeat(x, one.heads // one.kv_heads, 1) for x in (k, v))
        scores = q @ k.transpose(0, 1, 3, 2) * one.scale
        if one.softcap:
            scores = np.tanh(scores / one.softcap) * one.softcap
        if one.mask:
            mask = wide[-1]
            mask = mask[:, None, None, :] if one.mask == "keys" else mask
            scores = scores + (mask if one.mask == "added" else np.where(mask, 0.0, one.fill))
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
        i = i + (k.shape[2] - q.shape[2] if one.causal == "last" else 0)
        if one.causal:
            is_seen = (j <= i) & ((j > i - one.window) if one.window else True)
            scores = np.where(is_seen, scores, -np.inf)
        highest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isinf(highest), 0, highest))
        total = weights.sum(-1, keepdims=True)
        made = (weights / np.where(total == 0, 1, total)) @ v
        if one.stacked:
            return made
        return made.transpose(0, 2, 1, 3).reshape(*made.shape[::2][:1], made.shape[2], -1)

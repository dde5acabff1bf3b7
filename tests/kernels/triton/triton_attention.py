"""Regions of attention, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortkit.kernels.attention_body import AttentionBody
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text
from ortkit.kernels.sizes import extent_of

Size = int | str


def numpy_type(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Case:
    """An attention, sizes by name or number.

    Args:
        packed: Whether Q, K and V are columns of one input.
        biased: Whether a row is added to that one.
        mask: The shape of a mask, and of what type.
        past: Rows of the cache that the new keys are appended to, if there is one; `keys` are
            all of them.
        at: The row of it that is overwritten instead, counted from the end if negative.
    """

    body: AttentionBody
    batch: Size = 1
    queries: Size = "s"
    keys: Size = "s"
    packed: bool = False
    biased: bool = False
    mask: tuple[Size, ...] = ()
    mask_dtype: str = "float16"
    past: Size | None = None
    at: int | None = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of Q, K and V."""
        body = self.body
        return body.heads * body.width, body.kv_heads * body.width, body.kv_heads * body.v_width

    def signature(self) -> RegionSignature:
        one, dtype = self.body, self.body.dtype.name
        nodes: list[onnx.NodeProto] = []
        inputs: list[TensorSpec] = []
        new = self.keys if self.past is None else self.queries
        lengths = (self.queries, new, new)
        if self.packed:
            inputs.append(TensorSpec("p", dtype, (self.batch, self.queries, sum(self.widths))))
            sizes = numpy_helper.from_array(np.array(self.widths, np.int64))
            nodes.append(helper.make_node("Constant", [], ["sizes"], value=sizes))
            whole = "x0"
            if self.biased:
                inputs.append(TensorSpec("bias", dtype, (sum(self.widths),)))
                nodes.append(helper.make_node("Add", ["x0", "x1"], ["whole"]))
                whole = "whole"
            nodes.append(helper.make_node("Split", [whole, "sizes"], ["q", "k", "v"], axis=2))
            names = ["q", "k", "v"]
        else:
            counts = (one.heads, one.kv_heads, one.kv_heads)
            each = (one.width, one.width, one.v_width)
            for name, count, width, rows in zip("qkv", counts, each, lengths, strict=True):
                flat = (self.batch, rows, count * width)
                shape = (self.batch, count, rows, width) if one.stacked else flat
                if one.columns and name == "q":
                    shape = flat
                if self.at is not None and name != "q":
                    shape = (1, self.batch, count, width)
                inputs.append(TensorSpec(name, dtype, shape))
            names = ["x0", "x1", "x2"]
        if self.mask:
            names.append(f"x{len(inputs)}")
            inputs.append(TensorSpec("m", self.mask_dtype, self.mask))
        caches, outputs = [], []
        for name, width in zip("kv", (one.width, one.v_width), strict=True):
            if self.past is None:
                break
            caches.append((f"x{len(inputs)}", f"y{name}"))
            shape = (self.batch, one.kv_heads, self.past, width)
            inputs.append(TensorSpec(f"past_{name}", dtype, shape))
            outputs.append(TensorSpec(f"y{name}", dtype, (*shape[:2], self.keys, width)))
        if self.at is not None:
            inputs.append(TensorSpec("at", "int64", (1, 1)))
        at = "" if self.at is None else f"x{len(inputs) - 1}"
        nodes += one.nodes(names, "y", caches, at)
        rows = (self.batch, self.queries, one.heads * one.v_width)
        is_rows = one.columns or not one.stacked
        result = rows if is_rows else (self.batch, one.heads, self.queries, one.v_width)
        function = helper.make_function(
            "", "attention", [f"x{i}" for i in range(len(inputs))],
            [*(made for _, made in caches), "y"], nodes, [helper.make_opsetid("", 20)],
        )  # fmt: skip
        outputs.append(TensorSpec("y", dtype, result))
        return RegionSignature("attention", body_text(function), tuple(inputs), tuple(outputs))

    def appended(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """The caches with the new rows behind them."""
        if self.past is None:
            return []
        new = feeds[1:3]
        if self.at is not None:
            made = [past.copy() for past in feeds[-3:-1]]
            for cache, row in zip(made, new, strict=True):
                cache[:, :, self.at] = row[0]
            return made
        if self.packed:
            new = np.split(feeds[0], np.cumsum(self.widths)[:2], -1)[1:]
        if not self.body.stacked:
            counts = *new[0].shape[:2], self.body.kv_heads, -1
            new = [item.reshape(counts).transpose(0, 2, 1, 3) for item in new]
        return [np.concatenate(pair, 2) for pair in zip(feeds[-2:], new, strict=True)]

    def expected(self, feeds: list[np.ndarray]) -> np.ndarray:
        """What it computes, in float64; queries that see no key give zero."""
        body = self.body
        wide = [np.asarray(feed, np.float64) for feed in feeds]
        operands = wide[:3]
        if self.packed:
            whole = wide[0] + wide[1] if self.biased else wide[0]
            operands = np.split(whole, np.cumsum(self.widths)[:2], -1)
        if not body.stacked:
            counts = (body.heads, body.kv_heads, body.kv_heads)
            operands = [
                x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)
                for x, count in zip(operands, counts, strict=True)
            ]
        q, k, v = operands
        if body.columns:
            q = q.reshape(-1, body.heads, 1, body.width)
        if self.past is not None:
            k, v = (np.asarray(each, np.float64) for each in self.appended(feeds))
            wide = wide[: len(wide) - (2 if self.at is None else 3)]
        k, v = (np.repeat(x, body.heads // body.kv_heads, 1) for x in (k, v))
        scores = q @ k.transpose(0, 1, 3, 2) * body.scale
        if body.softcap:
            scores = np.tanh(scores / body.softcap) * body.softcap
        if body.mask:
            mask = wide[-1]
            mask = mask[:, None, None, :] if body.mask == "keys" else mask
            scores = scores + (mask if body.mask == "added" else np.where(mask, 0.0, body.fill))
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
        i = i + (k.shape[2] - q.shape[2] if body.causal == "last" else 0)
        if body.causal:
            is_seen = (j <= i) & ((j > i - body.window) if body.window else True)
            scores = np.where(is_seen, scores, -np.inf)
        highest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isinf(highest), 0, highest))
        total = weights.sum(-1, keepdims=True)
        made = (weights / np.where(total == 0, 1, total)) @ v
        if body.columns:
            return made.reshape(-1, 1, body.columns)
        if body.stacked:
            return made
        return made.transpose(0, 2, 1, 3).reshape(*made.shape[::2][:1], made.shape[2], -1)


HALF = np.dtype(np.float16)
PLAIN = AttentionBody(2, 2, 32, 32, HALF, 32**-0.5)
WIDE = AttentionBody(2, 2, 64, 64, HALF, 64**-0.5)
#: Sizes that blocks do not divide, and sizes that they do.
SIZES, WHOLE = {"b": 2, "s": 70, "t": 150, "p": 149}, {"b": 2, "s": 128, "t": 256, "p": 255}
CASES = {
    "plain": Case(PLAIN),
    "samples": Case(PLAIN, batch="b"),
    "known sizes": Case(PLAIN, queries=64, keys=128),
    "known sizes, not whole": Case(PLAIN, queries=33, keys=65),
    "other keys": Case(PLAIN, batch="b", keys="t"),
    "columns of one": Case(PLAIN, batch="b", packed=True),
    "columns of one, with a bias": Case(PLAIN, batch="b", packed=True, biased=True),
    "columns of one, with a bias and a mask": Case(
        replace(PLAIN, mask="chosen", width=80, v_width=48, scale=0.1),
        "b",
        packed=True,
        biased=True,
        mask=("b", 1, 1, "s"),
        mask_dtype="bool",
    ),
    "heads for themselves": Case(replace(PLAIN, stacked=True), batch="b", keys="t"),
    "causal": Case(replace(PLAIN, causal="first")),
    "causal, fewer queries": Case(replace(PLAIN, causal="first"), keys="t"),
    "causal to the last": Case(replace(PLAIN, causal="last"), batch="b", keys="t"),
    "window": Case(replace(PLAIN, causal="first", window=37)),
    "window to the last": Case(replace(PLAIN, causal="last", window=50), keys="t"),
    "shared heads": Case(replace(PLAIN, heads=4, causal="first"), batch="b"),
    "shared heads, stacked": Case(replace(PLAIN, heads=4, stacked=True), batch="b"),
    "cap": Case(replace(PLAIN, softcap=2.0, scale=1.0)),
    "cap and causal": Case(replace(PLAIN, softcap=1.5, causal="first", scale=1.0)),
    "added": Case(replace(PLAIN, mask="added"), batch="b", mask=("b", 1, "s", "s")),
    "added by head": Case(replace(PLAIN, mask="added"), batch="b", mask=(1, 2, "s", "s")),
    "added to all queries": Case(replace(PLAIN, mask="added"), "b", mask=("b", 1, 1, "s")),
    "chosen": Case(replace(PLAIN, mask="chosen"), "b", mask=("b", 1, "s", "s"), mask_dtype="bool"),
    "chosen keys": Case(
        replace(PLAIN, mask="chosen"), "b", mask=("b", 1, 1, "s"), mask_dtype="bool"
    ),
    "chosen keys by head, causal": Case(
        replace(PLAIN, mask="chosen", causal="first"), "b", mask=(1, 2, 1, "s"), mask_dtype="bool"
    ),
    "keys of int32": Case(
        replace(PLAIN, mask="keys", fill=-10000.0), "b", mask=("b", "s"), mask_dtype="int32"
    ),
    "cap and mask": Case(
        replace(PLAIN, softcap=2.0, scale=1.0, mask="added"), "b", mask=("b", 1, "s", "s")
    ),
    "bfloat16": Case(replace(PLAIN, dtype=numpy_type("bfloat16"), causal="first")),
    "widths of 80 and 48": Case(replace(PLAIN, width=80, v_width=48, scale=0.1)),
    "width 96": Case(replace(PLAIN, width=96, v_width=96, scale=0.1, causal="first")),
    "width 40": Case(replace(PLAIN, width=40, v_width=40, scale=0.1)),
    "width 8": Case(replace(PLAIN, width=8, v_width=8, scale=0.3)),
    "width 72": Case(replace(PLAIN, width=72, v_width=72, scale=0.1)),
    "width 128": Case(replace(PLAIN, width=128, v_width=128, scale=0.1)),
    "width 64": Case(replace(WIDE, causal="last"), batch="b", keys="t"),
    "width 64, columns of one with a bias": Case(WIDE, batch="b", packed=True, biased=True),
    "width 64, stacked and shared": Case(
        replace(WIDE, heads=4, stacked=True, causal="first", window=70), batch="b", keys="t"
    ),
    "width 64, cap": Case(replace(WIDE, softcap=2.0), queries="s", keys="t"),
    "width 64, chosen keys": Case(
        replace(WIDE, mask="chosen"), "b", mask=("b", 1, 1, "s"), mask_dtype="bool"
    ),
    "width 64, keys of int32, causal": Case(
        replace(WIDE, mask="keys", fill=-10000.0, causal="first"),
        "b",
        mask=("b", "s"),
        mask_dtype="int32",
    ),
    "width 64, added by head": Case(replace(WIDE, mask="added"), mask=(1, 2, 1, "s")),
    "width 64, added by query and head": Case(
        replace(WIDE, mask="added"), "b", keys=408, mask=("b", 2, "s", 408)
    ),
    "width 64, chosen by query": Case(
        replace(WIDE, mask="chosen"), "b", keys=272, mask=("b", 1, "s", 272), mask_dtype="bool"
    ),
    "width 64, filled by query, causal": Case(
        replace(WIDE, mask="chosen", fill=-7.5, causal="first"),
        keys=144,
        mask=("s", 144),
        mask_dtype="bool",
    ),
    "width 64, cap and a mask by query": Case(
        replace(WIDE, softcap=2.0, mask="added", heads=4), keys=144, mask=(1, 1, "s", 144)
    ),
    "width 64, bfloat16": Case(replace(WIDE, dtype=numpy_type("bfloat16"), causal="first")),
    "width 128, chosen keys to the last": Case(
        replace(WIDE, width=128, v_width=128, mask="chosen", causal="last"),
        "b",
        keys="t",
        mask=("b", 1, 1, "t"),
        mask_dtype="bool",
    ),
    "widths 96 and 72": Case(replace(WIDE, width=96, v_width=72), batch="b", keys="t"),
    "one query": Case(PLAIN, batch="b", queries=1, keys="t"),
    "one query of heads for themselves": Case(replace(PLAIN, stacked=True), "b", 1, "t"),
    "one query of shared heads": Case(
        replace(PLAIN, heads=8, width=80, v_width=48, scale=0.1), "b", 1, "t"
    ),
    "few queries, causal to the last": Case(
        replace(PLAIN, heads=4, causal="last"), "b", 5, "t", packed=False
    ),
    "few queries, window": Case(replace(PLAIN, causal="last", window=50), "b", 3, "t"),
    "one query, chosen keys": Case(
        replace(PLAIN, mask="chosen"), "b", 1, "t", mask=("b", 1, 1, "t"), mask_dtype="bool"
    ),
    "one query, added": Case(
        replace(PLAIN, mask="added", softcap=2.0, scale=1.0), "b", 1, "t", mask=(1, 1, 1, "t")
    ),
    "one query, few keys": Case(PLAIN, queries=1, keys=3),
    "a cache": Case(PLAIN, 2, 1, 71, past=70),
    "a cache of shared heads": Case(
        replace(PLAIN, heads=8, width=80, v_width=48, scale=0.1), 2, 1, 300, past=299
    ),
    "a cache, heads for themselves": Case(
        replace(PLAIN, heads=4, stacked=True, mask="chosen"),
        "b",
        1,
        "t",
        mask=("b", 1, 1, "t"),
        mask_dtype="bool",
        past="p",
    ),
    "a cache and a mask of numbers": Case(
        replace(PLAIN, mask="added", softcap=2.0, scale=1.0),
        "b",
        1,
        "t",
        mask=("b", 1, 1, "t"),
        past="p",
    ),
    "a cache and few queries": Case(
        replace(PLAIN, heads=4, causal="last", width=64, v_width=64), 2, 5, 133, past=128
    ),
    "a cache, a window": Case(replace(PLAIN, causal="last", window=50), 1, 3, 203, past=200),
    "a cache, columns of one": Case(PLAIN, 2, 1, 65, packed=True, past=64),
    "a row of a cache": Case(replace(PLAIN, heads=4, stacked=True), 2, 1, 150, past=150, at=149),
    "a row of a cache, counted from the end": Case(
        replace(WIDE, stacked=True, softcap=2.0), "b", 1, "t", past="t", at=-3
    ),
    "a row of a cache and a mask": Case(
        replace(PLAIN, heads=4, stacked=True, mask="chosen"),
        "b",
        1,
        "t",
        mask=("b", 1, 1, "t"),
        mask_dtype="bool",
        past="t",
        at=40,
    ),
    "a row of a cache and a mask of numbers": Case(
        replace(PLAIN, heads=4, stacked=True, mask="added"),
        1,
        1,
        90,
        mask=(1, 1, 1, 90),
        past=90,
        at=0,
    ),
    "one query, and heads for themselves": Case(
        replace(PLAIN, heads=8, stacked=True, columns=256), "b", 1, "t"
    ),
    "one query, a cache of heads for themselves": Case(
        replace(PLAIN, heads=4, v_width=48, stacked=True, columns=192), 2, 1, 80, past=79
    ),
    "an empty cache": Case(PLAIN, 2, 1, 1, past=0),
    "width 256": Case(replace(PLAIN, heads=1, kv_heads=1, width=256, v_width=256, scale=0.1)),
}


def feeds_of(case: Case, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Random inputs. A mask of keys alone keeps a run of them, and others one in two."""
    rng = np.random.default_rng(seed)
    feeds = []
    for spec in case.signature().inputs:
        shape = [
            int(np.prod([sizes[symbol] for symbol in extent_of(dim).symbols]))
            * extent_of(dim).factor
            for dim in spec.shape
        ]
        if spec.name == "at":
            feeds.append(np.full(shape, case.at, np.int64))
            continue
        if spec.name != "m":
            feeds.append(rng.standard_normal(shape).astype(numpy_type(spec.dtype)))
            continue
        kept = rng.random(shape) < 0.5
        if (len(shape) == 2 and spec.dtype == "int32") or shape[-2] == 1:
            first = rng.integers(0, shape[-1] // 2, shape[:-1])
            place = np.arange(shape[-1])
            kept = (place >= first[..., None]) & (place < first[..., None] + shape[-1] // 2)
        if spec.dtype in ("bool", "int32"):
            feeds.append(kept.astype(spec.dtype))
        else:
            feeds.append(
                np.where(kept, rng.standard_normal(shape), -6e4).astype(numpy_type(spec.dtype))
            )
    return feeds


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    error = np.abs(np.asarray(found, np.float64) - wanted).max()
    bound = 2e-2 if found.dtype.name == "bfloat16" else 3e-3
    assert error <= bound * max(1.0, np.abs(wanted).max())


def rounded(case: Case, factor: float) -> RegionSignature:
    """Return the region with its result divided by a number and rounded to eight bits."""
    plain = case.signature()
    function = plain.function()
    (last,) = function.output
    number = numpy_helper.from_array(np.array(factor, np.float32))
    nodes = [
        *function.node,
        helper.make_node("Cast", [last], ["wide"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Constant", [], ["by"], value=number),
        helper.make_node("Div", ["wide", "by"], ["ratio"]),
        helper.make_node("Cast", ["ratio"], ["narrow"], to=onnx.TensorProto.FLOAT8E4M3FN),
    ]
    made = helper.make_function(
        function.domain, function.name, function.input, ["narrow"], nodes, function.opset_import
    )
    outputs = (replace(plain.outputs[0], dtype="float8_e4m3fn"),)
    return replace(plain, body=body_text(made), outputs=outputs)

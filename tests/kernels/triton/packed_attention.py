"""Attention of packed rows: cases, their inputs, and each sample's attention in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortkit.fusion.attention.cuda_packed import packed_nodes
from ortkit.kernels.attention_body import AttentionBody
from ortkit.kernels.signature import RegionSignature, TensorSpec


@dataclass(frozen=True)
class Case:
    """Heads, how a mask is written, and how many positions each sample keeps of how many."""

    width: int
    mask: str
    kept: tuple[int, ...]
    length: int
    is_whole: bool = True
    softcap: float = 0.0


CASES = {
    "one tensor": Case(64, "chosen", (17, 1, 40), 40),
    "three tensors": Case(64, "chosen", (5, 33), 33, is_whole=False),
    "a sample without rows first": Case(32, "chosen", (0, 7, 0, 3), 9),
    "numbers are added": Case(32, "added", (70, 9), 70),
    "a number for each key": Case(32, "keys", (3, 130), 130),
    "96 channels": Case(96, "chosen", (18, 4), 20),
    "scores are bounded": Case(32, "chosen", (12, 20), 20, softcap=5.0),
}
HEADS = 2


def signature_of(case: Case) -> RegionSignature:
    fill = -np.inf if case.mask == "chosen" else -10000.0
    body = AttentionBody(
        HEADS, HEADS, case.width, case.width, np.dtype(np.float16), case.width**-0.5,
        mask=case.mask, fill=fill, softcap=case.softcap,  # type: ignore[arg-type]
    )  # fmt: skip
    columns = HEADS * case.width
    wide = [TensorSpec("p", "float16", (1, "t", 3 * columns))]
    apart = [TensorSpec(name, "float16", (1, "t", columns)) for name in "qkv"]
    mask = {
        "chosen": TensorSpec("m", "bool", ("b", 1, 1, "s")),
        "added": TensorSpec("m", "float16", ("b", 1, 1, "s")),
        "keys": TensorSpec("m", "int32", ("b", "s")),
    }[case.mask]
    inputs = [
        *(wide if case.is_whole else apart), mask, TensorSpec("places", "int64", ("b", "s")),
        TensorSpec("indices", "int64", (1, "t")),
    ]  # fmt: skip
    widths = [columns] * 3
    text = packed_nodes(body, len(inputs), widths, is_whole=case.is_whole, opset=20)
    return RegionSignature(
        "packed_attention", text, tuple(inputs), (TensorSpec("y", "float16", (1, "t", columns)),)
    )


def feeds_of(case: Case, random: np.random.Generator) -> list[np.ndarray]:
    columns = HEADS * case.width
    kept = np.zeros((len(case.kept), case.length), np.bool_)
    for row, count in zip(kept, case.kept, strict=True):
        row[random.choice(case.length, count, replace=False)] = True
    rows = int(kept.sum())
    values = random.standard_normal((1, rows, 3 * columns)).astype(np.float16)
    parts = (
        [values] if case.is_whole else [np.ascontiguousarray(x) for x in np.split(values, 3, 2)]
    )
    # Some that are kept are masked all the same, but not all of a sample.
    seen = kept & (random.random(kept.shape) < 0.7)
    for row, is_kept in zip(seen, kept, strict=True):
        if is_kept.any():
            row[np.argmax(is_kept)] = True
    masks = {
        "chosen": seen[:, None, None], "keys": seen.astype(np.int32),
        "added": np.where(seen, 0.5, -np.inf).astype(np.float16)[:, None, None],
    }  # fmt: skip
    places = (np.cumsum(kept) - 1).reshape(kept.shape).astype(np.int64)
    return [*parts, masks[case.mask], places, np.flatnonzero(kept)[None].astype(np.int64)]


def expected(case: Case, feeds: list[np.ndarray]) -> np.ndarray:
    *parts, mask, _, indices = [np.asarray(feed) for feed in feeds]
    values = np.concatenate([part.astype(np.float64) for part in parts], 2)[0]
    q, k, v = np.split(values, 3, 1)
    found = np.zeros_like(q)
    flat = mask.reshape(-1)
    for sample in range(len(case.kept)):
        rows = np.flatnonzero(indices[0] // case.length == sample)
        added = flat[indices[0][rows]]
        bias = added.astype(np.float64) if case.mask == "added" else np.where(added, 0.0, -np.inf)
        for head in range(HEADS):
            at = slice(head * case.width, (head + 1) * case.width)
            scores = q[rows, at] @ k[rows, at].T * case.width**-0.5
            if case.softcap:
                scores = np.tanh(scores / case.softcap) * case.softcap
            scores = scores + bias
            if not rows.size:
                continue
            weights = np.exp(scores - scores.max(1, keepdims=True))
            found[rows, at] = weights / weights.sum(1, keepdims=True) @ v[rows, at]
    return found[None]

"""Attention's kernel by Triton's interpreter, against attention in float64."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from interpreter import Interpreter
from triton_attention import Case, numpy_type

from ortkit.fusion.attention_bodies import AttentionBody
from ortkit.kernels.sizes import extent_of

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

HALF = np.dtype(np.float16)
PLAIN = AttentionBody(2, 2, 32, 32, HALF, 32**-0.5)
SIZES = {"b": 2, "s": 70, "t": 150}
CASES = {
    "plain": Case(PLAIN),
    "samples": Case(PLAIN, batch="b"),
    "known sizes": Case(PLAIN, queries=64, keys=128),
    "known sizes, not whole": Case(PLAIN, queries=33, keys=65),
    "other keys": Case(PLAIN, batch="b", keys="t"),
    "columns of one": Case(PLAIN, batch="b", packed=True),
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
    "added of float32": Case(
        replace(PLAIN, mask="added"), "b", mask=("s", "s"), mask_dtype="float32"
    ),
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
    "width 256": Case(replace(PLAIN, heads=1, kv_heads=1, width=256, v_width=256, scale=0.1)),
}


def feeds_of(case: Case, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Random inputs. A mask of keys alone keeps a run of them, and others one in two."""
    rng = np.random.default_rng(seed)
    feeds = []
    for spec in case.signature().inputs:
        shape = [
            int(np.prod([sizes[one] for one in extent_of(dim).symbols])) * extent_of(dim).factor
            for dim in spec.shape
        ]
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


@pytest.mark.parametrize("name", CASES)
def test_it_computes_attention(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    feeds = feeds_of(case, SIZES)
    found = interpreter.run(case.signature(), feeds)[0]
    assert_close(found, case.expected(feeds))

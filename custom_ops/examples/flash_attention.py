"""Flash attention: scaled dot products of queries and keys, softmax and values, block by block."""

# mypy: ignore-errors
# ruff: noqa: F722

import numpy as np
import onnxscript
from onnxscript import opset23 as op

import ortkit


@ortkit.custom_op("ortkit.examples::FlashAttention")
def flash_attention(
    q: ortkit.Float["batch 8 queries 64"],
    k: ortkit.Float["batch 8 keys 64"],
    v: ortkit.Float["batch 8 keys 64"],
) -> ortkit.Float["batch 8 queries 64"]:
    """Return softmax(q k^T / 8) v for each of 8 heads of width 64."""
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) / 8
    e = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return ((e / e.sum(axis=-1, keepdims=True)) @ v.astype(np.float64)).astype(q.dtype)


@flash_attention.body
@onnxscript.script(default_opset=op)
def body(q, k, v):
    return op.Attention(q, k, v)


# Measured on an H100; small blocks where there are few of them.
for _queries, _keys, _warps, _stages, _types, _when in (
    (64, 128, 4, 2, ("float16", "bfloat16"), "8*batch*queries <= 24000"),
    (128, 64, 8, 3, ("float16", "bfloat16"), ""),
    (64, 32, 4, 2, ("float32",), ""),
):
    flash_attention.kernel(
        "triton", "ortkit.custom_ops.examples.gpu.flash_attention:flash_attention",
        dtypes=_types, grid=("ceil(queries / QUERIES)", "8*batch"), warps=_warps,
        stages=_stages, when=_when,
        constants={"WIDTH": 64, "QUERIES": _queries, "KEYS": _keys},
    )  # fmt: skip

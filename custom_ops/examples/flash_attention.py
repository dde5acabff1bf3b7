"""Flash attention: scaled dot products of queries and keys, softmax and values, block by block."""

# mypy: ignore-errors
# ruff: noqa: F722

import numpy as np
import onnxscript
from onnxscript import opset23 as op

import ortkit

GPU = "ortkit.custom_ops.examples.gpu."
HALF = ("float16", "bfloat16")
FEW = "8*batch*queries <= 24000"


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


# Measured on an H100; small blocks where there are few of them, and a kernel for it where there
# are more: its parameters are maps of the tensors, of which it copies boxes.
flash_attention.kernel(
    "triton", f"{GPU}flash_attention:flash_attention", dtypes=HALF, when=FEW, warps=4, stages=2,
    grid=("ceil(queries / QUERIES)", "8*batch"),
    constants={"WIDTH": 64, "QUERIES": 64, "KEYS": 128},
)  # fmt: skip
flash_attention.kernel(
    "triton", f"{GPU}flash_attention_hopper:flash_attention", dtypes=HALF, architectures=90,
    grid=("ceil(queries / 192)", "8", "batch"), constants={"WIDTH": 64, "KEYS": 128},
    boxes={"q": (1, 1, 64, "WIDTH"), "k": (1, 1, "KEYS", "WIDTH"), "v": (1, 1, "KEYS", "WIDTH"),
           "y": (1, 1, 64, "WIDTH")},
    warps=4, workers=12,
)  # fmt: skip
for _types, _queries, _keys, _warps, _stages in ((HALF, 128, 64, 8, 3), ("float32", 64, 32, 4, 2)):
    flash_attention.kernel(
        "triton", f"{GPU}flash_attention:flash_attention", dtypes=_types, warps=_warps,
        stages=_stages, grid=("ceil(queries / QUERIES)", "8*batch"),
        constants={"WIDTH": 64, "QUERIES": _queries, "KEYS": _keys},
    )  # fmt: skip

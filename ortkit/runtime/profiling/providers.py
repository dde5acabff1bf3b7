"""Whose kernels go on when their node has ended."""

from __future__ import annotations

#: Their kernels go on when the node has ended: its time is that of launching them.
ASYNCHRONOUS = frozenset(
    f"{name}ExecutionProvider"
    for name in ("CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX", "Dml", "WebGpu", "Js")
)

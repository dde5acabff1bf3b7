"""Whether a candidate refuses empty batches that the original computes."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.walk import nodes_below, roots
from ortkit.kernels.signature import DOMAIN

REMARK = "; an empty batch fails: ONNX Runtime's Attention refuses it"


def empty_batch(original: ir.Model, candidate: ir.Model, *, has_kernels: bool) -> str:
    """Return what a verdict adds of a candidate that refuses empty batches; else nothing.

    No input set is empty, as nothing of it could be compared. ONNX Runtime (1.31.1) refuses empty
    queries in Attention on the CPU, and computes empty results of the nodes that it stands for.

    Args:
        original: Nothing is added if it uses the operator too, or if all its sizes are fixed.
        candidate: The model that is judged.
        has_kernels: Whether kernels stand for its fused nodes: they compute empty results.
    """
    sizes = [size for value in original.graph.inputs for size in value.shape or ()]
    is_fixed = all(isinstance(size, int) for size in sizes)
    if is_fixed or _has_attention(original, has_kernels=False):
        return ""
    return REMARK if _has_attention(candidate, has_kernels=has_kernels) else ""


def _has_attention(model: ir.Model, *, has_kernels: bool) -> bool:
    return any(
        node.op_type == "Attention" and node.domain == ""
        for root in roots(model)
        if not (has_kernels and isinstance(root, ir.Function) and root.domain == DOMAIN)
        for node in nodes_below(root)
    )

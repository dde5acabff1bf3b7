"""Products and attention in bfloat16 that became no kernel: as nodes they only cost."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

#: What a product is called before its bias and activation, behind its key.
PRODUCT = "/product"
#: What attention is called before its result is rounded, behind its key.
ATTENTION = "/attention"


def left_over(model: ir.Model, keys: Collection[str]) -> frozenset[str]:
    """Return which of the products that were lowered are nodes still.

    Args:
        model: Fused.
        keys: Of those in bfloat16.
    """
    found = set()
    for node in model.graph:
        if node.domain or node.op_type not in ("Attention", "Conv", "MatMul"):
            continue
        name = node.outputs[0].name or ""
        end = ATTENTION if node.op_type == "Attention" else PRODUCT
        key = name if name in keys else name.rpartition(end)[0]
        if key in keys:
            found.add(key)
    return frozenset(found)

"""Ops whose result differs from run to run."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.operators import where

RANDOM = where(random=True) - {"Dropout"}  # whose inputs say whether


def is_random(node: ir.Node) -> bool:
    """Say whether two runs of `node` may differ."""
    if node.domain == "" and node.op_type == "Dropout":
        return len(node.inputs) > 2
    return node.domain == "" and node.op_type in RANDOM

"""Ops whose result differs from run to run."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.operators import operator


def is_random(node: ir.Node) -> bool:
    """Say whether two runs of `node` may differ."""
    info = operator(node.domain, node.op_type)
    if info is None or not info.random:
        return False
    return info.training_input is None or len(node.inputs) > info.training_input

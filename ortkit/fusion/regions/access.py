"""How the operators read that a region may hold; all others end one."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.region.views import VIEWS as KERNEL_VIEWS
from ortkit.operators import operator, where
from ortkit.operators.info import Access

#: Neither a copy nor a change of order: ONNX Runtime mostly does these by sharing memory.
RESHAPES = where(reshapes=True)
VIEWS = where(access="view") & KERNEL_VIEWS.keys()
_STANDARD = (
    (where(access="elementwise") & POINTWISE_OPS.keys())
    | VIEWS
    | where(access=frozenset({"reduction", "normalization", "rotary"}))
)
#: ONNX Runtime's own, each written back in standard ops by `ortkit.fusion.regions.bodies`.
_RUNTIME_OWN = where(domain="com.microsoft", access=frozenset({"elementwise", "normalization"}))


def access_of(node: ir.Node) -> Access | None:
    """Return what the operator is to a region; None if it ends one."""
    members = _RUNTIME_OWN if node.domain == "com.microsoft" else _STANDARD
    info = operator(node.domain, node.op_type)
    return info.access if info is not None and node.op_type in members else None


def is_read_once(value: ir.Value) -> bool:
    """Say whether one input of one node is all that reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node of which one input is all that reads a value."""
    return next(iter(value.uses())).node if is_read_once(value) else None

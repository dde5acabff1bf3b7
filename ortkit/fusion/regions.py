"""Finding regions: groups of nodes that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

PASS = "fuse-regions"
#: (domain, op type); in ONNX Runtime's domain some take the bias as second input.
GELUS = frozenset(
    {("", "Gelu")} | {("com.microsoft", name) for name in ("BiasGelu", "FastGelu", "Gelu")}
)


@dataclass(frozen=True)
class FusedRegion:
    """Nodes to become one kernel; valid until the graph is next edited."""

    kind: str
    """A readable word, an identifier: it begins the op's name."""
    nodes: tuple[ir.Node, ...]
    """In topological order."""
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    anchor: ir.Node
    """The node where the fused node goes: the last one."""


def find_regions(scope: Scope) -> Iterator[FusedRegion]:
    """Yield regions that share no node; what is considered and refused leaves its reason."""
    for node in scope.nodes():
        if (node.domain, node.op_type) not in GELUS:
            continue
        if node.domain and scope.shapes.dtype(node.outputs[0]) != ir.DataType.FLOAT:
            scope.log.miss(PASS, describe(node), "its body in standard ops is of float32")
            continue
        has_bias = len(node.inputs) > 1
        region = _with_its_bias(scope, node) if has_bias else _bias_gelu(scope, node)
        if region is not None:
            yield region


def _with_its_bias(scope: Scope, gelu: ir.Node) -> FusedRegion | None:
    """Return the node alone, which adds a bias itself."""
    x, bias = gelu.inputs[:2]
    if x is None or bias is None or not _is_row(scope, bias, x):
        scope.log.miss(PASS, describe(gelu), "its bias is not one constant per column")
        return None
    return FusedRegion("bias_gelu", (gelu,), (x, bias), (gelu.outputs[0],), gelu)


def _bias_gelu(scope: Scope, gelu: ir.Node) -> FusedRegion | None:
    """Return Gelu(X + B) with B one number per column, as a linear layer makes it."""
    before = gelu.inputs[0]
    add = None if before is None else before.producer()
    if before is None or add is None or add.op_type != "Add" or add.domain != "":
        scope.log.miss(PASS, describe(gelu), "no bias is added before it")
        return None
    if len(before.uses()) > 1 or before.is_graph_output() or add.graph is not gelu.graph:
        scope.log.miss(PASS, describe(gelu), "what it is applied to is read elsewhere")
        return None
    for bias, x in ((add.inputs[1], add.inputs[0]), (add.inputs[0], add.inputs[1])):
        if bias is None or x is None or not _is_row(scope, bias, x):
            continue
        return FusedRegion("bias_gelu", (add, gelu), (x, bias), (gelu.outputs[0],), gelu)
    scope.log.miss(PASS, describe(gelu), "what is added before it is not one constant per column")
    return None


def _is_row(scope: Scope, bias: ir.Value, x: ir.Value) -> bool:
    row, full = scope.shapes.shape(bias), scope.shapes.shape(x)
    if row is None or full is None or not scope.is_constant(bias):
        return False
    return len(row) == 1 and len(full) >= 2 and isinstance(row[0], int) and full[-1] == row[0]

"""Split a fused gate-up projection (GLU, SwiGLU) into two matmuls before regions are formed.

The projection (Phi-3, GLM-4, Llama 4) is a matmul, a Split in two halves, and their elementwise
product. As two matmuls both sums stay in the registers of one kernel. A pair that went into no
region becomes one matmul again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.fusion.decompose.run import Decomposition, Wanted
from ortkit.fusion.gemm.cuda import (
    epilogue_chain_of,
    is_product,
    is_transposed,
    prefers_split_gate_up,
)
from ortkit.fusion.regions.access import only_reader
from ortkit.refusal import RefusedError
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

_HALF_COUNT = 2


@dataclass(frozen=True)
class DecomposeGateUp(Decomposition):
    """Split a gate-up projection into two matmuls.

    Before:
        a, d = Split(MatMul(x, w))
    After:
        a = MatMul(x, w/half_0);  d = MatMul(x, w/half_1)

    Skips:
        * Halves that do not go into one kernel.
    """

    name: ClassVar[str] = "decompose-gate-up"
    ops: ClassVar[Sequence[str]] = ("MatMul",)

    wanted: Wanted = prefers_split_gate_up
    """True for a matmul that is faster as two in one kernel."""

    def rewrite(self, site: Site) -> None:
        scope, (rows, matrix) = site.scope, site.node.inputs
        split = _split_consumer(scope, site.node)
        if split is None or matrix is None or not self.wanted(scope, site.node):
            return
        if not site.claim("gate-up"):
            return
        array = scope.array(matrix)
        assert array is not None
        made = list[ir.Value]()
        parts = np.split(array, _HALF_COUNT, axis=-1)
        for number, (part, old) in enumerate(zip(parts, list(split.outputs), strict=True)):
            tensor = ir.tensor(np.ascontiguousarray(part))
            half = scope.initializer(tensor, f"{matrix.name}/half_{number}")
            new = site.op("MatMul", [rows, half], name=f"{old.name}/half")
            scope.replace(old, new)
            made.append(new)
        first = made[0].producer()
        assert first is not None
        if len(epilogue_chain_of(scope, first, set()).products) != _HALF_COUNT:
            raise RefusedError("both halves are not in one kernel")


def _split_consumer(scope: Scope, node: ir.Node) -> ir.Node | None:
    """Return the only consumer of a matmul if it is a Split of N into two halves."""
    if not is_product(scope, node) or node.op_type != "MatMul" or is_transposed(node):
        return None
    value = node.outputs[0]
    split = only_reader(value)
    if split is None or split.op_type != "Split" or split.domain or split.graph is not node.graph:
        return None
    columns = scope.shapes.shape(value) or ()
    parts = [scope.shapes.shape(output) or () for output in split.outputs]
    if len(parts) != _HALF_COUNT or any(item.is_graph_output() for item in split.outputs):
        return None
    if any(len(part) != len(columns) or part[:-1] != columns[:-1] for part in parts):
        return None
    return split if parts[0][-1] == parts[1][-1] else None

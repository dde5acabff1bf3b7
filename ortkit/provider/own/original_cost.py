"""What nodes of the original take in ONNX Runtime, where the copy has them in another form.

Attention that is written out in products and a softmax costs more than the one node that the copy
has for it. The provider cannot put that node there, so a kernel is measured against what is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import CostModel, Prediction, nominal
from ortkit.fusion.regions.region import FusedRegion
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.tuning.calibration import Calibration
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope

#: Multiply-adds a nanosecond of ONNX Runtime's products of heads, one core with AVX-512 (2026-11).
MULTIPLIES = 85.0
_PRODUCTS = frozenset({"FusedMatMul", "Gemm", "MatMul"})


class OriginalCost:
    """Costs of the nodes of one model, whose main graph is not changed."""

    def __init__(self, original: ir.Model, shapes: Shapes, calibration: Calibration) -> None:
        """Look at the main graph of `original`."""
        target = RewriteOptions(level=2)
        self._scope = Scope(original, original.graph, shapes, RewriteLog(), target)
        self._cost = CostModel(self._scope, calibration)

    def predict(self, nodes: Sequence[ir.Node], after_ns: float) -> Prediction | str:
        """Return what nodes take and what a program in their place does, or why it does not pay.

        Args:
            nodes: Of the original, in order.
            after_ns: Of the program.
        """
        made = {value for node in nodes for value in node.outputs}
        read = {v: None for node in nodes for v in node.inputs if v is not None and v not in made}
        region = FusedRegion("nodes", tuple(nodes), tuple(read), tuple(nodes[-1].outputs))
        before = self._cost.predict(region).before_ns
        prediction = Prediction(before + sum(map(self._product_ns, nodes)), after_ns)
        return self._cost.refusal(region, prediction) or prediction

    def _product_ns(self, node: ir.Node) -> float:
        """Return what the multiply-adds of a product take."""
        left = node.inputs[0] if node.inputs else None
        if node.op_type not in _PRODUCTS or left is None:
            return 0.0
        rows = self._cost.elements(left)
        columns = (self._scope.shapes.shape(node.outputs[0]) or (1,))[-1]
        return rows * nominal(columns) / MULTIPLIES

"""What a model consists of, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.walk import nodes_below


@dataclass(frozen=True)
class Summary:
    """Counts over the main graph and everything nested in it."""

    nodes: int
    ops: dict[str, int]
    """Nodes by op type, most frequent first."""
    parameters: int
    """Elements of all initializers."""
    weight_bytes: int

    @staticmethod
    def of(model: ir.Model) -> Summary:
        """Count `model`; weights are not read."""
        counts = Counter(
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            for node in nodes_below(model.graph)
        )
        tensors = [
            value.const_value
            for graph in (model.graph, *model.graph.subgraphs())
            for value in graph.initializers.values()
            if value.const_value is not None
        ]
        return Summary(
            counts.total(),
            dict(counts.most_common()),
            sum(int(tensor.size) for tensor in tensors),
            sum(int(tensor.nbytes) for tensor in tensors),
        )

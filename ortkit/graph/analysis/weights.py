"""How much a model's weights are."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import onnx_ir as ir

from ortkit.graph.walk import nodes_below, roots, subgraphs


@dataclass(frozen=True)
class Weights:
    """The tensors that a model file brings: initializers and constants."""

    tensors: int
    bytes: int

    def to_json(self) -> dict[str, int]:
        """Return the fields."""
        return asdict(self)


def weights_of(model: ir.Model) -> Weights:
    """Count each tensor once, those of subgraphs and functions too."""
    found: dict[int, int] = {}
    for root in roots(model):
        graphs = [root] if isinstance(root, ir.Graph) else []
        for node in nodes_below(root):
            graphs += subgraphs(node)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = attribute.as_tensor()
                    found[id(tensor)] = tensor.nbytes
        for graph in graphs:
            for value in graph.initializers.values():
                if value.const_value is not None:
                    found[id(value.const_value)] = value.const_value.nbytes
    return Weights(len(found), sum(found.values()))

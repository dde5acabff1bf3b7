"""drop-unused: initializers and functions that nothing refers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.constants import OVERRIDABLE_SINCE_IR
from ortkit.graph.walk import nodes_below, roots
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope


@dataclass(frozen=True)
class DropUnused(GraphPass):
    """Remove initializers that no node reads, and functions that no node calls.

    Skips:
        * Initializers that are graph inputs or outputs: they are the model's interface. Before
          IR version 4 every initializer had to be listed as an input; there it goes with the
          initializer.
    """

    name: ClassVar[str] = "drop-unused"

    def run(self, scope: Scope) -> None:
        if not isinstance(scope.root, ir.Graph):
            return
        for graph in [scope.root, *scope.root.subgraphs()]:
            for value in list(graph.initializers.values()):
                if value.uses() or value.is_graph_output() or _is_default(scope, value):
                    continue
                name = value.name or ""
                if scope.log.claim(self.name, "initializer", name, f"initializer {name!r}"):
                    scope.drop_initializer(value)
        self._functions(scope)

    def _functions(self, scope: Scope) -> None:
        called = {
            node.op_identifier() for root in roots(scope.model) for node in nodes_below(root)
        }
        for identifier, function in list(scope.model.functions.items()):
            label = f"{function.domain}::{function.name}"
            if identifier in called:
                continue
            if scope.log.claim(self.name, "function", label, f"function {label!r}"):
                del scope.model.functions[identifier]


def _is_default(scope: Scope, value: ir.Value) -> bool:
    """Say whether the initializer is the default of an input that a caller may give."""
    return value.is_graph_input() and scope.model.ir_version >= OVERRIDABLE_SINCE_IR

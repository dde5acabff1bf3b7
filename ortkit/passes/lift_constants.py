"""lift-constants: Constant nodes become initializers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.graph.constants import tensor_of_constant_node
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class LiftConstants(NodePass):
    """Give constants one form: an initializer of the root graph.

    Before:
        c = Constant<value = ...>()
    After:
        c is an initializer with the same name

    Skips:
        * In a function's body, which may hold no initializer.
        * A Constant that a graph returns directly: it must be computed there.
        * Sparse tensors.

    Source:
        ONNX Constant-1 ... 25, IR "Graphs": initializers.
    """

    name: ClassVar[str] = "lift-constants"
    ops: ClassVar[Sequence[str]] = ("Constant",)

    def rewrite(self, site: Site) -> None:
        scope, value = site.scope, site.output
        if scope.is_function or value.is_graph_output():
            return
        tensor = value.const_value or tensor_of_constant_node(site.node)
        if tensor is None:
            site.miss("its data is not a dense tensor")
            return
        if not value.uses() or not site.claim("lift"):
            return
        name = value.name or "constant"
        # In a body others may define the name too, each in its own; in the root none can.
        if site.node.graph is scope.root:
            scope.rename(value, f"{name}/node")
        site.replace(scope.initializer(tensor, name))

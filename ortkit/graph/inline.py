"""Inline model-local functions in time that grows with the result.

onnx-ir looks for a free name by trying `name_2`, `name_3`, ... from the start each time. This
takes the square of the number of copies: 28 s for 2,000 calls of a function with three nodes
(onnx-ir 1.1.0, 2 cores of a cloud machine, 2026-11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ortkit.graph.walk import nodes_below, roots, subgraphs

_Names = tuple[ir.Node, str, tuple[str, ...]]
"""A node of a function's body, its name, and the names of its outputs, as the file has them."""


def inline_functions(
    model: ir.Model, criteria: Callable[[ir.Function], bool] | None = None
) -> None:
    """Replace calls by the bodies of their functions, and remove these functions.

    Functions that cannot be inlined stay; see `not_inlined`.

    Args:
        model: Changed in place; `graph/check/calls.py` has bounded what it becomes.
        criteria: Which functions; default: all.
    """
    kept = not_inlined(model)
    _Inliner(
        lambda function: (
            function.identifier() not in kept and (criteria is None or criteria(function))
        )
    )(model)


def inlined(model: ir.Model) -> ir.Model:
    """Return a model with the bodies of its functions in place of calls; itself if it has none.

    Args:
        model: Read, not changed.
    """
    if not model.functions:
        return model
    copy = model.clone()
    inline_functions(copy)
    return copy


def not_inlined(model: ir.Model) -> dict[ir.OperatorIdentifier, str]:
    """Return the functions that cannot be inlined, and why."""
    imports = dict(model.opset_imports)
    kept: dict[ir.OperatorIdentifier, str] = {}
    for key, function in model.functions.items():
        for domain, version in function.opset_imports.items():
            wanted = imports.setdefault(domain, version)
            if wanted != version:
                kept[key] = (
                    f"it imports version {version} of {domain or 'ai.onnx'!r}, the model {wanted}"
                )
    for root in roots(model):
        for node in nodes_below(root):
            key = node.op_identifier()
            if key in model.functions and any(True for _ in subgraphs(node)):
                kept.setdefault(key, "a call gives it a graph as an attribute")
    return kept


class _Inliner(InlinePass):
    """`InlinePass` that gives a body free names before it is copied."""

    def __init__(self, criteria: Callable[[ir.Function], bool] | None) -> None:
        super().__init__(criteria)
        self._bodies: dict[ir.OperatorIdentifier, list[_Names]] = {}
        self._next: dict[str, int] = {}
        """The number to try next after each name."""

    def _instantiate_call(
        self, node: ir.Node, call_site_id: str
    ) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        function = self._functions[node.op_identifier()]
        key = function.identifier()
        if key not in self._bodies:
            self._bodies[key] = list(_names(function))
        for inner, name, outputs in self._bodies[key]:
            inner.name = self._free("node:", name, self._used_node_names)
            for value, output in zip(inner.outputs, outputs, strict=True):
                value.name = self._free("value:", output, self._used_value_names)
        nodes, values = super()._instantiate_call(node, call_site_id)
        return nodes, values[: len(node.outputs)]  # a call may leave the last outputs out

    def _free(self, kind: str, name: str, used: set[str]) -> str:
        """Return the first of `name`, `name_2`, `name_3`, ... that is not used."""
        number = self._next.get(kind + name, 1)
        while (candidate := f"{name}_{number}" if number > 1 else name) in used:
            number += 1
        self._next[kind + name] = number + 1
        return candidate


def _names(body: Iterable[ir.Node]) -> Iterator[_Names]:
    """Yield the names in a body in the order in which onnx-ir copies it: inner graphs first."""
    for node in body:
        for graph in subgraphs(node):
            yield from _names(graph)
        yield node, node.name or "node", tuple(value.name or "val" for value in node.outputs)

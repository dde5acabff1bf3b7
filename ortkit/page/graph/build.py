"""From one model, or a model and what it became, to what the page shows of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortkit.graph.analysis.provenance import align
from ortkit.page.graph.document import Document, Graph
from ortkit.page.graph.groups import with_groups
from ortkit.page.graph.read import body_texts, read_graph
from ortkit.page.graph.scopes import inherited, with_repeats


def document_of(model: ir.Model, title: str, subtitle: str = "") -> Document:
    """Return the page of one model, which is not changed."""
    graph = with_groups(with_repeats(read_graph(model, title)))
    return Document(title, subtitle, (graph,), bodies=body_texts(model))


def document_of_two(
    before: ir.Model, after: ir.Model, titles: tuple[str, str], subtitle: str = ""
) -> Document:
    """Return the page of a model and what it became; neither is changed.

    Nodes of `after` are in the groups of the nodes that they stand for.
    """
    first = with_repeats(read_graph(before, titles[0]))
    second = read_graph(after, titles[1])
    origins = _origins(before, after, first, second)
    second = inherited(second, first, origins)
    return Document(
        title=titles[1],
        subtitle=subtitle,
        graphs=(with_groups(first), with_groups(second)),
        origins=origins,
        bodies={**body_texts(before), **body_texts(after)},
    )


def _origins(
    before: ir.Model, after: ir.Model, first: Graph, second: Graph
) -> tuple[tuple[int, ...], ...]:
    indices = _indices(first, "node")
    stands_for: dict[str, Sequence[int]] = {}
    for group in align(before, after).groups:
        found = [indices[label] for label in group.before]
        stands_for.update(dict.fromkeys(group.after, found))
    interface = {**_indices(first, "input"), **_indices(first, "output")}
    return tuple(
        tuple(stands_for.get(node.name, ()))
        if node.role == "node"
        else tuple(filter(None, [interface.get(node.name)]))
        for node in second.nodes
    )


def _indices(graph: Graph, role: str) -> dict[str, int]:
    return {node.name: at for at, node in enumerate(graph.nodes) if node.role == role}

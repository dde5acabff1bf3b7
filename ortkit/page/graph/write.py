"""From a document to its HTML."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from ortkit.graph.io.atomic import write_whole
from ortkit.page.graph.document import Document, Facts, Graph, Group
from ortkit.page.shell import Shell, render

_ASSETS = importlib.resources.files("ortkit.page.graph") / "assets"


def write_page(document: Document, path: Path) -> None:
    """Write a page; a model of 1,000 nodes makes about 500 kB.

    Raises:
        UserError: `path` cannot be written.
    """
    write_whole(path, page_text(document))


def page_text(document: Document) -> str:
    """Return a page as HTML."""
    shell = Shell(
        document.title, document.subtitle, document.cards, document.notes, data_of(document)
    )
    return render(shell, _ASSETS, {})


def data_of(document: Document) -> Mapping[str, object]:
    """Return what the page's script draws, as JSON types; nodes, values and edges as columns."""
    facts = document.facts or ({},) * len(document.graphs)
    return {
        "graphs": [_graph(*item) for item in zip(document.graphs, facts, strict=True)],
        "origins": document.origins,
        "bodies": dict(document.bodies),
        "tables": [asdict(table) for table in document.tables],
    }


def _graph(graph: Graph, facts: Facts) -> Mapping[str, object]:
    nodes, values, edges = graph.nodes, graph.values, graph.edges
    return {
        "title": graph.title,
        "nodes": {
            "name": [node.name for node in nodes],
            "op": _interned(node.op for node in nodes),
            "title": _interned(node.title for node in nodes),
            "detail": _interned(node.detail for node in nodes),
            "family": _interned(node.family for node in nodes),
            "role": _interned(node.role for node in nodes),
            "body": _interned(node.body for node in nodes),
            "fused": [int(node.is_fused) for node in nodes],
            "inputs": [node.inputs for node in nodes],
            "outputs": [node.outputs for node in nodes],
            "attributes": [node.attributes for node in nodes],
            "facts": [list(facts.get(at, ())) for at in range(len(nodes))],
            "group": graph.group_of,
        },
        "values": {
            "name": [value.name for value in values],
            "type": _interned(value.type for value in values),
            "weight": [int(value.is_weight) for value in values],
        },
        "edges": {
            "source": [edge.source for edge in edges],
            "target": [edge.target for edge in edges],
            "value": [edge.value for edge in edges],
        },
        "groups": [_group(group) for group in graph.groups],
    }


def _group(group: Group) -> Mapping[str, object]:
    return {
        "name": group.name,
        "path": group.path,
        "parent": group.parent,
        "layers": group.layers,
        "routes": [
            (route.source, route.target, route.stops[:1], len(route.stops))
            for route in group.routes
        ],
    }


def _interned(texts: Iterable[str]) -> Mapping[str, object]:
    """Return each text once, and where it stands: thousands of nodes have the same shapes."""
    positions: dict[str, int] = {}
    index = [positions.setdefault(text, len(positions)) for text in texts]
    return {"values": list(positions), "index": index}

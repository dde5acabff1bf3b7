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
        "graphs": [_graph(*one) for one in zip(document.graphs, facts, strict=True)],
        "origins": document.origins,
        "bodies": dict(document.bodies),
        "tables": [asdict(table) for table in document.tables],
    }


def _graph(graph: Graph, facts: Facts) -> Mapping[str, object]:
    nodes, values, edges = graph.nodes, graph.values, graph.edges
    return {
        "title": graph.title,
        "nodes": {
            "name": [one.name for one in nodes],
            "op": _interned(one.op for one in nodes),
            "title": _interned(one.title for one in nodes),
            "detail": _interned(one.detail for one in nodes),
            "family": _interned(one.family for one in nodes),
            "role": _interned(one.role for one in nodes),
            "body": _interned(one.body for one in nodes),
            "fused": [int(one.is_fused) for one in nodes],
            "inputs": [one.inputs for one in nodes],
            "outputs": [one.outputs for one in nodes],
            "attributes": [one.attributes for one in nodes],
            "facts": [list(facts.get(at, ())) for at in range(len(nodes))],
            "group": graph.group_of,
        },
        "values": {
            "name": [one.name for one in values],
            "type": _interned(one.type for one in values),
            "weight": [int(one.is_weight) for one in values],
        },
        "edges": {
            "source": [one.source for one in edges],
            "target": [one.target for one in edges],
            "value": [one.value for one in edges],
        },
        "groups": [_group(one) for one in graph.groups],
    }


def _group(group: Group) -> Mapping[str, object]:
    return {
        "name": group.name,
        "path": group.path,
        "parent": group.parent,
        "layers": group.layers,
        "routes": [
            (one.source, one.target, one.stops[:1], len(one.stops)) for one in group.routes
        ],
    }


def _interned(texts: Iterable[str]) -> Mapping[str, object]:
    """Return each text once, and where it stands: thousands of nodes have the same shapes."""
    places: dict[str, int] = {}
    index = [places.setdefault(text, len(places)) for text in texts]
    return {"values": list(places), "index": index}

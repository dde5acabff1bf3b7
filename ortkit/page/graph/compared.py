"""The pages of `ortkit inspect --html` and `ortkit diff --html`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import onnx_ir as ir

from ortkit.graph.analysis.cost import node_bytes
from ortkit.graph.analysis.diff import Change, Kind, ModelDiff
from ortkit.graph.analysis.flops import UnknownCostError, node_flops
from ortkit.graph.analysis.inspection import Inspection
from ortkit.graph.analysis.value_names import labels
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import has_unknown
from ortkit.page.graph.build import document_of, document_of_two
from ortkit.page.graph.document import Document, Graph, Table
from ortkit.page.shell import Card
from ortkit.page.text import bytes_text, count_text

#: Longer formulas of a cost are left out.
_LONGEST = 100


def page_of_inspection(model: ir.Model, found: Inspection) -> Document:
    """Return the page of one model: its graph, and what each node and operator costs."""
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in found.opsets.items())
    subtitle = "; ".join(filter(None, (found.producer, f"opset {opsets}")))
    document = document_of(model, Path(found.source).name, subtitle)
    (graph,) = document.graphs
    cost = found.cost
    sizes = ", ".join(f"{name}={size}" for name, size in {**cost.given, **cost.assumed}.items())
    rows = [(op.op, op.nodes, op.parameters, op.flops, op.bytes) for op in cost.ops]
    note = "bytes as if nothing stayed in a cache" + (f"; for {sizes}" if sizes else "")
    return replace(
        document,
        cards=(
            Card("Nodes", f"{found.summary.nodes:,}"),
            Card("Parameters", count_text(found.summary.parameters)),
            Card("Weights", bytes_text(found.summary.weight_bytes), ", ".join(found.dtypes)),
            Card("Arithmetic", f"{count_text(cost.flops)} FLOP", f"for {sizes}" if sizes else ""),
            Card("Moved", bytes_text(cost.bytes)),
        ),
        facts=(_costs(model, graph),),
        tables=filled(
            Table("Operators", ("operator", "nodes", "parameters", "FLOPs", "bytes"),
                  tuple(rows), note),
            Table("Inputs and outputs", ("", "name", "type"), tuple(_interface(graph))),
        ),
    )  # fmt: skip


def page_of_diff(before: ir.Model, after: ir.Model, found: ModelDiff) -> Document:
    """Return the page of two models: both graphs, and the tables of `ortkit diff`."""
    names = Path(found.before).name, Path(found.after).name
    document = document_of_two(before, after, names, f"compared with {names[0]}")
    counts = [graph_size(graph) for graph in document.graphs]
    changes = {
        "Nodes": found.nodes,
        "Weights": found.weights,
        "Inputs and outputs": found.interface,
        "Functions": found.functions,
        "Opsets and metadata": found.header,
    }
    ops = tuple((op.op, op.before, op.after, op.after - op.before) for op in found.ops)
    return replace(
        document,
        cards=(
            Card("Nodes", f"{counts[0]:,} → {counts[1]:,}", _kinds(found.nodes)),
            *(
                Card(title, _kinds(rows))
                for title, rows in changes.items()
                if rows and title != "Nodes"
            ),
        ),
        tables=filled(
            Table("Operators", ("operator", "before", "after", "change"), ops),
            *(Table(title, ("change", "name", "before", "after", "details"), tuple(_rows(rows)))
              for title, rows in changes.items()),
        ),
    )  # fmt: skip


def graph_size(graph: Graph) -> int:
    """Return the number of nodes, without inputs and outputs."""
    return sum(node.role == "node" for node in graph.nodes)


def filled(*tables: Table) -> tuple[Table, ...]:
    """Return the tables that have rows."""
    return tuple(table for table in tables if table.rows)


def _kinds(changes: Sequence[Change]) -> str:
    """Return how many things are removed, added and changed: `3 removed, 1 changed`."""
    counts = Counter(change.kind for change in changes)
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in get_args(Kind) if counts[kind])


def _rows(changes: Sequence[Change]) -> Iterable[tuple[str, ...]]:
    for change in changes:
        yield change.kind, change.name, change.before, change.after, "; ".join(change.details)


def _interface(graph: Graph) -> Iterable[tuple[str, ...]]:
    for node in graph.nodes:
        if node.role != "node":
            value = graph.values[(node.inputs or node.outputs)[0]]
            yield node.role, value.name, value.type


def _costs(model: ir.Model, graph: Graph) -> Mapping[int, Sequence[tuple[str, str]]]:
    """Return what each node computes and moves, over named sizes."""
    shapes = Shapes.infer(model)
    nodes = {label: node for node, label in labels(model).items()}
    found = {}
    for at, drawn in enumerate(graph.nodes):
        if drawn.role != "node":
            continue
        try:
            costs = node_flops(nodes[drawn.name], shapes), node_bytes(nodes[drawn.name], shapes)
        except UnknownCostError:
            continue
        texts = [
            "not known" if has_unknown(cost) else text(cost) if isinstance(cost, int) else formula
            for cost, text in zip(costs, (count_text, bytes_text), strict=True)
            if len(formula := str(cost)) <= _LONGEST
        ]
        found[at] = list(zip(("FLOPs", "bytes moved"), texts, strict=False))
    return found

"""What the page of a model shows: graphs, which nodes stand for which, and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ortkit.page.shell import Card

Role = Literal["node", "input", "output"]
Family = Literal[
    "matmul", "conv", "attention", "norm", "elementwise", "reduction", "movement", "constant",
    "control", "interface", "other",
]  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of a graph."""

    name: str
    type: str
    """`float32[batch, 768]`; empty where nothing is known."""
    is_weight: bool = False


@dataclass(frozen=True)
class Node:
    """A node of a graph, or one of its inputs or outputs."""

    name: str
    """Its label in an alignment (`ortkit.graph.analysis.value_names.labels`); no two are equal."""
    op: str
    """Operator with domain, `com.microsoft::Gelu`; empty for inputs and outputs."""
    title: str
    """What its box says first."""
    detail: str
    """What its box says below."""
    family: Family
    path: tuple[str, ...]
    """Names of the groups that it is in, outermost first."""
    inputs: tuple[int, ...] = ()
    """Places in `Graph.values`; those that are left out are missing."""
    outputs: tuple[int, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    role: Role = "node"
    is_fused: bool = False
    body: str = ""
    """Key in `Document.bodies`; empty if the operator is no function of the model."""


@dataclass(frozen=True)
class Edge:
    """A value on its way from the node that makes it to one that reads it."""

    source: int
    target: int
    value: int


@dataclass(frozen=True)
class Route:
    """An edge between two items of a group, over places in the layers between them.

    An item is a node by its number, a group by ~number. A source that is not in the group enters
    at its top; a target that is the node where the edge begins, or holds it, means the bottom.
    """

    source: int
    target: int
    stops: tuple[int, ...]
    """Numbers of the places on the way, from the number of nodes upward; none for far items."""


@dataclass(frozen=True)
class Group:
    """Nodes that are drawn as one box until it is opened; number 0 is the whole graph."""

    name: str
    path: tuple[str, ...]
    parent: int
    """-1 for the whole graph."""
    layers: tuple[tuple[int, ...], ...]
    """Items and stops from top to bottom, and in each layer from left to right."""
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Graph:
    """One model as it is drawn."""

    title: str
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...] = ()
    group_of: tuple[int, ...] = ()
    """The group of each node."""


@dataclass(frozen=True)
class Table:
    """A table below the graphs; numbers in it are sorted as numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]
    note: str = ""


Facts = Mapping[int, Sequence[tuple[str, str]]]
"""Node -> what is known of it, as names and texts."""


@dataclass(frozen=True)
class Document:
    """Everything that a page of one or two graphs shows."""

    title: str
    subtitle: str
    graphs: tuple[Graph, ...]
    origins: tuple[tuple[int, ...], ...] = ()
    """For each node of the second graph the nodes of the first that it stands for."""
    bodies: Mapping[str, str] = field(default_factory=dict)
    """Functions of the models as ONNX text."""
    cards: tuple[Card, ...] = ()
    facts: tuple[Facts, ...] = ()
    """For each graph."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

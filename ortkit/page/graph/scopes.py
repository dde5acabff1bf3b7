"""Which groups nodes are in: by their scopes, else by the structure that repeats."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortkit.page.graph.document import Graph, Node

#: Where `torch.onnx` leaves the modules that a node comes from, as a list of dotted paths.
_TORCH_SCOPES = "pkg.torch.onnx.name_scopes"
#: What the names of new nodes hold between the value's name and what was made of it.
_MADE = ("/fused/", "/chain/")
#: Structure is looked for in this many nodes outside of scopes, or more.
_LEAST_LOOSE = 24
_LEAST_PERIOD, _LEAST_REPEATS = 4, 2


def scope_of(node: ir.Node) -> tuple[str, ...]:
    """Return the scopes of a node, outermost first: `/encoder/layer.0/Add` -> encoder, layer.0."""
    listed = node.metadata_props.get(_TORCH_SCOPES, "")
    if listed and (found := _torch_scope(listed)) is not None:
        return found
    name = node.name or next((value.name for value in node.outputs if value.name), "") or ""
    for made in _MADE:
        name = name.partition(made)[0]
    return tuple(part for part in name.split("/")[:-1] if part)


def _torch_scope(listed: str) -> tuple[str, ...] | None:
    """Return the modules of a node, `layers` and a number being one scope; None if not listed."""
    try:
        scopes = ast.literal_eval(listed)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(scopes, list) or len(scopes) < 2 or not isinstance(scopes[-2], str):
        return None
    parts: list[str] = []
    for part in scopes[-2].split("."):
        if part.isdecimal() and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return tuple(filter(None, parts))


def with_repeats(graph: Graph) -> Graph:
    """Put nodes without scopes into groups `block 0`, `block 1`, ... where structure repeats."""
    loose = [at for at, node in enumerate(graph.nodes) if not node.path and node.role == "node"]
    if len(loose) < max(_LEAST_LOOSE, len(graph.nodes) // 2):
        return graph
    found = repeats([graph.nodes[at].op for at in loose])
    if found is None:
        return graph
    start, period, times = found
    nodes = list(graph.nodes)
    for index in range(start, start + period * times):
        at = loose[index]
        nodes[at] = replace(nodes[at], path=(f"block {(index - start) // period}",))
    return replace(graph, nodes=tuple(nodes))


def repeats(words: Sequence[str]) -> tuple[int, int, int] | None:
    """Return start, period and count of the part that repeats and covers most, if any.

    The time is quadratic in the number of words, in numpy: 20 ms for 5,000.
    """
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in words], dtype=np.int32)
    best, covered = None, 0
    for period in range(_LEAST_PERIOD, len(codes) // _LEAST_REPEATS + 1):
        differs = np.flatnonzero(codes[period:] != codes[:-period])
        ends = np.concatenate([[-1], differs, [len(codes) - period]])
        at = int(np.argmax(np.diff(ends)))
        start, times = int(ends[at]) + 1, int(ends[at + 1] - ends[at] - 1) // period + 1
        # A multiple of a period covers as much: the shortest is meant.
        if times < _LEAST_REPEATS or times * period <= covered + period // 2:
            continue
        if len(np.unique(codes[start : start + period])) > 1:
            best, covered = (start, period, times), times * period
    return best if covered >= len(codes) // 3 else None


def inherited(graph: Graph, original: Graph, origins: Sequence[Sequence[int]]) -> Graph:
    """Give the nodes of a rewritten graph the groups of the nodes that they stand for.

    Args:
        graph: The rewritten graph.
        original: The graph that it was.
        origins: For each node of `graph` nodes of `original`.
    """
    makers = {
        original.values[value].name: node.path
        for node in original.nodes
        for value in node.outputs
        if node.role == "node"
    }
    known = {path[:size] for path in makers.values() for size in range(len(path) + 1)}
    nodes = []
    for node, origin in zip(graph.nodes, origins, strict=True):
        names = [graph.values[value].name for value in node.outputs]
        paths = [makers[name] for name in names if name in makers]
        paths += [original.nodes[at].path for at in reversed(origin)]
        path = next((path for path in paths if path), _longest(node, known))
        nodes.append(node if node.role != "node" else replace(node, path=path))
    return replace(graph, nodes=tuple(nodes))


def _longest(node: Node, known: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return as much of a node's own path as the original has."""
    sizes = range(len(node.path), 0, -1)
    return next((node.path[:size] for size in sizes if node.path[:size] in known), ())

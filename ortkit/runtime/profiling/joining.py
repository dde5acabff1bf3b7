"""A trace joined with the graph that ran and with the model that it came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortkit.runtime.profiling.build import Joined
from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.executed import executed_nodes
from ortkit.runtime.profiling.trace import NodeEvents
from ortkit.runtime.profiling.work import call_work


def joined_of(nodes: NodeEvents, graph: ir.Model, original: ir.Model | None) -> Joined:
    """Say what the graph adds to each signature of a trace.

    Args:
        nodes: The trace's.
        graph: What ran: ONNX Runtime's own optimized graph.
        original: What the session was given; None: nobody asks for the nodes' origins.
    """
    order = _by_first_call(nodes)
    signatures = [nodes.signatures[number] for number in order]
    found = executed_nodes(signatures, graph, original)
    count = len(nodes.signatures)
    work: list[CallWork | None] = [None] * count
    domains: list[str | None] = [None] * count
    origins: list[tuple[str, ...]] = [()] * count
    for at, number in enumerate(order):
        node = found.nodes[at]
        if node is None:
            continue
        work[number] = call_work(nodes.signatures[number], node)
        domains[number] = "" if node.domain == "ai.onnx" else node.domain
        origins[number] = found.origins[at]
    return Joined(work, domains, origins)


def _by_first_call(nodes: NodeEvents) -> Sequence[int]:
    first = np.full(len(nodes.signatures), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, nodes.signature, nodes.start_us)
    order: list[int] = np.argsort(first, kind="stable").tolist()
    return order

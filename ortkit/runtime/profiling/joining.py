"""A trace joined with the graph that ran and with the model that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError, RunError
from ortkit.graph.io.open import ModelSource, open_model
from ortkit.graph.io.ort_dump import read_written
from ortkit.runtime.profiling.body_flops import BodyFlops
from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.context import Joined
from ortkit.runtime.profiling.executed import executed_nodes
from ortkit.runtime.profiling.graph_file import GRAPH_CONFIG
from ortkit.runtime.profiling.regions import regions_of
from ortkit.runtime.profiling.trace.trace import NodeEvents
from ortkit.runtime.profiling.work import call_work
from ortkit.runtime.session import Session
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import Saveable
from ortkit.temporary import TemporaryFolder


def joined_with(
    nodes: NodeEvents, model: ModelSource | Saveable, settings: SessionSettings
) -> Joined | None:
    """Join a trace that was made elsewhere with its model, which is loaded for it.

    None: it does not load with these settings, or ONNX Runtime cannot write the graph.

    Args:
        nodes: The trace's.
        model: What was traced.
        settings: Of the session that was traced.

    Raises:
        ModelError: There is no such model, or it is none.
    """
    original = opened(model)
    with TemporaryFolder("profile") as folder:
        path = folder / "graph.onnx"
        config = {**settings.config, **GRAPH_CONFIG}
        asked = replace(settings, optimized_model=path, trace_prefix=None, config=config)
        try:
            Session.with_settings(model, asked).close()
        except RunError:
            return None
        return joined_of(nodes, read_written(path), original)


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
    bodies = None if original is None else BodyFlops(original.functions)
    count = len(nodes.signatures)
    work: list[CallWork | None] = [None] * count
    domains: list[str | None] = [None] * count
    origins: list[tuple[str, ...]] = [()] * count
    for at, number in enumerate(order):
        node = found.nodes[at]
        if node is None:
            continue
        work[number] = call_work(nodes.signatures[number], node, bodies)
        domains[number] = "" if node.domain == "ai.onnx" else node.domain
        origins[number] = found.origins[at]
    nodes_of = {number: found.nodes[at] for at, number in enumerate(order)}
    regions, sizes = regions_of(nodes.signatures, nodes_of)
    return Joined(work, domains, origins, regions, sizes)


def _by_first_call(nodes: NodeEvents) -> Sequence[int]:
    first = np.full(len(nodes.signatures), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, nodes.signature, nodes.start_us)
    order: list[int] = np.argsort(first, kind="stable").tolist()
    return order


def opened(source: ModelSource | Saveable) -> ir.Model:
    """Open what a session was made from.

    Raises:
        ModelError: It cannot be read, or not any more.
    """
    if not isinstance(source, Saveable):
        return open_model(source)
    model = getattr(source, "model", None)  # of what `ortkit.optimize` returns
    if not isinstance(model, ir.Model):
        raise ModelError("the model in memory cannot be read again")
    return model

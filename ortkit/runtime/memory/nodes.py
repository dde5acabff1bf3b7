"""What each node takes of memory: ONNX Runtime's trace joined with the graph that it ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.errors import OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.graph.walk import nodes_below, subgraphs
from ortkit.runtime.arenas import Unavailable
from ortkit.runtime.memory.buffers import Buffer, Replay, Step, last_uses
from ortkit.runtime.memory.node_table import LiveTensor, NodeMemory, NodeUse, Peak
from ortkit.runtime.profiling.trace.events import Memory, NodeEvent
from ortkit.runtime.profiling.trace.read import read_trace

#: Their output is in the host's memory, or comes from there.
_COPIES = frozenset({"MemcpyToHost", "MemcpyFromHost"})
_SUBBYTE = {"int4": 2, "uint4": 2, "int2": 4, "uint2": 4, "float4e2m1": 2}


def read_node_memory(traced: Mapping[str, Any]) -> NodeMemory | Unavailable:
    """Read the first run of a trace.

    Args:
        traced: `trace` and `graph` (paths; the latter may be empty, with a `problem`), `peaks` (by
            provider, what its arena had in use at most before the run), and ONNX Runtime's
            `version`.
    """
    try:
        trace = read_trace(Path(traced["trace"]))
    except OrtkitError as error:
        return Unavailable("nodes", error.problem)
    # In the file nodes stand in the order of their ends, which is that of their peaks too.
    events = [node for node in trace.nodes if node.run == 0]
    if not events:
        return Unavailable("nodes", "no node ran")
    counted = [event for event in events if event.memory is not None]
    if not counted:
        why = "the arena is turned off, and nothing else counts"
        if traced["peaks"]:
            why = f"onnxruntime {traced['version']} does not write them into its trace"
        return Unavailable("nodes", why)
    missing = []
    graph = None
    if traced["graph"]:
        graph = open_model(traced["graph"])
    else:
        missing.append(Unavailable("tensors at the peak", traced["problem"]))
    nodes_of = place_events(events, graph)
    by_provider: dict[str, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        if event.memory is not None:
            by_provider[event.provider].append(index)
    uses: dict[int, NodeUse] = {}
    peaks = []
    for provider, indices in by_provider.items():
        own = [(events[index], nodes_of[index]) for index in indices]
        if not any(_memory(event).held for event, _ in own):
            reason = "its allocator is no arena of ONNX Runtime's, and counts nothing"
            missing.append(Unavailable(f"nodes of {provider}", reason))
            continue
        made = _uses(own, traced["peaks"].get(provider, 0), is_nested=graph is not None)
        uses.update(zip(indices, made, strict=True))
        peaks.append(_peak(own, made, graph))
    nodes = tuple(uses[index] for index in sorted(uses))
    return NodeMemory(nodes, tuple(peaks), tuple(missing))


_EventNode = tuple[NodeEvent, ir.Node | None]


def place_events(events: Sequence[NodeEvent], model: ir.Model | None) -> list[ir.Node | None]:
    """Return for each event the node of the main graph that it is of, None for nested ones.

    The graph is the one that ONNX Runtime saved as it ran it.

    Nodes have unique names or none; those without are called by what ONNX Runtime makes up, and
    are taken in their order among the nodes of their operator.
    """
    if model is None:
        return [None] * len(events)
    named: dict[str, ir.Node] = {}
    unnamed: dict[str, list[ir.Node]] = defaultdict(list)
    for node in model.graph:
        if node.name:
            named[node.name] = node
        else:
            unnamed[node.op_type].append(node)
    nested = {node.name for node in nodes_below(model.graph)} - set(named)
    found: list[ir.Node | None] = []
    for event in events:
        source = named.get(event.name)
        if source is None and event.name not in nested and unnamed[event.op]:
            source = unnamed[event.op].pop(0)
        found.append(source)
    return found


def _memory(event: NodeEvent) -> Memory:
    assert event.memory is not None
    return event.memory


def _uses(own: Sequence[_EventNode], peak: int, *, is_nested: bool) -> list[NodeUse]:
    uses = []
    for event, node in own:
        memory = _memory(event)
        beyond = memory.peak - memory.in_use
        uses.append(
            NodeUse(
                name=event.name,
                op=event.op,
                provider=event.provider,
                before=memory.in_use - memory.in_use_delta,
                kept=memory.in_use_delta,
                output_bytes=event.output_bytes,
                # The peak counts from the session's begin: only what raises it shows.
                workspace=beyond if memory.peak > peak else None,
                workspace_limit=beyond,
                held_growth=memory.held_delta,
                is_nested=is_nested and node is None,
            )
        )
        peak = max(peak, memory.peak)
    return uses


def _peak(own: Sequence[_EventNode], uses: Sequence[NodeUse], model: ir.Model | None) -> Peak:
    raised = [index for index, use in enumerate(uses) if use.workspace is not None]
    if raised:
        # Each of them raised it above all before, so the last was the highest.
        top = raised[-1]
        most = _memory(own[top][0]).peak
    else:
        top = max(range(len(own)), key=lambda index: _memory(own[index][0]).in_use)
        most = _memory(own[top][0]).in_use
    event = own[top][0]
    begin = uses[0].before
    buffers = [] if model is None else _replayed(own[: top + 1], own, model)
    tensors = [_tensor(buffer) for buffer in sorted(buffers, key=lambda one: -one.bytes)]
    tensor_bytes = sum(tensor.bytes for tensor in tensors)
    workspace = uses[top].workspace
    return Peak(
        provider=event.provider,
        bytes=most,
        node=event.name,
        op=event.op,
        tensors=tuple(tensors),
        tensor_bytes=tensor_bytes,
        workspace=workspace,
        before_run=begin,
        unexplained=most - tensor_bytes - (workspace or 0) - begin,
    )


def _tensor(buffer: Buffer) -> LiveTensor:
    names = [name for name, _ in buffer.tensors]
    live = [name for name in names if name in buffer.live]
    name = live[-1] if live else names[-1]
    step = dict(buffer.tensors)[name]
    others = tuple(item for item in names if item != name)
    return LiveTensor(name, buffer.bytes, step.node, step.op, others, is_needed=bool(live))


def _replayed(
    until: Sequence[_EventNode], whole: Sequence[_EventNode], model: ir.Model
) -> list[Buffer]:
    """Return the allocations that are there while the last node of `until` runs."""
    replay = Replay()
    last: Step | None = None
    for step in _steps(until, whole, model):
        if last is not None:
            replay.end(last)
        replay.begin(step)
        last = step
    return replay.buffers


def _steps(
    until: Sequence[_EventNode], whole: Sequence[_EventNode], model: ir.Model
) -> Iterator[Step]:
    """Yield the nodes of the main graph that ran, each with what the arena shows of it."""
    ran = [(event, node) for event, node in whole if node is not None]
    order = [([*_reads(node)], _names(node.outputs)) for _, node in ran]
    kept = set(_names(model.graph.outputs))
    dying = last_uses(order, kept)
    count = sum(1 for _, node in until if node is not None)
    for index, (event, node) in enumerate(ran[:count]):
        after = _memory(event).in_use
        following = ran[index + 1][0] if index + 1 < len(ran) else None
        freed = 0
        if following is not None:
            memory = _memory(following)
            freed = max(0, after - (memory.in_use - memory.in_use_delta))
        yield Step(
            node=event.name,
            op=event.op,
            inputs=tuple(_names(node.inputs)),
            outputs=() if event.op in _COPIES else tuple(_sizes(event, node)),
            dying=frozenset(dying[index]),
            allocated=_memory(event).in_use_delta,
            requested=_memory(event).requested_delta,
            freed=freed,
        )


def _names(values: Sequence[ir.Value | None]) -> list[str]:
    return [value.name for value in values if value is not None and value.name]


def _reads(node: ir.Node) -> Iterator[str]:
    """Yield what a node reads, and what the bodies in it do."""
    yield from _names(node.inputs)
    for body in subgraphs(node):
        for inner in nodes_below(body):
            yield from _names(inner.inputs)
        yield from _names(body.outputs)


def _sizes(event: NodeEvent, node: ir.Node) -> Iterator[tuple[str, int]]:
    """Yield the outputs with their bytes, none where the trace names other ones."""
    names = _names(node.outputs)
    if len(names) != len(event.outputs):
        return
    for name, (dtype, dims) in zip(names, event.outputs, strict=True):
        yield name, _bytes(dtype, dims)


def _bytes(dtype: str, dims: Sequence[int]) -> int:
    elements = int(np.prod(dims, dtype=np.int64))
    if dtype in _SUBBYTE:
        return -(-elements // _SUBBYTE[dtype])
    try:
        return elements * np.dtype(dtype).itemsize
    except TypeError:  # strings and the like: the arena does not hold their letters
        return 0

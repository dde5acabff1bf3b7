"""A profile as a trace for ui.perfetto.dev or chrome://tracing.

Source: "Trace Event Format" (Google, the document of chrome://tracing): complete events `X`,
counters `C`, flows `s` and `f`, metadata `M`. Times in microseconds, begin and end within one
thread must nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortkit.errors import UserError
from ortkit.graph.io.atomic import write_whole
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace.events import NodeSignature, TensorShape
from ortkit.runtime.profiling.trace.nesting import nesting
from ortkit.runtime.profiling.trace.trace import Trace

_HOST, _DEVICE = 1, 2

Event = Mapping[str, Any]


def write_perfetto(profile: Profile, path: Path) -> None:
    """Write all runs of a profile's trace: threads, nested nodes, memory, the device's streams.

    Raises:
        UserError: The profile has no trace, or the file cannot be written.
    """
    if profile.trace is None:
        raise UserError("a saved profile has no trace", where=str(path))
    events = ",\n".join(
        json.dumps(event, separators=(",", ":"), allow_nan=False)
        for event in _events(profile, profile.trace)
    )
    write_whole(path, f'{{"displayTimeUnit":"ns","traceEvents":[\n{events}\n]}}\n')


def _events(profile: Profile, trace: Trace) -> Iterator[Event]:
    yield from _names(profile, trace)
    for number, run in enumerate(trace.runs):
        kind = "run" if number in profile.counted else "warm-up run"
        yield _slice(f"{kind} {number}", "run", run.start_us, run.duration_us, run.thread, {})
    yield from _nodes(profile, trace)
    yield from _memory(trace)
    yield from _devices(trace)


def _names(profile: Profile, trace: Trace) -> Iterator[Event]:
    title = profile.about.model or "session"
    yield _metadata("process_name", _HOST, 0, title)
    callers = {run.thread for run in trace.runs}
    threads = sorted(callers | set(np.unique(trace.nodes.thread).tolist()))
    for order, thread in enumerate(threads):
        name = "run" if thread in callers else "nodes"
        yield _metadata("thread_name", _HOST, thread, f"{name} (thread {thread})")
        yield _sorted_as("thread_sort_index", _HOST, thread, order)
    if trace.kernels:
        yield _metadata("process_name", _DEVICE, 0, "device")
        for number, stream in enumerate(_streams(trace)):
            yield _metadata("thread_name", _DEVICE, number, f"stream {stream}")


def _nodes(profile: Profile, trace: Trace) -> Iterator[Event]:
    nodes = trace.nodes
    described = [_described(signature) for signature in nodes.signatures]
    rows = profile.rows
    elapsed_us = _within(trace) - nodes.start_us
    columns = (nodes.signature, nodes.start_us, elapsed_us, nodes.thread, nodes.run)
    row_of = np.full(len(nodes), -1) if profile.row_of is None else profile.row_of
    listed = zip(*(column.tolist() for column in columns), row_of.tolist(), strict=True)
    for number, start, elapsed, thread, run, row in listed:
        signature = nodes.signatures[number]
        args = {**described[number], "run": run}
        if row >= 0 and rows[row].origins:
            args["stands for"] = list(rows[row].origins)
        yield _slice(signature.name, signature.op, start, elapsed, thread, args)


def _within(trace: Trace) -> npt.NDArray[np.int64]:
    """Return when each node ended, never after what it ran in: both are cut to microseconds.

    Slices that overlap in part are not shown.
    """
    nodes = trace.nodes
    limits = np.array([*(run.end_us for run in trace.runs), np.iinfo(np.int64).max], np.int64)
    ends = np.minimum(nodes.start_us + nodes.duration_us, limits[nodes.run])
    holder = nesting(nodes).holder
    inner = np.flatnonzero(holder >= 0)
    # The outermost first: a body's nodes come before their holder in the file.
    for index in inner[::-1].tolist():
        ends[index] = min(ends[index], ends[holder[index]])
    found: npt.NDArray[np.int64] = np.maximum(ends, nodes.start_us)
    return found


def _memory(trace: Trace) -> Iterator[Event]:
    """One counter for the arena of each provider: what is in use, and what is held."""
    nodes = trace.nodes
    everything = np.arange(len(nodes))
    in_use, held = nodes.memory("in_use", everything), nodes.memory("held", everything)
    if in_use is None or held is None:
        return
    providers = [signature.provider for signature in nodes.signatures]
    ends = nodes.start_us + nodes.duration_us
    for index in np.argsort(ends, kind="stable").tolist():
        provider = providers[nodes.signature[index]].removesuffix("ExecutionProvider")
        sizes = {"in use": int(in_use[index]), "free": int(max(0, held[index] - in_use[index]))}
        yield {
            "name": f"arena {provider} (bytes)", "ph": "C", "pid": _HOST, "ts": int(ends[index]),
            "args": sizes,
        }  # fmt: skip


def _devices(trace: Trace) -> Iterator[Event]:
    """Kernels and copies, each with an arrow from what launched it."""
    streams = {stream: number for number, stream in enumerate(_streams(trace))}
    for number, event in enumerate(trace.kernels):
        stream = streams[event.stream]
        args: dict[str, object] = {**event.details, "run": event.run}
        if event.bytes is not None:
            args["bytes"] = event.bytes
        if event.node >= 0:
            args["node"] = trace.nodes.signatures[trace.nodes.signature[event.node]].name
        yield {
            "name": event.name, "cat": event.kind, "ph": "X", "pid": _DEVICE, "tid": stream,
            "ts": event.start_us, "dur": event.duration_us, "args": args,
        }  # fmt: skip
        if event.launch_us is None or event.thread is None:
            continue
        flow = {"name": "launch", "cat": "launch", "id": number}
        yield {**flow, "ph": "s", "pid": _HOST, "tid": event.thread, "ts": event.launch_us}
        yield {
            **flow, "ph": "f", "bp": "e", "pid": _DEVICE, "tid": stream, "ts": event.start_us
        }  # fmt: skip


def _streams(trace: Trace) -> list[str]:
    return sorted({event.stream for event in trace.kernels})


def _described(signature: NodeSignature) -> dict[str, object]:
    return {
        "op": signature.op,
        "provider": signature.provider,
        "inputs": [_text(spec) for spec in signature.inputs],
        "outputs": [_text(spec) for spec in signature.outputs],
    }


def _text(tensor: TensorShape) -> str:
    return f"{tensor[0]}[{', '.join(map(str, tensor[1]))}]"


def _slice(
    name: str, category: str, start: int, elapsed: int, thread: int, args: Mapping[str, object]
) -> Event:
    return {
        "name": name, "cat": category, "ph": "X", "pid": _HOST, "tid": thread, "ts": start,
        "dur": elapsed, "args": args,
    }  # fmt: skip


def _metadata(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _sorted_as(kind: str, process: int, thread: int, order: int) -> Event:
    return {
        "name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"sort_index": order}
    }  # fmt: skip

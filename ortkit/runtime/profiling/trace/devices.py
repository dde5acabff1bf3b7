"""What a device did: CUDA kernels, copies and fills, and which node launched them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ortkit.runtime.profiling.trace.events import DeviceEvent
from ortkit.runtime.profiling.trace.lines import Head
from ortkit.runtime.profiling.trace.trace import NodeEvents, Trace

#: Category of the events that an ONNX Runtime with CUPTI writes.
KERNEL = "Kernel"
PARENT = "parent_name"


def device_event(head: Head, args: Mapping[str, Any]) -> DeviceEvent:
    """Return an event of the trace's own; which node it is of is not known yet."""
    details = {str(name): str(value) for name, value in args.items()}
    return DeviceEvent(
        kind=_kind(head.name),
        name=head.name,
        start_us=head.start_us,
        duration_us=head.duration_us,
        stream=details.pop("stream", str(head.thread)),
        details=details,
    )


def attach_kernels(trace: Trace, events: Iterable[DeviceEvent]) -> Trace:
    """Return the trace with these events as its `kernels`, each put under what launched it.

    The call of a node whose time, on the same thread, holds the launch has launched it. Where
    only the name of the node is known, it is the last call that began before.
    """
    ordered = sorted(events, key=lambda one: one.start_us)
    calls = _CallFinder(trace.nodes)
    starts = np.array([run.start_us for run in trace.runs], np.float64)
    found = []
    for event in ordered:
        node = calls.of(event)
        since = event.start_us if event.launch_us is None else event.launch_us
        run = int(np.searchsorted(starts, since, side="right")) - 1
        if node >= 0:
            run = int(trace.nodes.run[node])
        elif event.launch_us is not None and run >= 0 and since > trace.runs[run].end_us:
            run = -1
        found.append(replace(event, node=node, run=run))
    return replace(trace, kernels=tuple(found))


class _CallFinder:
    """Finds calls of nodes by time, or by name and time."""

    def __init__(self, nodes: NodeEvents) -> None:
        self._nodes = nodes
        self._order: dict[int, np.ndarray] = {}
        self._named: dict[str, np.ndarray] | None = None

    def of(self, event: DeviceEvent) -> int:
        """Return the index of the call that launched it, -1 if it is not known."""
        if event.launch_us is not None and event.thread is not None:
            return self._at(event.thread, event.launch_us)
        if (name := event.details.get(PARENT)) is not None:
            return self._before(name.removesuffix("_kernel_time"), event.start_us)
        return -1

    def _at(self, thread: int, time_us: float) -> int:
        nodes = self._nodes
        if thread not in self._order:
            mine = np.flatnonzero(nodes.thread == thread)
            self._order[thread] = mine[np.argsort(nodes.start_us[mine], kind="stable")]
        order = self._order[thread]
        last = int(np.searchsorted(nodes.start_us[order], time_us, side="right")) - 1
        # The innermost: of those that have begun, the last that has not ended.
        while last >= 0:
            index = int(order[last])
            if time_us <= nodes.start_us[index] + nodes.duration_us[index] + 1:
                return index
            if nodes.run[index] != nodes.run[order[last - 1]]:
                return -1
            last -= 1
        return -1

    def _before(self, name: str, time_us: float) -> int:
        nodes = self._nodes
        if self._named is None:
            self._named = {}
            by_name: dict[str, list[int]] = {}
            for number, signature in enumerate(nodes.signatures):
                by_name.setdefault(signature.name, []).append(number)
            for each, numbers in by_name.items():
                self._named[each] = np.flatnonzero(np.isin(nodes.signature, numbers))
        calls = self._named.get(name, np.empty(0, np.int64))
        begun = calls[nodes.start_us[calls] <= time_us]
        return int(begun[-1]) if len(begun) else -1


def _kind(name: str) -> Literal["kernel", "copy", "fill"]:
    lower = name.lower()
    if lower.startswith("memcpy"):
        return "copy"
    return "fill" if lower.startswith("memset") else "kernel"


def busy_us(events: Sequence[DeviceEvent]) -> float:
    """Return for how long at least one of the events was going on."""
    total, end = 0.0, -np.inf
    for event in sorted(events, key=lambda one: one.start_us):
        stop = event.start_us + event.duration_us
        total += max(0.0, stop - max(end, event.start_us))
        end = max(end, stop)
    return float(total)

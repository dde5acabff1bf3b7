"""The times of a switched model's nodes for `gains.py`: one trace of interleaved runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import preload_onnxruntime
from ortkit.runtime.tensor_files import ort_value, plain_value, read_manifest

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime

_SUFFIX = "_kernel_time"
#: What stands at the ends of a convolution alone, and not between two.
_CONVERSIONS = frozenset(
    {"DequantizeLinear", "QuantizeLinear", "ReorderInput", "ReorderOutput", "Transpose"}
)

NodeTimes = dict[str, list[list[int]]]
"""For each node its times in us: a list for each input set."""


@dataclass(frozen=True)
class GainsJob:
    """A model that is traced, and folders of input sets to run interleaved."""

    plan: SessionPlan
    feeds: tuple[Path, ...]
    rounds: int
    prefix: str
    """Of the nodes that are timed."""
    chained: frozenset[str]
    """Of these what converts inside of them does not count."""


def node_times(job: GainsJob) -> NodeTimes:
    """Run the input sets interleaved and return what the nodes took."""
    import onnxruntime as ort

    session = open_session(ort, job.plan)
    feeds = []
    for folder in job.feeds:
        entries = read_manifest(folder)
        feeds.append(
            {
                entry["name"]: plain_value(folder, entry)
                if entry["kind"] != "tensor" or entry["items"][0]["strings"]
                else ort_value(ort, folder, entry["items"][0])
                for entry in entries
            }
        )
    outputs = [value.name for value in session.get_outputs()]
    for _ in range(job.rounds + 1):
        for each in feeds:
            session.run_with_ort_values(outputs, each)
    trace = Path(session.end_profiling())
    events = json.loads(trace.read_text(encoding="utf-8"))
    trace.unlink()
    return _times(events, job)


def _times(events: list[dict[str, Any]], job: GainsJob) -> NodeTimes:
    """Sort the times of the nodes by input set; the first round is left out."""
    found: dict[str, list[tuple[int, int]]] = {}
    nodes = sorted(
        (int(event["ts"]), -int(event["dur"]), str(event["name"]), event.get("args", {}))
        for event in events
        if event.get("cat") == "Node" and str(event.get("name")).endswith(_SUFFIX)
    )
    own, end = "", 0
    for start, minus, event_name, arguments in nodes:
        name, elapsed = event_name.removesuffix(_SUFFIX), -minus
        if name.startswith(job.prefix) and arguments.get("op_name") == "If":
            found.setdefault(name, []).append((start, elapsed))
            own, end = name, start + elapsed
        elif own in job.chained and start < end and arguments.get("op_name") in _CONVERSIONS:
            begun, so_far = found[own][-1]
            found[own][-1] = (begun, max(0, so_far - elapsed))
    times: NodeTimes = {}
    count = len(job.feeds)
    for name, runs in found.items():
        elapsed_us = [elapsed for _, elapsed in sorted(runs)]
        times[name] = [elapsed_us[index + count :: count] for index in range(count)]
    return times

"""The process that times a switched model for `gains.py`: one trace of interleaved runs."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any, TypedDict

from ortkit.runtime.tensor_files import ort_value, plain_value, read_manifest

_SUFFIX = "_kernel_time"
#: What stands at the ends of a convolution alone, and not between two.
_CONVERSIONS = frozenset(
    {"DequantizeLinear", "QuantizeLinear", "ReorderInput", "ReorderOutput", "Transpose"}
)


class Job(TypedDict):
    """A model, and input sets to run interleaved."""

    model: str
    feeds: list[str]
    turns: int
    threads: int
    prefix: str
    """Of the nodes that are timed."""
    chained: list[str]
    """Of these what converts inside of them does not count."""
    results: str
    """Where to write, for each node, its times in us: a list for each input set."""


def main(job_file: str) -> None:
    """Run a job."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = job["threads"]
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(job["results"]).with_suffix(""))
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    feeds = []
    for folder in map(Path, job["feeds"]):
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
    for _ in range(job["turns"] + 1):
        for each in feeds:
            session.run_with_ort_values(outputs, each)
    trace = Path(session.end_profiling())
    events = json.loads(trace.read_text(encoding="utf-8"))
    trace.unlink()
    Path(job["results"]).write_text(json.dumps(_times(events, job, len(feeds))), encoding="utf-8")


def _times(events: list[dict[str, Any]], job: Job, count: int) -> dict[str, list[list[int]]]:
    """Sort the times of the nodes by input set; the first turn is left out."""
    found: dict[str, list[tuple[int, int]]] = {}
    nodes = sorted(
        (int(event["ts"]), -int(event["dur"]), str(event["name"]), event.get("args", {}))
        for event in events
        if event.get("cat") == "Node" and str(event.get("name")).endswith(_SUFFIX)
    )
    chained, own, end = set(job["chained"]), "", 0
    for start, minus, event_name, arguments in nodes:
        name, taken = event_name.removesuffix(_SUFFIX), -minus
        if name.startswith(job["prefix"]) and arguments.get("op_name") == "If":
            found.setdefault(name, []).append((start, taken))
            own, end = name, start + taken
        elif own in chained and start < end and arguments.get("op_name") in _CONVERSIONS:
            begun, so_far = found[own][-1]
            found[own][-1] = (begun, max(0, so_far - taken))
    times: dict[str, list[list[int]]] = {}
    for name, runs in found.items():
        taken_us = [taken for _, taken in sorted(runs)]
        times[name] = [taken_us[index + count :: count] for index in range(count)]
    return times

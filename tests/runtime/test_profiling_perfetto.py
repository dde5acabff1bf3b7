"""The trace for Perfetto holds what its format asks for: nested slices, counters, flows."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.perfetto import write_perfetto
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace.devices import attach_kernels
from ortkit.runtime.profiling.trace.events import DeviceEvent
from ortkit.runtime.profiling.trace.read import read_trace
from tests.runtime.traces import MEMORY, node, run, written


def exported(profile: Profile, folder: Path) -> list[dict[str, Any]]:
    path = folder / "out.json"
    write_perfetto(profile, path)
    document = json.loads(path.read_text("utf-8"))
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    return list(document["traceEvents"])


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of a thread lie within each other or apart: others are not shown."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        ends: list[float] = []
        for start, negative in sorted(slices):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - negative <= ends[-1]
            ends.append(start - negative)


def test_bodies_nest_even_where_they_seem_to_end_later(tmp_path: Path) -> None:
    # Begins and durations are cut to microseconds: the last of a body may seem to end late.
    path = written(
        tmp_path,
        node("Add", 115, 6), node("Mul", 125, 6), node("If", 110, 20), node("Neg", 132, 9),
        run(100, 40), node("Add", 210, 5, thread=9), run(200, 40),
    )  # fmt: skip
    found = profile_of(read_trace(path), warmup=1)
    events = exported(found, tmp_path)
    check_nesting(events)
    slices = {(event["name"], event["ts"]): event for event in events if event["ph"] == "X"}
    assert slices["Mul", 125]["dur"] == 5 and slices["Neg", 132]["dur"] == 8
    assert slices["warm-up run 0", 100]["dur"] == 40 and slices["run 1", 200]["cat"] == "run"
    threads = {
        item["tid"]: item["args"]["name"] for item in events if item["name"] == "thread_name"
    }
    assert threads == {7: "run (thread 7)", 9: "nodes (thread 9)"}


def test_memory_is_a_counter_of_each_arena(tmp_path: Path) -> None:
    other = {**MEMORY, "mem_bytes_in_use": "700", "provider": "XExecutionProvider"}
    path = written(tmp_path, node("A", 110, 5, **MEMORY), node("B", 120, 5, **other), run(100, 40))
    events = exported(profile_of(read_trace(path), warmup=0), tmp_path)
    counters = [event for event in events if event["ph"] == "C"]
    assert [(counter["name"], counter["ts"], counter["args"]) for counter in counters] == [
        ("arena CPU (bytes)", 115, {"in use": 512, "free": 512}),
        ("arena X (bytes)", 125, {"in use": 700, "free": 324}),
    ]
    without = written(tmp_path, node("A", 110, 5), run(100, 40))
    events = exported(profile_of(read_trace(without), warmup=0), tmp_path)
    assert not [item for item in events if item["ph"] == "C"]


def test_a_device_has_a_track_for_each_stream_and_arrows(tmp_path: Path) -> None:
    path = written(tmp_path, node("MatMul", 110, 5), run(100, 40))
    device = [
        DeviceEvent("kernel", "gemm<float>", 120.5, 9.25, "7", launch_us=112, thread=7),
        DeviceEvent("copy", "Memcpy", 101, 3, "13", bytes=64, details={"kind": "host to device"}),
    ]
    found = profile_of(attach_kernels(read_trace(path), device), warmup=0)
    events = exported(found, tmp_path)
    check_nesting(events)
    kernel = next(event for event in events if event["name"] == "gemm<float>")
    assert (kernel["ts"], kernel["dur"], kernel["args"]["node"]) == (120.5, 9.25, "MatMul")
    copy = next(item for item in events if item["name"] == "Memcpy")
    assert copy["args"]["bytes"] == 64 and copy["tid"] != kernel["tid"]
    begin, end = (next(one for one in events if one["ph"] == phase) for phase in "sf")
    assert begin["id"] == end["id"] and (begin["tid"], begin["ts"]) == (7, 112)
    assert (end["pid"], end["tid"], end["ts"]) == (kernel["pid"], kernel["tid"], 120.5)


def test_a_real_session_with_a_loop(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x, int64 count, bool go) => (float[n] y) {
            y = Loop (count, go, x) <
                body = step (int64 i, bool c, float[n] a) => (bool d, float[n] b) {
                    d = Identity (c)  t = Tanh (a)  b = Neg (t)
                }
            >
        }"""
    )
    feeds = {"x": np.ones(64, np.float32), "count": np.int64(5), "go": np.array(True)}
    with ortkit.Session(model, "cpu", threads=2) as session, session.profile() as recording:
        for _ in range(20):
            session.run(feeds)
    events = exported(recording.result, tmp_path)
    check_nesting(events)
    assert sum(event["ph"] == "X" and event["cat"] == "Tanh" for event in events) == 20 * 5
    assert sum(item["ph"] == "X" and item["cat"] == "run" for item in events) == 20


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    found = profile_of(read_trace(written(tmp_path, node("A", 1, 1), run(0, 4))), warmup=0)
    with pytest.raises(UserError, match="there is no folder"):
        write_perfetto(found, tmp_path / "none" / "out.json")
    with pytest.raises(UserError, match="has no trace"):
        write_perfetto(replace(found, trace=None), tmp_path / "out.json")

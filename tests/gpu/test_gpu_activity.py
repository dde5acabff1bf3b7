"""Kernels and copies as CUPTI records them, beside what the host measures."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.runtime.profiling.cuda_activity import CudaActivity
from ortkit.runtime.profiling.trace.devices import attach_kernels, busy_us
from ortkit.runtime.profiling.trace.read import read_trace
from tests.gpu import cuda_models as models

pytestmark = pytest.mark.alone

_PRODUCT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[4096, 4096] x) => (float[4096, 4096] y) { a = MatMul(x, x)  y = Relu(a) }
"""


def test_kernels_take_what_the_host_waits_for() -> None:
    x = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    with ortkit.Session(models.model(_PRODUCT), "cuda") as session:
        bound = session.bind({"x": x})
        for _ in range(3):
            bound.run()
        waits = []
        for _ in range(60):
            start = time.perf_counter()
            bound.run()
            waits.append((time.perf_counter() - start) * 1e6)
        with CudaActivity() as activity:
            origin, start = time.time_ns(), time.perf_counter()
            for _ in range(20):
                bound.run()
            recorded_us = (time.perf_counter() - start) * 1e6
    events = activity.events(origin)
    assert len([event for event in events if event.kind == "kernel"]) >= 40
    # What the device does is most of such a run. Work of others there makes the host wait longer,
    # but not in the fastest of many runs.
    assert 0.7 * 20 * min(waits) < busy_us(events) < 1.1 * recorded_us
    assert all(event.launch_us is not None for event in events)
    assert all(0 <= event.start_us <= recorded_us for event in events)
    assert activity.lost == 0


def test_kernels_are_put_under_their_nodes(tmp_path: Path) -> None:
    x = models.rows(1000)
    with ortkit.Session(
        models.model(models.SHAPED), "cuda", trace_prefix=tmp_path / "trace"
    ) as session:
        session.run(x)
        origin = session.onnxruntime.get_profiling_start_time_ns()
        with CudaActivity() as activity:
            session.run(x)
        trace = attach_kernels(
            read_trace(Path(session.onnxruntime.end_profiling())), activity.events(origin)
        )
    nodes = [trace.nodes[event.node].op for event in trace.kernels if event.node >= 0]
    assert nodes.count("Tanh") == 1
    assert {event.run for event in trace.kernels} == {1}
    copies = sorted(event.name for event in trace.kernels if event.kind == "copy")
    assert copies[-1] == "copy host to device"
    assert {event.bytes for event in trace.kernels if event.kind == "copy"} >= {x.nbytes}

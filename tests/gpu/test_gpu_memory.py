"""What CUDA's arenas count, and that nothing grows."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.runtime.memory.devices import device_memory
from tests.gpu import cuda_models as models

pytestmark = pytest.mark.alone


def test_arenas_of_the_device() -> None:
    rows = 1 << 16
    with ortkit.Session(models.model(models.CHAIN), "cuda") as session:
        session.run(models.rows(rows))
        report = session.memory()
        device, pinned = report.arena("Cuda"), report.arena("CudaPinned")
        assert device is not None
        assert pinned is not None
        # x, its tanh and y: at least two of them at the same time.
        assert 2 * rows * 64 * 4 <= device.peak <= 4 * rows * 64 * 4
        assert device.held >= device.peak


def test_free_memory_is_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    found = device_memory(0)
    free, total = torch.cuda.mem_get_info()
    assert found.total == total
    assert abs(found.free - free) < 64 << 20


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_sessions_that_come_and_go_leave_nothing(cuda_graph: bool) -> None:
    proto, x = models.model(models.CHAIN), models.rows(16)

    def some(count: int) -> tuple[int, int]:
        for _ in range(count):
            with ortkit.Session(proto, "cuda", cuda_graph=cuda_graph, threads=1) as session:
                session.run(x)
                session.bind({"x": x}).run()
        gc.collect()
        return device_memory(0).free, len(list(Path("/proc/self/fd").iterdir()))

    free, files = some(20)
    free_after, files_after = some(60)
    assert files_after <= files
    assert free - free_after < 8 << 20


def test_runs_leave_nothing() -> None:
    with ortkit.Session(models.model(models.CHAIN), "cuda") as session:
        bound = session.bind({"x": models.rows(16)})

        def some(count: int) -> int:
            for number in range(count):
                bound.run()
                session.run(models.rows(1 + number % 8))
            return device_memory(0).free

        free = some(200)
        assert free - some(2000) < 8 << 20
        assert np.isfinite(bound.outputs["y"].numpy()).all()

"""Nothing grows over many sessions and many runs."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.errors import UserError
from tests.runtime import session_models as models

ONES = np.ones((2, 4), np.float32)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def grown_by_sessions(count: int, folder: Path) -> tuple[int, int, int]:
    """Return bytes, files and threads that `count` sessions of all kinds leave behind."""
    model = models.model(models.ADD)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())

    def once(number: int) -> None:
        with ortkit.Session(path if number % 2 else model, "cpu", threads=2) as session:
            session.run({"x": ONES, "z": ONES})
            bound = session.bind({"x": ONES, "z": (2, 4)})
            bound.run()
            if number % 8 == 0:
                session.run_async({"x": ONES, "z": ONES}).result()
            with pytest.raises(UserError):
                session.run({"x": ONES})
        if number % 8 == 1:
            with pytest.raises(UserError):
                ortkit.Session(b"no model at all", "cpu")

    for number in range(count // 4):
        once(number)
    gc.collect()
    before = resident_bytes(), open_files(), threads()
    for number in range(count):
        once(number)
    gc.collect()
    after = resident_bytes(), open_files(), threads()
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def grown_by_runs(count: int) -> int:
    """Return bytes that `count` runs, of ever new shapes in between, leave behind."""
    with ortkit.Session(models.model(models.ADD), "cpu", threads=1) as session:
        shapes = [np.ones((size, 4), np.float32) for size in range(1, 65)]

        def run(number: int) -> None:
            x = shapes[number % 64] if number % 16 == 0 else ONES
            session.run({"x": x, "z": x})

        for number in range(count // 4):
            run(number)
        before = resident_bytes()
        for number in range(count):
            run(number)
        return resident_bytes() - before


#: What one session or run may leave: below what losing its smallest object would.
SESSION_BYTES, RUN_BYTES = 4096, 16


def grows_each_time(grown: Callable[[], int], limit: float) -> bool:
    """Say whether memory grows again and again: the allocator's arenas grow once."""
    return all(grown() >= limit for _ in range(3))


def test_sessions_leave_nothing(tmp_path: Path) -> None:
    def grown() -> int:
        size, files, workers = grown_by_sessions(200, tmp_path)
        assert files == 0
        assert workers == 0
        return size

    assert not grows_each_time(grown, 200 * SESSION_BYTES)


def test_runs_leave_nothing() -> None:
    assert not grows_each_time(lambda: grown_by_runs(50_000), 50_000 * RUN_BYTES)


def test_what_grows_each_time_is_found() -> None:
    kept: list[mmap.mmap] = []

    def grown() -> int:
        """Keep new pages: an allocator may have some that were resident before."""
        before = resident_bytes()
        kept.append(mmap.mmap(-1, 1 << 23))
        for page in range(0, 1 << 23, mmap.PAGESIZE):
            kept[-1][page] = 1
        return resident_bytes() - before

    assert grows_each_time(grown, 1 << 22)


@pytest.mark.slow
def test_ten_thousand_sessions_and_a_million_runs(tmp_path: Path) -> None:
    grown, files, workers = grown_by_sessions(10_000, tmp_path)
    assert (files, workers) == (0, 0)
    assert grown < 10_000 * SESSION_BYTES / 10
    assert grown_by_runs(1_000_000) < 1_000_000 * RUN_BYTES / 10

"""What a session's arenas count, against tensors whose sizes are known."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit import Session
from ortkit.errors import UserError
from ortkit.runtime import arenas
from ortkit.runtime.memory import address, report_of
from ortkit.runtime.native_library import NotAvailableError

GRAIN = 256
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y) { a = Exp (x)  b = Neg (x)  y = Mul (a, b) }"""


def session(**settings: object) -> Session:
    return Session(onnx.parser.parse_model(MODEL), "cpu", **settings)


@pytest.mark.parametrize("elements", [1, 1009, 1 << 18])
def test_peak_and_use_are_the_tensors_bytes(elements: int) -> None:
    """Exp, Neg and the output are alive together: outputs get memory of their own."""
    x = np.ones(elements, np.float32)
    rounded = -(-x.nbytes // GRAIN) * GRAIN
    with session(memory_pattern=False) as made:
        before = report_of(made).arena("Cpu")
        assert before is not None and before.peak == 0
        made.run(x)
        after = report_of(made).arena("Cpu")
        assert after is not None
        assert after.in_use == 0, "outputs were given back"
        assert after.peak == pytest.approx(3 * rounded, rel=0.05)
        assert after.held >= after.peak
        assert after.largest == pytest.approx(rounded, rel=0.05)
        assert after.extensions >= 1


def test_an_output_that_is_kept_is_in_use() -> None:
    x = np.ones(1 << 18, np.float32)
    with session() as made:
        binding = made.onnxruntime.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "cpu")
        made.onnxruntime.run_with_iobinding(binding)
        arena = report_of(made).arena("Cpu")
        assert arena is not None
        assert arena.in_use == pytest.approx(x.nbytes, rel=0.05)
        assert arena.requested == pytest.approx(x.nbytes, rel=0.05)
        binding.clear_binding_outputs()
        arena = report_of(made).arena("Cpu")
        assert arena is not None and arena.in_use == 0


def test_sessions_of_one_model_are_told_apart() -> None:
    x = np.ones(1 << 16, np.float32)
    made = [session() for _ in range(5)]
    try:
        for count, one in enumerate(made):
            for _ in range(count):
                one.run(x)
        found = [report_of(item).arena("Cpu") for item in made]
        assert [arena is not None and arena.peak > 0 for arena in found] == [False] + 4 * [True]
        counts = [arena.allocations for arena in found if arena is not None]
        assert counts == sorted(set(counts)), "each counts its own runs"
    finally:
        for one in made:
            one.close()


def test_without_an_arena_the_numbers_are_said_to_be_missing() -> None:
    with session(memory_arena=False) as made:
        report = report_of(made)
        assert report.arenas == ()
        (missing,) = report.unavailable
        assert missing.what == "arena Cpu"
        assert "no arena" in missing.reason
        assert report.process is not None


def test_a_runtime_that_keeps_its_sessions_elsewhere_is_no_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address, "_CLASS", b"N11onnxruntime7AnotherE\0")
    address._offset.cache_clear()
    try:
        with session() as made:
            report = report_of(made)
        assert report.arenas == ()
        assert ort.__version__ in report.unavailable[0].reason
    finally:
        address._offset.cache_clear()


def test_what_is_no_session_is_refused() -> None:
    class Empty:
        _sess = None

    class Other:
        _sess = object()

    for one in (Empty(), Other()):
        with pytest.raises(NotAvailableError):
            address.session_address(one)  # type: ignore[arg-type]


def test_reading_where_nothing_is_mapped_is_no_crash() -> None:
    with address._Memory() as memory:
        for place in (0, 8, 1 << 16, 1 << 46, (1 << 47) - 8, 1 << 60, 12345):
            assert not memory.is_session(place)


def test_an_allocator_that_counts_less_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor:
        def arena_statistics(self, *_: object) -> dict[str, int]:
            return {"InUse": 1, "Limit": -1}

    monkeypatch.setattr(arenas, "runtime_library", Poor)
    with session() as made:
        report = report_of(made)
    assert report.arenas == ()
    assert "MaxInUse" in report.unavailable[0].reason


def test_a_closed_session_has_no_memory() -> None:
    made = session()
    made.close()
    with pytest.raises(UserError, match="closed"):
        report_of(made)


def test_a_report_is_json() -> None:
    with session() as made:
        content = json.loads(json.dumps(report_of(made).to_json()))
    assert set(content) == {"arenas", "process", "devices", "unavailable"}
    assert content["arenas"][0]["memory"] == "Cpu"


RESIDENT = """
import json
import numpy as np
from pathlib import Path
from ortkit.runtime.memory.process import process_memory, reset_peak

def resident():
    smaps = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return 1024 * int(smaps.partition("Rss:")[2].split()[0])

resident(), process_memory()  # with all that is imported for them
block = np.ones(1 << 26, np.uint8)
held, said = process_memory(), resident()
del block
is_reset = reset_peak()
left = process_memory()
print(json.dumps([held.resident, said, is_reset, left.resident, left.peak, held.peak]))
"""


def test_resident_memory_is_what_the_system_says() -> None:
    """In a process of its own: of this one the system may take back pages meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True
    )
    held, said, is_reset, left, peak, peak_before = json.loads(done.stdout)
    assert held == pytest.approx(said, rel=0.05)
    if not is_reset:
        pytest.skip("the system does not reset peaks")
    assert held - left == pytest.approx(1 << 26, rel=0.05)
    assert peak < peak_before

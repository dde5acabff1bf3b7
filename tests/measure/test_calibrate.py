"""Measuring what work costs: every part is there, and what cannot be measured is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit.kernels.catalog import BACKENDS
from ortkit.kernels.tuning.calibration import Calibration, machine
from ortkit.measure.calibrate import calibrate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))


def test_every_part_is_measured_in_time(tmp_path: Path) -> None:
    stages: list[str] = []
    done = calibrate(stages.append)
    found, default = done.calibration, Calibration()
    assert stages == ["memory", "node", "kernel", "operation", "parallel"]
    assert found.machine == machine()
    assert done.seconds < 20
    rates = [rate for _, rate in found.bandwidths]
    assert min(rates) > 0.1
    # Equal to the last digit only if it was not measured.
    kept = {note.partition(":")[0] for note in done.notes}
    assert ("node" in kept) == (found.node_ns == default.node_ns)
    assert ("kernel" in kept) == (found.kernel_ns == default.kernel_ns)
    assert ("operation" in kept) == (found.operation_ns == default.operation_ns)
    assert {"node", "operation"}.isdisjoint(kept)
    # Between a tenth of a cycle of a wide machine and ten cycles of a narrow one.
    assert 0.0005 < found.operation_ns < 10
    assert not list((tmp_path / "cache").glob("*.json"))


def test_without_a_toolchain_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "tvm", f"{__name__}:Absent")
    done = calibrate()
    assert [note.partition(":")[0] for note in done.notes][:2] == ["kernel", "operation"]
    assert "the compiler is not here" in done.notes[0]
    default = Calibration()
    assert done.calibration.operation_ns == default.operation_ns
    assert done.calibration.node_ns != default.node_ns


class Absent:
    """A backend whose toolchain is not installed."""

    name = "absent"

    def available(self):
        from ortkit.refusal import Refused

        return Refused("the compiler is not here")

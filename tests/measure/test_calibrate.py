"""Measuring what work costs: every part is there, and what cannot be measured is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ortkit.measure.calibrate as calibration_module
from ortkit.cli.main import run
from ortkit.errors import InternalError
from ortkit.kernels.catalog import BACKENDS
from ortkit.kernels.tuning.calibration import (
    Calibration,
    falling,
    machine,
    save_calibration,
    stored_calibration,
)
from ortkit.measure.calibrate import calibrate
from ortkit.measure.chain_child import ChainsJob
from ortkit.measure.rates import heavy_operators
from ortkit.targets.target import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "_SECONDS", 0.02)
    monkeypatch.setattr(calibration_module, "_HEAVY_SECONDS", 0.05)
    heavy = [
        operator for operator in heavy_operators(Target()) if operator.kind == "pointwise_conv"
    ]
    monkeypatch.setattr(calibration_module, "heavy_operators", lambda _: heavy)
    monkeypatch.setattr(calibration_module, "_COPY_SECONDS", 0.01)
    monkeypatch.setattr(calibration_module, "_WATCH_SECONDS", 0.05)
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))


def test_every_part_is_measured_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "MOST_NOISE", 9.0)  # other tests run beside it
    stages: list[str] = []
    done = calibrate(stages.append)
    found, default = done.calibration, Calibration()
    assert stages == ["memory", "compile", "nodes", "kernels"]
    assert [kind for kind, factor in found.kernels if factor > 0] == ["pointwise_conv"]
    assert found.machine == machine()
    assert done.seconds > 0
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
    parts = [note.partition(":")[0] for note in done.notes]
    assert [part for part in parts if part != "parallel"] == [
        "kernel",
        "operation",
        "pointwise_conv",
    ]
    assert "the compiler is not here" in done.notes[0]
    default = Calibration()
    assert done.calibration.operation_ns == default.operation_ns
    assert done.calibration.node_ns != default.node_ns


def test_a_session_that_fails_leaves_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "fastest_runs", fails)
    monkeypatch.setattr(calibration_module, "build_library", lambda *_: Built())
    done = calibrate()
    assert done.notes[0] == "ValueError: no session"
    assert {"node", "kernel"} < {note.partition(":")[0] for note in done.notes}
    default = Calibration()
    assert (done.calibration.node_ns, done.calibration.kernels) == (default.node_ns, ())
    assert set(done.noise) <= {"memory"}


def fails(job: ChainsJob) -> tuple[float, ...]:
    raise ValueError("no session")


class Built:
    """A library in which no region was refused."""

    refused = ()


def test_nothing_is_stored_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = calibration_module.Calibrated(Calibration(), (), {"node": 0.1, "kernel": 0.4}, 1.0)
    monkeypatch.setattr(calibration_module, "calibrate", lambda progress: done)
    assert run(["calibrate"]) == 1
    assert "(kernel 40%); nothing was written; end what else runs" in capsys.readouterr().err
    assert stored_calibration() is None
    busy = replace(done, noise={}, others_cpus=1.7)
    monkeypatch.setattr(calibration_module, "calibrate", lambda progress: busy)
    assert run(["calibrate"]) == 1
    assert "other processes use 1.7 processors; nothing was" in capsys.readouterr().err
    assert stored_calibration() is None
    found = Calibration(machine=machine())
    monkeypatch.setattr(
        calibration_module, "calibrate", lambda progress: replace(done, noise={"node": 0.1})
    )
    assert run(["calibrate"]) == 0
    assert stored_calibration() is None  # of no machine, as this one is made up
    save_calibration(found)
    assert stored_calibration() == tmp_path / "cache" / "calibration.json"


def test_larger_sizes_are_not_faster() -> None:
    rising = ((1, 5.0), (2, 7.0), (4, 3.0))
    assert falling(rising) == ((1, 5.0), (2, 5.0), (4, 3.0))
    with pytest.raises(InternalError, match="not sound"):
        save_calibration(Calibration(bandwidths=rising, machine=machine()))


class Absent:
    """A backend whose toolchain is not installed."""

    name = "absent"

    def available(self):
        from ortkit.refusal import Refused

        return Refused("the compiler is not here")

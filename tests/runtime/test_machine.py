"""What else the machine did: counted from the system's own numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ortkit.runtime import machine
from ortkit.runtime.machine import LoadWatch, MachineLoad

QUIET = MachineLoad(4, 0.1, 0.1, 0.02, 0.0, "performance")


def test_a_quiet_machine_has_no_warning() -> None:
    assert QUIET.warning == ""
    assert MachineLoad(4, None, None, None, None, None).warning == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"others_cpus": 1.26}, "other processes used 1.3 of 4 processors"),
        ({"stolen": 0.2}, "20% of the processors' time went to other machines"),
        ({"governor": "powersave"}, "governor is powersave"),
    ],
)
def test_what_makes_times_doubtful_is_said(changed: dict[str, float | str], said: str) -> None:
    load = replace(QUIET, **changed)
    assert said in load.warning
    assert load.to_json()["warning"] == load.warning


def test_what_others_use_is_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """100 ticks a second; 3 s of work, of which 1 s was ours, in 2 s."""
    stat = tmp_path / "stat"
    clock = iter((10.0, 12.0))
    monkeypatch.setattr(machine, "_STAT", stat)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    own = iter((5.0, 6.0))
    monkeypatch.setattr(machine, "_own_seconds", lambda: next(own))
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0\n", encoding="ascii")
    with LoadWatch() as watch:
        stat.write_text("cpu  200 50 50 80 15 0 0 5 0 0\n", encoding="ascii")
    found = watch.found()
    assert found.others_cpus == pytest.approx(1.0)
    assert found.stolen == pytest.approx(5 / 400)


def test_what_is_not_readable_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_STAT", tmp_path / "none")
    monkeypatch.setattr(machine, "_GOVERNOR", tmp_path / "none")
    with LoadWatch() as watch:
        pass
    found = watch.found()
    assert (found.others_cpus, found.stolen, found.governor) == (None, None, None)
    assert found.cpus >= 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system has no /proc/stat")
def test_our_own_children_are_no_others() -> None:
    code = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    before = machine._own_seconds()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert machine._own_seconds() - before >= 1


def test_a_process_that_is_no_child_is_counted() -> None:
    spins = "import time\nwhile time.process_time() < 0.2: pass"
    done = f"{spins}\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with LoadWatch() as watch:
        child = subprocess.Popen([sys.executable, "-c", done], stdin=pipe, stdout=pipe)
        assert child.stdout is not None
        child.stdout.readline()
        watch.count(child.pid)
        watch.count(2**22 + 1)  # there is none
    child.communicate(b"\n")
    assert watch._counted >= 0.15

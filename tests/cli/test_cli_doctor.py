"""The doctor describes any machine, most of all a broken one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ortkit import doctor
from ortkit.doctor import Finding, diagnose
from ortkit.kernels.tuning.calibration import Calibration, machine, save_calibration
from ortkit.targets.probes import Probed


def found(name: str) -> Finding:
    return next(finding for finding in diagnose().findings if finding.name == name)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _name: None)
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    monkeypatch.setattr(doctor, "_probe", lambda _code: "nothing is there")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("ORTKIT_CACHE", "/no/such/folder")


def test_here_the_needed_things_are_found() -> None:
    stages: list[str] = []
    states = {finding.name: finding.state for finding in diagnose(stages.append).findings}
    assert states["onnxruntime"] == "ok"
    assert states["tvm"] == "ok"
    assert states["python"] == "ok"
    # The progress names each part.
    assert stages[0] == "system"
    assert "runtime" in stages


def test_whether_this_machine_is_calibrated_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    before = next(doctor._calibration())
    assert (before.state, before.value) == ("optional", "not done here; defaults are used")
    assert before.fix.endswith("ortkit calibrate")
    save_calibration(replace(Calibration(), machine=machine()))
    after = next(doctor._calibration())
    assert (after.state, after.value, after.fix) == ("ok", machine(), "")


@pytest.mark.usefixtures("nothing_installed")
def test_nothing_installed_is_described(call) -> None:
    done = call("doctor")
    assert done.code == 0
    assert done.err == ""
    for name in ("onnxruntime", "onnx", "tvm", "C compiler"):
        assert found(name).state == "missing"
        assert found(name).fix
        assert name in done.out.splitlines()[-1]


@pytest.mark.usefixtures("nothing_installed")
def test_two_runtimes_over_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(doctor, "_version", both.get)
    one = found("one runtime only")
    assert one.state == "broken"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in one.fix
    assert found("onnxruntime").value == "does not load: nothing is there"


def aborts(_: None) -> Probed:
    os.abort()


def does_not_load(_: None) -> Probed:
    raise ImportError("libxyz.so: cannot open")


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (aborts, "crashes with signal 6"),
        (does_not_load, "ImportError: libxyz.so: cannot open"),
    ],
)
def test_a_package_that_breaks_does_not_take_the_doctor_with_it(
    look: Callable[[None], Probed], said: str
) -> None:
    assert doctor._probe(look) == said


@pytest.mark.parametrize(
    ("text", "state", "value"),
    [
        ("always [madvise] never\n", "ok", "madvise"),
        (
            "always madvise [never]\n",
            "optional",
            "off: weights of 4 and 8 bits are read more slowly",
        ),
        (None, "optional", "not supported by this system"),
    ],
)
def test_whether_there_are_huge_pages_is_said(
    text: str | None, state: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "enabled"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(doctor, "HUGE_PAGES", file)
    one = doctor._huge_pages()
    assert (one.state, one.value.startswith(value)) == (state, True)
    assert bool(one.fix) == (text is not None and state != "ok")

"""Peaks: rates that can be, kept by provider, threads and machine, and measured anew otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortkit.errors import RunError, UserError
from ortkit.measure import peaks as measure
from ortkit.runtime.profiling.peaks import CPU, FILE, Peaks, load_peaks, save_peaks, threads_for

FOUND = Peaks(CPU, 2, "this machine", {"float32": 50.0}, ((1024, 40.0), (4096, 10.0)), 1.5)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    return tmp_path


def test_rates_are_those_of_where_the_data_lies() -> None:
    assert FOUND.move_us(1000) == pytest.approx(1000 / 40 / 1e3)
    assert FOUND.move_us(1025) == pytest.approx(1025 / 10 / 1e3)
    assert FOUND.move_us(10**6) == pytest.approx(100)
    assert FOUND.move_us(1000, in_use=10**6) == pytest.approx(0.1)
    assert FOUND.compute_us(5e6, "float32") == pytest.approx(100)
    assert FOUND.compute_us(1, "int8") is None
    assert threads_for(CPU, 4) == 4 and threads_for("CUDAExecutionProvider", 4) == 0


def test_they_are_kept_and_found_again() -> None:
    other = Peaks(CPU, 1, "this machine", {"float32": 25.0}, ((1024, 20.0),), 0.0)
    save_peaks(FOUND)
    save_peaks(other)
    save_peaks(FOUND)
    assert load_peaks(CPU, 2, "this machine") == FOUND
    assert load_peaks(CPU, 1, "this machine") == other
    assert load_peaks(CPU, 2, "another machine") is None
    assert load_peaks("CUDAExecutionProvider", 2, "this machine") is None


@pytest.mark.parametrize(
    "change",
    [
        {"bandwidths": []},
        {"bandwidths": [[1024, 0]]},
        {"bandwidths": [[4096, 1], [1024, 2]]},
        {"gflops": {"float32": -1}},
        {"threads": "many"},
        {"tracing_us": None},
    ],
)
def test_what_is_no_rate_is_not_used(change: dict[str, object], cache: Path) -> None:
    save_peaks(FOUND)
    content = json.loads((cache / FILE).read_text("utf-8"))
    content["peaks"][0].update(change)
    (cache / FILE).write_text(json.dumps(content), "utf-8")
    assert load_peaks(CPU, 2, "this machine") is None
    for text in ("", "[]", '{"schema": "x"}', '{"schema": "ortkit.peaks/1"}'):
        (cache / FILE).write_text(text, "utf-8")
        assert load_peaks(CPU, 2, "this machine") is None


def test_they_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(provider: str, threads: int) -> Peaks:
        asked.append((provider, threads))
        return Peaks(provider, threads, measure.machine(), {}, ((1, 1.0),), 0.0)

    monkeypatch.setattr(measure, "measure_peaks", measured)
    first, said = measure.peaks_of(CPU, 2)
    assert measure.peaks_of(CPU, 2) == (first, said) and asked == [(CPU, 2)]

    def fails(provider: str, threads: int) -> Peaks:
        raise RunError("no such provider")

    monkeypatch.setattr(measure, "measure_peaks", fails)
    assert measure.peaks_of("X", 0) == (
        None, "the machine's peaks are not known: no such provider"
    )  # fmt: skip


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write the peaks"):
        save_peaks(FOUND)
    monkeypatch.setattr(measure, "measure_peaks", lambda *_: FOUND)
    found, said = measure.peaks_of(CPU, 2)
    assert found == FOUND and "cannot write the peaks" in said


def test_this_machine_has_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SECONDS", 0.01)
    monkeypatch.setattr(measure, "_SIZES", (1 << 16, 1 << 20))
    monkeypatch.setattr(measure, "_SIDES", {CPU: (64, 128)})
    for threads in (1, 2):
        found = measure.measure_peaks(CPU, threads)
        assert found.gflops["float32"] > 0 and found.tracing_us >= 0
        rates = [rate for _, rate in found.bandwidths]
        assert rates == sorted(rates, reverse=True) and rates[-1] > 0
        assert Peaks.from_json(json.loads(json.dumps(found.__dict__))) == found

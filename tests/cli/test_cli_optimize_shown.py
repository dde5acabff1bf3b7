"""`ortkit optimize`: a headline and a summary, and tables by -v."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ortkit.cli.optimize_tables import headline, timing_text
from ortkit.measure.result import Measurement, ModelTiming, Verdict
from ortkit.measure.short_timing import ShortTiming
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.runtime.intervals import Direction, Speedup
from tests.cli.conftest import Call


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--level", "1"), "small.onnx: 4 -> 3 nodes, verified, not timed"),
        (("--level", "1", "--no-verify"), "small.onnx: 4 -> 3 nodes, not verified, not timed"),
    ],
)
def test_a_headline_comes_first(
    call: Call, folder: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    done = call("optimize", folder / "small.onnx", "-o", tmp_path / "o.onnx", *flags)
    assert done.out.splitlines()[0] == said
    assert "operators Relu, Tanh, Add\n" in done.out
    assert "rewrites  drop-identity\n" in done.out
    assert "before" not in done.out


def test_a_run_is_timed_before_and_after(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_TIMING", "on")
    monkeypatch.setattr("ortkit.measure.short_timing.SECONDS", 20.0)
    monkeypatch.setattr("ortkit.measure.short_timing._MOST_ROUNDS", 4)
    flags = ("--level", "1", "--no-verify", "--html", tmp_path / "p.html", "--report")
    report = tmp_path / "r.json"
    made = tmp_path / "o.onnx"
    done = call("optimize", folder / "small.onnx", "-o", made, *flags, report)
    first, *rest = done.out.splitlines()
    timing = json.loads(report.read_text("utf-8"))["timing"]
    assert timing["problem"] == ""
    if timing["speedup"]["direction"] == "no difference":
        assert first.endswith((f", {UNCLEAR}", f", {BUSY}"))
    else:
        bound = "(at (least|most) )?"  # where other work makes the interval wide
        assert re.search(rf", {bound}[\d.]+x on \d+ cores? \(measured\)$", first)
    (line,) = (line for line in rest if line.startswith("timed     "))
    assert f"{timing['before_ms']:.3f} ms before, {timing['after_ms']:.3f} ms after: " in line
    assert "A run, measured" in (tmp_path / "p.html").read_text("utf-8")


@pytest.mark.parametrize("flags", [("--no-timing",), ("-q",), ()])
def test_a_run_is_not_timed_where_nobody_asks(
    call: Call,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    """By a flag, as nothing is printed, or by the environment."""
    monkeypatch.setenv("ORTKIT_TIMING", "on" if flags else "off")
    monkeypatch.setattr("ortkit.measure.short_timing.time_shortly", None)
    made = tmp_path / "o.onnx"
    done = call(
        "optimize", folder / "small.onnx", "-o", made, "--level", "1", "--no-verify", *flags
    )
    assert done.code == 0
    assert "timed  " not in done.out


def times(ratio: float, direction: Direction, **changed: float) -> ShortTiming:
    """Return a timing of a second before."""
    interval = Speedup(ratio, 0.9 * ratio, 1.1 * ratio, 0.95, direction)
    inputs = dict.fromkeys("abcde", (1, 8))
    timing = ShortTiming("", 1000.0, 1000.0 / ratio, interval, 12, 0, 2, 0.0, 0.05, inputs)
    return replace(timing, **changed)  # type: ignore[arg-type]


def wide(low: float, high: float, direction: Direction) -> ShortTiming:
    """Return a timing whose interval says little."""
    timing = times((low * high) ** 0.5, direction)
    assert timing.speedup is not None
    return replace(timing, speedup=replace(timing.speedup, low=low, high=high))


UNCLEAR = "no clear difference on 2 cores (measured)"
BUSY = "not timed reliably: the machine is busy"


@pytest.mark.parametrize(
    ("timing", "said", "line"),
    [
        (None, "not timed", ""),
        (ShortTiming("it is large"), "not timed", "no: it is large"),
        (times(2.64, "faster"), "2.6x on 2 cores (measured)", ": 2.64 times as fast (2.38 to"),
        (times(1.284, "faster", threads=1), "1.28x on 1 thread (measured)", ", c 1x8, 2 more"),
        (times(0.5, "slower"), "0.50x on 2 cores (measured)", "0.50 times as fast"),
        (wide(1.68, 35.0, "faster"), "at least 1.68x on 2 cores (measured)", "(1.68 to 35.00)"),
        (wide(0.1, 0.8, "slower"), "at most 0.80x on 2 cores (measured)", "(0.10 to 0.80)"),
        (times(1.02, "no difference"), UNCLEAR, ", within the noise here;"),
        (
            times(1.9, "no difference", others_cores=1.0, noise=1.0), BUSY,
            ", within the noise here, as other work used 1.0 of 2 cores; a",
        ),
    ],
)  # fmt: skip
def test_the_headline_says_what_is_known(
    timing: ShortTiming | None, said: str, line: str, folder: Path
) -> None:
    options = OptimizeOptions(level=0, verify=False, check_load=False)
    report = replace(optimize(folder / "small.onnx", options).report, timing=timing)
    assert headline(report, "m.onnx") == f"m.onnx: 4 -> 3 nodes, not verified, {said}"
    assert timing is None or line in timing_text(timing)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("faster", "1.30x (measured)"), ("no difference", "no clear difference (measured)")],
)
def test_the_headline_of_a_measured_model(verdict: Verdict, said: str, folder: Path) -> None:
    """`--measure` measures the whole model: a ratio within its noise is no result."""
    model = ModelTiming(1.3, 1.0, 1.3, 0.4, verdict, None, None)
    measured = Measurement("", 2, {}, (), model, None, None, (), (), 0.0)
    options = OptimizeOptions(level=0, verify=False, check_load=False)
    report = replace(optimize(folder / "small.onnx", options).report, measurement=measured)
    assert headline(report, "m.onnx") == f"m.onnx: 4 -> 3 nodes, not verified, {said}"


def test_tables_come_with_verbose(call: Call, folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "o.onnx"
    done = call("optimize", folder / "small.onnx", "-o", made, "--level", "1", "-v")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert {"op before after", "Identity 1 0", "all nodes 4 3", "drop-identity 1"} <= {*lines}
    assert "operators Relu" not in done.out


def test_kernels_are_counted_by_kind(call: Call, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    made = tmp_path / "o.onnx"
    done = call("optimize", folder / "bert.onnx", "-o", made, "--no-verify")
    first, _, kernels, *_ = done.out.splitlines()
    assert " kernels in " in first
    assert " places, not verified, not timed" in first
    assert kernels.startswith("kernels   product ")
    assert max(map(len, done.out.splitlines()[:6])) < 150


def test_quiet_prints_nothing(call: Call, folder: Path, tmp_path: Path) -> None:
    done = call("optimize", folder / "small.onnx", "-o", tmp_path / "o.onnx", "--level", "1", "-q")
    assert (done.code, done.out) == (0, "")

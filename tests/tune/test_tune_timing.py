"""Kernels of one region, timed in turns in a process of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from tuned_regions import SOFTMAX, region

from ortkit.errors import KernelError
from ortkit.kernels.build import compiler
from ortkit.refusal import Refused
from ortkit.targets.cpu import runs_here
from ortkit.targets.target import Target
from ortkit.tune import timing, timing_cpu
from ortkit.tune.cases import TuneCase
from ortkit.tune.processes import timed_in_process
from ortkit.tune.timing import Effort, Request, time_all, time_choices
from ortkit.tune.timing_child import (
    CpuTimingJob,
    KernelTimes,
    TimedTensor,
    time_kernels,
    time_on_cpu,
)

TARGET = Target().resolved()
QUICK = Effort(processes=2, rounds=3, seconds=1e-5)


def test_each_kernel_has_a_time_for_each_round() -> None:
    found = time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", ["", "keep=0"], QUICK)
    assert [item.choices for item in found] == ["", "keep=0"]
    for one in found:
        assert not one.problem
        assert [len(each) for each in one.processes] == [3, 3]
        assert 0 < one.fastest_ns <= one.median_ns


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "bool"])
def test_other_types_are_timed_and_compared(dtype: str) -> None:
    op = "Not (X)" if dtype == "bool" else "Add (X, X)"
    signature = region(f"Y = {op}", {"X": ("n", 20)}, {"Y": ("n", 20)}, dtype)
    found = time_choices(TuneCase(signature, (5,)), TARGET, "tvm", ["", "vector=4"], QUICK)
    assert [item.problem for item in found] == ["", ""]


@pytest.mark.skipif(not runs_here("x86-64-v4-amx"), reason="this machine has no tiles")
def test_kernels_on_tiles_are_timed() -> None:
    """A process has to ask for tiles before it runs them."""
    heads = ", ".join(f"{name}r" for name in "QKV")
    casts = " ".join(
        f"{name}n = Cast <to = 16> ({name}) {name}r = Cast <to = 1> ({name}n)" for name in "QKV"
    )
    text = f"{casts} Y = Attention <q_num_heads = 2, kv_num_heads = 2> ({heads})"
    shapes = dict.fromkeys("QKV", (1, "n", 64))
    signature = region(text, shapes, {"Y": (1, "n", 64)})
    target = Target("cpu", "x86-64-v4-amx")
    found = time_choices(TuneCase(signature, (40,)), target, "tvm", ["", "keys=32"], QUICK)
    assert [item.problem for item in found] == ["", ""]


def test_a_kernel_that_does_not_compile_costs_itself_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = timing.compile_all

    def one_fails(jobs, count):
        made = compiled(jobs, count)
        return [Refused("out of registers") if job.choices else item
                for job, item in zip(jobs, made, strict=True)]  # fmt: skip

    monkeypatch.setattr(timing, "compile_all", one_fails)
    found = time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", ["", "keep=0"], QUICK)
    assert [one.problem for one in found] == ["", "out of registers"]
    assert found[1].processes == ()


def test_without_the_default_there_is_nothing_to_compare_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "compile_all", lambda jobs, _: [Refused("no") for _ in jobs])
    with pytest.raises(KernelError, match="the default kernel is not there: no"):
        time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", ["", "keep=0"], QUICK)


def test_several_regions_are_compiled_together() -> None:
    """What fails of one of them is said of it alone."""
    other = TuneCase(region("Y = Tanh (X)", {"X": ("n", 20)}, {"Y": ("n", 20)}), (5,))
    requests = [
        Request(TuneCase(SOFTMAX, (7,)), "tvm", ["", "keep=0"]),
        Request(other, "tvm", ["wings=2", ""]),
        Request(other, "tvm", ["", "vector=4"]),
    ]
    first, second, third = time_all(requests, TARGET, QUICK)
    assert isinstance(second, KernelError)
    assert "the default kernel is not there" in str(second)
    for found, request in ((first, requests[0]), (third, requests[2])):
        assert not isinstance(found, KernelError)
        assert [item.choices for item in found] == request.choices
        assert all(one.fastest_ns > 0 for one in found)


def run_library(tmp_path: Path, source: str, kernels: int) -> KernelTimes:
    """Run the timing process on a library in C; it has a kernel that writes 2 x or x + 1."""
    (tmp_path / "k.c").write_text(source)
    library = tmp_path / "k.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "k.c"], check=True)
    tensor = TimedTensor("float32", (4,))
    job = CpuTimingJob(library, (4,) * kernels, (tensor,), (tensor,), (), 2, 1e-6)
    return timed_in_process(time_on_cpu, job)


SOURCE = """#include <stdint.h>
int64_t ortkit_time(int32_t which, float **p, int64_t *s, int64_t units, int64_t runs) {
  for (int i = 0; i < 4; ++i) p[1][i] = which == 1 ? p[0][i] + 1 : 2 * p[0][i];
  return 100 * runs;
}"""


def test_a_kernel_that_computes_something_else_is_not_timed(tmp_path: Path) -> None:
    found = run_library(tmp_path, SOURCE, 3)
    assert found.problems == ("", "it computes something else than the default", "")
    assert found.times == ((100.0, 100.0), (), (100.0, 100.0))


def test_a_crash_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = timing_cpu._SOURCE.replace(
        "const int64_t began", "__builtin_trap(); const int64_t began"
    )
    monkeypatch.setattr(timing_cpu, "_SOURCE", crashing)
    with pytest.raises(KernelError, match="the process that times kernels crashed with signal 4"):
        time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", [""], QUICK)


def test_the_toolchain_stays_loaded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_idle_seconds", 0.0)
    # Not what other tests have compiled.
    monkeypatch.setattr(timing, "compile_all", compiler.compile_all)
    with compiler.staying(30.0):
        time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", [""], QUICK)
        (kind,) = compiler._servers.values()
        first = kind.current
        assert first is not None
        time_choices(TuneCase(SOFTMAX, (7,)), TARGET, "tvm", ["", "keep=0"], QUICK)
        assert kind.current is first
        assert first.is_usable
        with compiler.staying(20.0):
            assert first.is_usable
        assert first.is_usable
    assert not first.is_usable


def test_a_kernel_that_writes_nothing_is_not_timed(tmp_path: Path) -> None:
    """What the one before it wrote is not taken for its own."""
    source = SOURCE.replace("for (int i", "if (which != 1) for (int i")
    found = run_library(tmp_path, source, 2)
    assert found.problems == ("", "it computes something else than the default")


@pytest.mark.parametrize("is_estimated", [True, False])
def test_nobody_waits_for_a_kernel_without_hope(is_estimated: bool) -> None:
    """Such as one that computes a sum again for each of its terms."""
    taken, ran = [1e7, 1e12, 5e7], [0, 0, 0]

    def nanoseconds(number: int, runs: int) -> float:
        ran[number] += runs
        return taken[number]

    found = time_kernels(
        3,
        nanoseconds,
        lambda *, reset: [np.zeros(1)],
        lambda first, found: True,
        2,
        1e-6,
        np.random.default_rng(0),
        estimate=taken.__getitem__ if is_estimated else lambda _: 0.0,
    )
    assert found.problems == ("", "it takes more than 20 times as long as the default", "")
    assert ran[1] == (0 if is_estimated else 1)
    assert [len(times) for times in found.times] == [2, 0, 2]

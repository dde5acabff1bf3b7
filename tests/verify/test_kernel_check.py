"""Each kernel beside its body: faults at single sizes, on single ways to run, and crashes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from faulty_kernels import RELU, Fault, calling, faulty_library, has_compiler, signature

from ortkit.isolation.ended import Ended, TimedOut
from ortkit.kernels.link.linker import find_shim
from ortkit.verify.kernels import check as kernel_check
from ortkit.verify.kernels import process
from ortkit.verify.kernels import verdicts as kernel_verdicts
from ortkit.verify.kernels.check import SECONDS, KernelReport, check_kernels
from ortkit.verify.kernels.inputs import in_rows
from ortkit.verify.kernels.job import Step
from ortkit.verify.kernels.process import Checks, Order
from ortkit.verify.kernels.verdicts import Verdicts

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler")

WRONG = f"{RELU} * 1.0001f"
#: What is wrong, and words of what is said of it.
FAULTS = {
    "always": (Fault(WRONG), "epsilons of float32"),
    "batch 3": (Fault(f"n == 3 ? {WRONG} : {RELU}"), "inputs [3, "),
    "rows beyond 128": (Fault(f"i > 128 ? {WRONG} : {RELU}"), "epsilons of float32"),
    "columns beyond 128": (Fault(f"j > 128 ? {WRONG} : {RELU}"), "epsilons of float32"),
    "columns beyond 4,096": (Fault(f"j > 4096 ? {WRONG} : {RELU}"), ", 4099]"),
    "the last of odd columns": (
        Fault(f"m % 2 && m > 4 && j == m - 1 ? {WRONG} : {RELU}"), "epsilons of float32",
    ),
    "17 columns": (Fault(f"m == 17 ? {WRONG} : {RELU}"), ", 17]"),
    "the last row of a tile and one": (Fault(f"n == 33 && i == 32 ? v : {RELU}"), "inputs [33, "),
    "rows and columns equal": (Fault(f"n == m && n > 5 ? {WRONG} : {RELU}"), "epsilons"),
    "large values": (Fault(f"v > 50 ? 50 : {RELU}"), "large values"),
    "NaN dropped": (Fault("(v > 0 ? v : 0)"), "instead of nan"),
    "infinities dropped": (Fault(f"v > 3e38f ? 3e38f : {RELU}"), "instead of inf"),
    "unaligned": (Fault(f"(uintptr_t)x % 64 ? {WRONG} : {RELU}"), "unaligned"),
    "2 threads": (Fault(f"is_main() ? {RELU} : {WRONG}"), "2 threads"),
    "in place": (
        Fault(begin="for (int64_t i = begin * m; i < end * m; ++i) y[i] = 0;", inplace=True),
        "tensors of other nodes",
    ),
    "writes behind its output": (
        Fault(end="if (end == n) y[n * m] = 0;"), "it writes outside of output 0",
    ),
    "writes into an input": (
        Fault(end="if (begin < end && n == 2) ((float*)x)[begin * m] += 1;"),
        "it writes into input 0",
    ),
    "leaves an element": (Fault(f"i == 4 ? y[i * m + j] : {RELU}"), "inputs ["),
    "an error": (Fault(end="if (n == 3) return 7;"), "inputs [3, "),
    "crash": (Fault(begin="if (n == 3) *(volatile int*)0 = 1;"), "signal 11"),
    "abort": (Fault(begin="if (m == 131) __builtin_trap();"), "signal"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    find_shim()


def use_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Order]]:
    """Let a number of cores be usable; return what each process runs, once one was started."""
    made: list[Sequence[Order]] = []

    def checks(orders: Sequence[Order], *rest: Any) -> Checks:
        made.append(orders)
        return Checks(orders, *rest)

    monkeypatch.setattr(kernel_check, "cpu_limits", lambda: SimpleNamespace(whole=cores))
    monkeypatch.setattr(kernel_check, "Checks", checks)
    return made


def check(fault: Fault, folder: Path, **options: object) -> KernelReport:
    library = faulty_library(fault, folder / "model.opt.ops.so")
    return check_kernels(calling(signature()), library, **options)  # type: ignore[arg-type]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, tmp_path: Path) -> None:
    fault, words = FAULTS[name]
    report = check(fault, tmp_path)
    (row,) = report.failed
    assert row.op_type == signature().op_type
    assert words in row.reason
    assert not report.gaps


def test_a_right_kernel_passes_and_is_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = faulty_library(Fault(), tmp_path / "model.opt.ops.so")
    model = calling(signature())
    (row,) = check_kernels(model, library).rows
    assert (row.verdict, row.reason, row.reference) == ("passed", "", "float64")
    assert row.cases > 40
    assert row.runs == 4 * row.cases
    assert row.ratio < 1

    def forbidden(*_: object) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(kernel_check, "Checks", forbidden)
    (again,) = check_kernels(model, library).rows
    assert again.is_cached
    assert (again.verdict, again.cases) == ("passed", row.cases)


def test_a_verdict_that_left_sizes_out_is_none_where_there_is_time(tmp_path: Path) -> None:
    library = faulty_library(Fault(), tmp_path / "model.opt.ops.so")
    model = calling(signature())
    (hasty,) = check_kernels(model, library, seconds=0.0).rows
    assert hasty.left_out > 0
    assert check_kernels(model, library, seconds=SECONDS["quick"]).rows[0].is_cached
    (whole,) = check_kernels(model, library, seconds=SECONDS["full"]).rows
    assert (whole.is_cached, whole.left_out) == (False, 0)
    assert whole.cases == hasty.cases + hasty.left_out
    (again,) = check_kernels(model, library, seconds=SECONDS["full"]).rows
    assert again.is_cached


def test_a_verdict_belongs_to_the_code(tmp_path: Path) -> None:
    good, bad = (tmp_path / name for name in ("good", "bad"))
    for folder in (good, bad):
        folder.mkdir()
    model = calling(signature())
    assert not check_kernels(model, faulty_library(Fault(), good / "m.ops.so")).failed
    assert check_kernels(model, faulty_library(Fault(WRONG), bad / "m.ops.so")).failed


def test_a_verdict_that_was_changed_is_none(tmp_path: Path) -> None:
    library = faulty_library(Fault(), tmp_path / "model.opt.ops.so")
    model = calling(signature())
    check_kernels(model, library)
    (kept,) = Verdicts.of(library).folder.glob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b'"passed"', b'"passe_"'))
    (row,) = check_kernels(model, library).rows
    assert not row.is_cached


def test_the_oldest_verdicts_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_verdicts, "MAX_FILES", 1)
    library = faulty_library(Fault(), tmp_path / "model.opt.ops.so")
    verdicts = Verdicts.of(library)
    verdicts.folder.mkdir(parents=True)
    (verdicts.folder / "old.json").write_text("{}")
    os.utime(verdicts.folder / "old.json", (0, 0))
    check_kernels(calling(signature()), library)
    assert [path.name for path in verdicts.folder.iterdir()] != ["old.json"]
    assert len(list(verdicts.folder.iterdir())) == 1


def test_a_failed_kernel_is_tried_again(tmp_path: Path) -> None:
    library = faulty_library(Fault(WRONG), tmp_path / "model.opt.ops.so")
    model = calling(signature())
    for _ in range(2):
        (row,) = check_kernels(model, library).failed
        assert not row.is_cached


@pytest.mark.parametrize("cores", [1, 8])
def test_kernels_after_one_that_crashes_are_checked(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second node has no kernel in the library: it is listed, not passed.

    On more cores each has a process of its own.
    """
    made = use_cores(cores, monkeypatch)
    fault = FAULTS["crash"][0]
    library = faulty_library(fault, tmp_path / "model.opt.ops.so")
    other = signature("n", 5)
    report = check_kernels(calling(signature(), other), library)
    assert [row.verdict for row in report.rows] == ["failed", "not run"]
    assert report.rows[1].op_type == other.op_type
    assert [gap.what for gap in report.gaps] == ["1 kernel"]
    assert not report.gaps[0].needs_hardware
    assert [len(each) for each in made] == ([2] if cores == 1 else [1, 1])


def test_constants_of_zero_do_not_hide_what_is_done_with_them(tmp_path: Path) -> None:
    library = faulty_library(Fault("(x[i*m+j] < 0 ? 0 : x[i*m+j])"), tmp_path / "m.ops.so")
    model = calling(signature(), bias=np.zeros(7, np.float32))
    (row,) = check_kernels(model, library).rows
    assert "other constants" in row.reason


def test_a_kernel_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(1, monkeypatch)
    monkeypatch.setattr(process, "_TIMEOUT", 5.0)
    monkeypatch.setattr(process, "_TIMEOUT_PER_KERNEL", 0.0)
    fault = Fault(begin="while (n == 2) { static volatile int spins; ++spins; }")
    library = faulty_library(fault, tmp_path / "model.opt.ops.so")
    report = check_kernels(calling(signature(), signature("n", 5)), library)
    assert [row.verdict for row in report.rows] == ["failed", "not run"]
    assert report.rows[0].reason.endswith("the process did not finish within 7 seconds")
    assert report.rows[1].reason == "there was no time left"


def test_the_case_that_failed_is_named(tmp_path: Path) -> None:
    (row,) = check(FAULTS["batch 3"][0], tmp_path).rows
    assert row.reason.startswith("inputs [3, ")
    assert "values, 1 thread: output 0 off by" in row.reason


@pytest.mark.parametrize(
    ("what", "ended", "verdict"),
    [
        ("kernel", TimedOut(1.0), "failed"),
        ("judging", TimedOut(1.0), "not run"),
        ("judging", Ended(), "failed"),
    ],
)
def test_a_kernel_is_not_wrong_because_judging_it_takes_long(
    what: Literal["kernel", "judging"], ended: Ended, verdict: str, tmp_path: Path
) -> None:
    checks = process.Checks([], None, (), tmp_path, 1.0)
    checks._orders = [process.Order(SimpleNamespace(op_type="k"), "")]  # type: ignore[arg-type]
    row = checks._ended_at(0, Step(0, what, 0, "inputs [3]"), ended)
    assert row is not None
    assert row.verdict == verdict


@pytest.mark.parametrize("count", [1, 2, 128])
def test_indices_that_are_made_up_name_rows_of_their_table(count: int) -> None:
    found = in_rows(np.arange(-3, 40).reshape(1, -1), count)
    assert found.min() >= -count and found.max() < count
    assert (found < 0).any()

"""Compiling in processes: all results come back, and a crash or a hang costs one kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fused_model import bias_gelu, unary

from ortkit.isolation.processes import Server
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build import compiler
from ortkit.kernels.build.compiler import Compiled, Job, compile_all
from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.catalog import BACKENDS
from ortkit.refusal import Refused
from ortkit.targets.target import Target

TARGET = Target("cpu", "x86-64-v3")
FAILURES = {
    "crashes": "the compiler crashed with signal 11 (Segmentation fault): "
    "compiling prints this | first line | LLVM ERROR: cannot select",
    "exits": "the compiler ended with status 3: compiling prints this",
    "hangs": "the compiler did not end within 3 seconds: compiling prints this | scheduling",
    "fails": "a loop has no end | at line 7",
    "raises": "ZeroDivisionError: by zero",
}


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OddBackend", "DoesNotLoad", "CrashesWhenLoaded"):
        monkeypatch.setitem(BACKENDS, name, f"odd_backends:{name}")
    plain = compiler._Worker.compile

    def compile_in_time(worker: compiler._Worker, job: Job, seconds: float) -> Compiled:
        """Give a short time to what hangs only: other kernels may wait for a processor."""
        return plain(worker, job, 3.0 if job.signature.name == "hangs" else seconds)

    monkeypatch.setattr(compiler._Worker, "compile", compile_in_time)


@pytest.fixture
def fresh() -> None:
    """Let the next call start a process of its own; those of real toolchains stay."""
    for name, kind in list(compiler._servers.items()):
        if name.startswith("odd_backends:"):
            kind.end()
            del compiler._servers[name]


def jobs(folder: Path, names: list[str], backend: str = "OddBackend") -> list[Job]:
    made = []
    for number, name in enumerate(names):
        (folder / str(number)).mkdir()
        signature = bias_gelu("n", 8 + number, name=name)
        made.append(Job(backend, signature, TARGET, folder / str(number)))
    return made


def compiled(given: list[Job]) -> list[Kernel | Refused]:
    return compile_all(given, lambda done, total: None)


def process() -> Server:
    """Return the process that workers are forked from."""
    server = compiler._servers["odd_backends:OddBackend"].current
    assert server is not None
    return server


def test_every_kernel_comes_back_in_its_place(tmp_path: Path) -> None:
    given = jobs(tmp_path, ["fine"] * 11)
    counted: list[tuple[int, int]] = []
    found = compile_all(given, lambda done, total: counted.append((done, total)))
    assert counted == [(number, 11) for number in range(12)]
    for job, kernel in zip(given, found, strict=True):
        assert isinstance(kernel, Kernel), kernel
        assert kernel.key == job.signature.key
        assert kernel.artifact.read_text() == job.signature.key
        assert (kernel.backend, kernel.target) == ("OddBackend", TARGET)


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_costs_one_kernel_and_says_what_was_printed_last(
    how: str, tmp_path: Path
) -> None:
    found = compiled(jobs(tmp_path, [*["fine"] * 6, how, *["fine"] * 6]))
    assert [isinstance(item, Kernel) for item in found] == [*[True] * 6, False, *[True] * 6]
    assert found[6] == Refused(FAILURES[how])


def test_many_failures_cost_as_many_kernels(tmp_path: Path) -> None:
    names = [*FAILURES, "fine"] * 2
    found = compiled(jobs(tmp_path, names))
    expected = [Refused(FAILURES[name]) if name in FAILURES else None for name in names]
    assert [item if isinstance(item, Refused) else None for item in found] == expected


def test_the_process_is_kept_and_survives_its_workers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    compiled(jobs(tmp_path / "a", ["crashes", "hangs"]))
    first = process().pid
    assert isinstance(compiled(jobs(tmp_path / "b", ["fine"]))[0], Kernel)
    assert process().pid == first


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("DoesNotLoad", "the toolchain does not load: libLLVM.so: cannot open shared object file"),
        (
            "CrashesWhenLoaded",
            "the compiler does not start: no process can be started: the process that others are "
            "forked from crashed with signal 4 (SIGILL): illegal instruction in a constructor",
        ),
    ],
)
def test_a_broken_toolchain_is_a_reason_for_all(
    backend: str, said: str, fresh: None, tmp_path: Path
) -> None:
    assert compiled(jobs(tmp_path, ["fine"] * 3, backend)) == [Refused(said)] * 3


def test_a_process_that_ended_for_lack_of_work_is_replaced(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setattr(compiler, "_idle_seconds", 0.3)
    compiled(jobs(tmp_path / "a", ["fine"]))
    old = process()
    until(lambda: not old.is_usable)
    assert isinstance(compiled(jobs(tmp_path / "b", ["fine"]))[0], Kernel)
    assert process().pid != old.pid


def test_an_interrupt_ends_all_workers(fresh: None, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    compiled(jobs(tmp_path / "a", ["fine"]))
    server = process().pid

    def interrupt(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    (tmp_path / "b").mkdir()
    with pytest.raises(KeyboardInterrupt):
        compile_all(jobs(tmp_path / "b", ["fine", "hangs", *["fine"] * 7]), interrupt)
    until(lambda: not children(server))
    assert process().pid == server


def test_the_process_ends_with_its_caller(tmp_path: Path) -> None:
    """Also when the caller is killed in the middle of a batch."""
    (tmp_path / "0").mkdir()
    code = (
        "import sys, os; from pathlib import Path; from ortkit.kernels.catalog import BACKENDS; "
        "BACKENDS['odd'] = 'odd_backends:OddBackend'; import test_compiler as t; "
        f"from ortkit.kernels.build import compiler; jobs = t.jobs(Path({str(tmp_path / '0')!r}), "
        "['fine', 'hangs'], 'odd'); "
        "tell = lambda done, total: done and print(t.process().pid, flush=True); "
        "compiler.compile_all(jobs, tell)"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    assert caller.stdout is not None
    server = int(caller.stdout.readline())
    workers = children(server)
    assert workers
    caller.kill()
    caller.wait()
    until(lambda: not any(map(is_alive, [server, *workers])))


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def children(process: int) -> list[int]:
    """Return the living processes that a process has started."""
    return [pid for pid, (_, parent) in statuses().items() if parent == process and is_alive(pid)]


def is_alive(process: int) -> bool:
    return statuses().get(process, ("Z", 0))[0] != "Z"


def statuses() -> dict[int, tuple[str, int]]:
    """Return the state and the parent of each process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = state, int(parent)
    return found


def test_a_forked_process_does_not_use_its_parent_s(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    compiled(jobs(tmp_path / "a", ["fine"]))
    before = process().pid
    child = os.fork()
    if child == 0:
        made = compiled(jobs(tmp_path / "b", ["fine"]))
        is_right = isinstance(made[0], Kernel) and process().pid != before
        process().close()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process().pid == before
    assert process().is_usable


def test_a_library_is_built_of_what_compiles(
    build: Callable[..., LibraryBuild], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "tvm", "odd_backends:Fragile")
    bad = bias_gelu("n", 11, name="crashes")
    made = build(bad, unary("Exp"))
    assert made.library is not None
    assert made.library.ops == (unary("Exp").op_type,)
    ((signature, reason),) = made.refused
    assert signature is bad
    assert reason.startswith("tvm: the compiler crashed with signal 11 (Segmentation fault)")
    assert reason.endswith("LLVM ERROR: cannot select")

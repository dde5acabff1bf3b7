"""A job runs in a process of its own: how it ends is told, and nothing of it is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ortkit.errors import InternalError, UserError
from ortkit.isolation import processes
from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.isolation.processes import COMMON, Server, ServerKind
from ortkit.isolation.run import Imports, IsolatedObject, run_isolated, stream_isolated
from ortkit.verify.child import SettingsJob, run_settings

SECONDS = 60.0
#: What a job that never ends is given: the first that it starts in, on a busy machine a later one.
LIMITS = (1.0, 8.0, 60.0)
JOBS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ortkit.errors import UserError

loaded = []

def load(name):
    loaded.append(name)
    print('loading prints this')
    if name == 'broken':
        os.kill(os.getpid(), signal.SIGILL)

def about(name):
    return os.getpid(), os.getcwd(), os.environ[name], os.listdir('/proc/self/fd')

def modules(_):
    return [*sys.modules]

class Loads:
    def __init__(self, _):
        pass

    def what(self):
        return loaded, os.environ.get('TMPDIR', '')

def crash(number):
    print('on the way')
    sys.stdout.flush()
    os.kill(os.getpid(), number)

def fail(text):
    raise ValueError(text)

def refuse(text):
    raise UserError(text, where='here', fix='do that')

def leave(code):
    sys.exit(code)

def cannot_be_sent(_):
    return lambda: 0

def hang(file):
    other = subprocess.Popen(['sleep', '300'])
    Path(file).write_text(f'{os.getpid()} {other.pid}')
    time.sleep(300)

def wait(seconds):
    time.sleep(seconds)
    return seconds

def large(size):
    return bytes(size)

def count(number, tell):
    for each in range(abs(number)):
        tell(each)
    if number < 0:
        os.kill(os.getpid(), signal.SIGSEGV)

def count_slowly(seconds, tell):
    tell(os.getpid())
    time.sleep(seconds)

class Adder:
    def __init__(self, start):
        self.total = start

    def add(self, number, *, times=1):
        self.total += times * number
        return self.total

    def crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def refuse(self):
        raise UserError('no', where='here')

    def wait(self, seconds):
        time.sleep(seconds)
"""

both = pytest.mark.parametrize("imports", ["ortkit", "nothing"])


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a module of the module path."""
    (tmp_path / "isolated_jobs.py").write_text(JOBS, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("isolated_jobs")
    del sys.modules["isolated_jobs"]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: object, seconds: float = 20.0) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not (met := bool(condition())) and time.monotonic() < end:
        time.sleep(0.02)
    return met


@both
def test_it_has_the_callers_folder_and_environment(
    imports: Imports, jobs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("JOB", name)
        found = run_isolated(jobs.about, "JOB", timeout_seconds=SECONDS, imports=imports)
        assert not isinstance(found, Ended)
        process, folder, value, descriptors = found
        assert process != os.getpid()
        assert (Path(folder).name, value) == (name, name)
        assert len(descriptors) <= 5  # the standard ones, the channel, and that of the listing


@both
def test_variables_of_its_own(imports: Imports, jobs: ModuleType) -> None:
    found = run_isolated(
        jobs.about, "OWN", timeout_seconds=SECONDS, imports=imports, environment={"OWN": "yes"}
    )
    assert found[2] == "yes"
    assert "OWN" not in os.environ


def test_a_new_process_has_nothing_imported(jobs: ModuleType) -> None:
    found = run_isolated(jobs.modules, None, timeout_seconds=SECONDS, imports="nothing")
    ours = {name for name in found if name.startswith("ortkit.")}
    assert ours == {
        "ortkit.deferred_imports", "ortkit.errors", "ortkit.isolation", "ortkit.isolation.channel",
        "ortkit.isolation.child", "ortkit.isolation.ended", "ortkit.parent", "ortkit.version",
    }  # fmt: skip
    assert not {"numpy", "onnx", "onnxruntime"} & set(found)


@both
@pytest.mark.parametrize(
    ("name", "job", "ended", "said"),
    [
        ("crash", 11, Crashed(11, "on the way"), "crashed with signal 11 (Segmentation fault)"),
        ("fail", "no luck", Failed("ValueError: no luck"),
         "ended with status 1: ValueError: no luck"),
        ("leave", 0, Failed("no output", 0), "ended with status 0: no output"),
        ("leave", 3, Failed("no output", 3), "ended with status 3: no output"),
        ("leave", "out of luck", Failed("out of luck"), "ended with status 1: out of luck"),
    ],
)  # fmt: skip
def test_how_it_ended(
    name: str, job: object, ended: Ended, said: str, imports: Imports, jobs: ModuleType
) -> None:
    found = run_isolated(getattr(jobs, name), job, timeout_seconds=SECONDS, imports=imports)
    assert found == ended
    assert str(found) == said


def test_an_error_of_ours_comes_as_it_is(jobs: ModuleType) -> None:
    found = run_isolated(jobs.refuse, "not so", timeout_seconds=SECONDS)
    assert isinstance(found, Failed) and type(found.error) is UserError
    assert (found.error.problem, found.error.where, found.error.fix) == (
        "not so", "here", "do that",
    )  # fmt: skip
    assert found.problem == "here: not so; do that"


def test_what_cannot_be_sent_is_a_failure(jobs: ModuleType) -> None:
    found = run_isolated(jobs.cannot_be_sent, None, timeout_seconds=SECONDS)
    assert isinstance(found, Failed)
    assert "lambda" in found.problem


def test_large_results_come_whole(jobs: ModuleType) -> None:
    assert run_isolated(jobs.large, 10_000_000, timeout_seconds=SECONDS) == bytes(10_000_000)


def test_a_module_that_is_missing(jobs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "isolated_jobs.py").unlink()
    found = run_isolated(jobs.wait, 0, timeout_seconds=SECONDS)
    assert found == Failed("ModuleNotFoundError: No module named 'isolated_jobs'")


@both
def test_what_takes_too_long_is_killed_with_what_it_started(
    imports: Imports, jobs: ModuleType, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    for seconds in LIMITS:
        found = run_isolated(jobs.hang, str(told), timeout_seconds=seconds, imports=imports)
        assert found == TimedOut(seconds)
        assert str(found) == f"did not finish within {seconds:g} seconds"
        if told.is_file():
            break
    running = [int(each) for each in told.read_text().split()]
    assert until(lambda: not any(map(is_running, running)))
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0


def test_threads_run_jobs_side_by_side(jobs: ModuleType) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        started = [
            threads.submit(run_isolated, jobs.wait, 5, timeout_seconds=SECONDS) for _ in range(8)
        ]
        assert [each.result() for each in started] == [5] * 8
    assert time.monotonic() - began < 35


@both
def test_what_a_stream_told_before_a_crash_is_there(imports: Imports, jobs: ModuleType) -> None:
    whole = stream_isolated(jobs.count, 3, timeout_seconds=SECONDS, imports=imports)
    assert list(whole) == [0, 1, 2]
    broken = stream_isolated(jobs.count, -2, timeout_seconds=SECONDS, imports=imports)
    assert list(broken) == [0, 1, Crashed(11)]


def test_a_stream_has_one_time_for_all(jobs: ModuleType) -> None:
    for seconds in LIMITS:
        *told, end = stream_isolated(jobs.count_slowly, 300.0, timeout_seconds=seconds)
        assert end == TimedOut(seconds)
        if told:
            break
    (first,) = told
    assert until(lambda: not is_running(first))


def test_a_stream_that_nobody_reads_ends(jobs: ModuleType) -> None:
    stream = stream_isolated(jobs.count_slowly, 300.0, timeout_seconds=SECONDS)
    process = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert until(lambda: not is_running(process))


@both
def test_methods_of_an_object_that_stays(imports: Imports, jobs: ModuleType) -> None:
    adder = jobs.Adder
    with IsolatedObject(adder, 3, imports=imports) as held:
        assert held.call(SECONDS, adder.add, 4) == 7
        refused = held.call(SECONDS, adder.refuse)
        assert isinstance(refused, Failed) and isinstance(refused.error, UserError)
        assert held.is_alive
        assert held.call(SECONDS, adder.add, 2, times=10) == 27
        process = held.pid
        assert held.call(SECONDS, adder.crash) == Crashed(11)
        assert not held.is_alive
        assert held.call(SECONDS, adder.add, 1) == Crashed(11)
    with IsolatedObject(adder, 3, imports=imports) as held:
        process = held.pid
        assert is_running(process)
        assert held.call(0.5, adder.wait, 300) == TimedOut(0.5)
    assert until(lambda: not is_running(process))


def test_an_object_that_cannot_be_made(jobs: ModuleType) -> None:
    with IsolatedObject(jobs.fail, "no luck") as held:
        for _ in range(3):
            assert held.call(SECONDS, jobs.Adder.add, 1) == Failed("ValueError: no luck")
        assert held.is_alive


@both
def test_one_that_is_stopped_goes_on_when_it_is_called(imports: Imports, jobs: ModuleType) -> None:
    with IsolatedObject(jobs.Adder, 3, imports=imports) as held:
        held.stop()
        state = Path(f"/proc/{held.pid}/stat")
        assert until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        assert held.call(SECONDS, jobs.Adder.add, 1) == 4


def test_a_server_that_is_gone_is_replaced(jobs: ModuleType) -> None:
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0
    first = COMMON.current
    assert first is not None
    first._process.kill()
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0
    assert COMMON.current is not first


def test_a_server_without_work_ends(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "IDLE_SECONDS", 0.2)
    COMMON.end()
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0
    server = COMMON.current
    assert isinstance(server, Server)
    assert server._process.wait(20) == 0
    # Longer than without work.
    assert run_isolated(jobs.wait, 1, timeout_seconds=SECONDS) == 1
    COMMON.end()


@pytest.mark.parametrize(("telemetry_off", "is_loaded"), [("1", True), ("0", False)])
def test_onnxruntime_is_loaded_once_for_all_jobs(
    telemetry_off: str, is_loaded: bool, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With telemetry on it starts a thread, which a process that forks others must not have."""
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", telemetry_off)
    COMMON.end()
    assert "onnxruntime" not in run_isolated(jobs.modules, 0, timeout_seconds=SECONDS)
    nothing = SettingsJob((), (), 0, 0)
    assert list(stream_isolated(run_settings, nothing, timeout_seconds=SECONDS)) == []
    loaded = run_isolated(jobs.modules, 0, timeout_seconds=SECONDS)
    assert ("onnxruntime" in loaded) == is_loaded
    COMMON.end()


def test_a_server_of_its_own_has_loaded_something(jobs: ModuleType) -> None:
    kind = ServerKind(jobs.load, "toolchain", purpose="tool", idle_seconds=30.0)
    pids = []
    for _ in range(2):
        with IsolatedObject(jobs.Loads, None, server=kind) as held:
            loaded, folder = held.call(SECONDS, jobs.Loads.what)
            assert loaded == ["toolchain"]
            assert Path(folder).is_dir()
            pids.append(kind.current and kind.current.pid)
    assert pids[0] == pids[1]
    server = kind.current
    assert server is not None and server.is_usable
    kind.end()
    assert not server.is_usable
    assert not Path(folder).exists()


def test_a_server_that_crashes_when_it_loads_is_an_error(jobs: ModuleType) -> None:
    kind = ServerKind(jobs.load, "broken")
    with pytest.raises(InternalError, match=r"crashed with signal 4 \(SIGILL\)"):
        IsolatedObject(jobs.Loads, None, server=kind)


def test_threads_that_find_the_server_gone_start_one_other(jobs: ModuleType) -> None:
    """None of them ends the server that another has started."""
    for _ in range(3):
        assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0
        assert COMMON.current is not None
        os.kill(COMMON.current.pid, signal.SIGKILL)
        with ThreadPoolExecutor(8) as threads:
            started = [
                threads.submit(run_isolated, jobs.wait, 0.2, timeout_seconds=SECONDS)
                for _ in range(8)
            ]
            assert [each.result() for each in started] == [0.2] * 8


def test_a_forked_process_has_a_server_of_its_own(jobs: ModuleType, tmp_path: Path) -> None:
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0
    told = tmp_path / "told"
    for seconds in LIMITS:
        process = multiprocessing.get_context("fork").Process(
            target=run_isolated, args=(jobs.hang, str(told)), kwargs={"timeout_seconds": seconds}
        )
        process.start()
        process.join(seconds + SECONDS)
        assert process.exitcode == 0
        if told.is_file():
            break
    assert told.is_file()
    assert run_isolated(jobs.wait, 0, timeout_seconds=SECONDS) == 0


@both
def test_nothing_outlives_a_caller_that_is_killed(imports: Imports, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import isolated_jobs; from ortkit.isolation.run import run_isolated\n"
        f"run_isolated(isolated_jobs.hang, {str(told)!r}, timeout_seconds=300, "
        f"imports={imports!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        assert until(lambda: told.is_file() and told.read_text())
        caller.send_signal(signal.SIGKILL)
    job, _ = map(int, told.read_text().split())
    assert until(lambda: not is_running(job))

"""A job runs in a process of its own: how it ends is told, and nothing of it is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ortkit.isolation import run
from ortkit.isolation.run import run_isolated

SECONDS = 60.0


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module named `job` into the module path."""
    (tmp_path / "job.py").write_text(
        "import json, os, signal, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "def main(what, *rest):\n"
        "    globals()[what](*rest)\n"
        "def tell(file):\n"
        "    Path(file).write_text(json.dumps([os.getpid(), os.getcwd(), os.environ['JOB'],"
        " os.listdir('/proc/self/fd')]))\n"
        "def crash(): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def fail(): raise ValueError('no such luck')\n"
        "def leave(code): sys.exit(int(code))\n"
        "def say(): sys.exit('out of luck')\n"
        "def hang(file):\n"
        "    other = subprocess.Popen(['sleep', '300'])\n"
        "    Path(file).write_text(json.dumps([os.getpid(), other.pid]))\n"
        "    time.sleep(300)\n"
        "def wait(seconds): time.sleep(float(seconds))\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JOB", "mine")


def start(*arguments: str, log: Path, seconds: float = SECONDS) -> str:
    return run_isolated("job", *arguments, log=log, timeout_seconds=seconds)


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


def test_it_has_the_callers_folder_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, told = tmp_path / "log.txt", tmp_path / "told.json"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("JOB", name)
        assert start("tell", str(told), log=log) == ""
        process, folder, value, descriptors = json.loads(told.read_text())
        assert process != os.getpid()
        assert (Path(folder).name, value) == (name, name)
        assert len(descriptors) <= 4  # the standard ones, and that of the listing


@pytest.mark.parametrize(
    ("arguments", "ended"),
    [
        (["crash"], "crashed with signal 11 (Segmentation fault)"),
        (["fail"], "ended with status 1: ValueError: no such luck"),
        (["leave", "0"], ""),
        (["leave", "3"], "ended with status 3: no output"),
        (["say"], "ended with status 1: out of luck"),
    ],
)
def test_how_it_ended(arguments: list[str], ended: str, tmp_path: Path) -> None:
    assert start(*arguments, log=tmp_path / "log.txt") == ended


def test_a_module_that_is_missing(tmp_path: Path) -> None:
    found = run_isolated("no_such", log=tmp_path / "log.txt", timeout_seconds=SECONDS)
    assert found == "ended with status 1: ModuleNotFoundError: No module named 'no_such'"


def test_what_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    assert start("hang", str(told), log=tmp_path / "log.txt", seconds=3.0) == (
        "did not finish within 3 seconds"
    )
    processes = json.loads(told.read_text())
    assert until(lambda: not any(map(is_running, processes)))
    assert start("leave", "0", log=tmp_path / "log.txt") == ""


def test_threads_run_jobs_side_by_side(tmp_path: Path) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(start, "wait", "5", log=tmp_path / f"{number}.txt")
            for number in range(8)
        ]
        assert [each.result() for each in jobs] == [""] * 8
    assert time.monotonic() - began < 35


def test_a_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert start("leave", "0", log=log) == ""
    first = run._current
    assert first is not None
    first._process.kill()
    assert start("leave", "0", log=log) == ""
    assert run._current is not first


def test_a_server_without_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(run, "_current", None)
    assert start("leave", "0", log=tmp_path / "log.txt") == ""
    server = run._current
    assert server is not None
    assert server._process.wait(20) == 0
    assert start("wait", "1", log=tmp_path / "log.txt") == ""  # longer than without work


def test_a_forked_process_has_a_server_of_its_own(tmp_path: Path) -> None:
    assert start("leave", "0", log=tmp_path / "log.txt") == ""
    process = multiprocessing.get_context("fork").Process(
        target=start, args=("tell", str(tmp_path / "told.json")),
        kwargs={"log": tmp_path / "forked.txt"},
    )  # fmt: skip
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert (tmp_path / "told.json").is_file()
    assert start("leave", "0", log=tmp_path / "log.txt") == ""


def test_nothing_outlives_a_caller_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    code = (
        "import sys; from pathlib import Path; from ortkit.isolation.run import run_isolated\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"run_isolated('job', 'hang', {str(told)!r}, log=Path({str(tmp_path / 'log.txt')!r}),"
        " timeout_seconds=300)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        assert until(lambda: told.is_file() and told.read_text())
        caller.send_signal(signal.SIGKILL)
    assert until(lambda: not any(map(is_running, json.loads(told.read_text()))))

"""A crash of native code is one line; signals reach the process that does the work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: A shell's background jobs ignore SIGINT, and so do their children until they say otherwise.
_START = (
    "import os, signal, sys, time; from ortkit.cli.supervise import supervised; "
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
)


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _START + code],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSEGV, "crashed with signal 11 (Segmentation fault)"),
        (signal.SIGABRT, "crashed with signal 6 (Aborted)"),
        (signal.SIGKILL, "out of memory"),
    ],
)
def test_a_crash_is_one_line_and_code_2(number: int, said: str) -> None:
    done = child(f"sys.exit(supervised(lambda: os.kill(os.getpid(), {int(number)})))")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("code", [0, 1, 2, 3, 70])
def test_the_exit_code_is_the_childs(code: int) -> None:
    assert child(f"sys.exit(supervised(lambda: {code}))").returncode == code


def test_an_interrupt_reaches_the_command(tmp_path: Path) -> None:
    code = (
        "import pathlib\n"
        "def work():\n"
        "    try:\n"
        f"        pathlib.Path({str(tmp_path / 'up')!r}).write_text('1')\n"
        "        time.sleep(300)\n"
        "    except KeyboardInterrupt: return 130\n"
        "sys.exit(supervised(work))"
    )
    with subprocess.Popen([sys.executable, "-c", _START + code]) as process:
        _until(tmp_path / "up")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


_ENDED = "ortkit: the command was ended by signal 15 (Terminated); no file is half written\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_ends_with_the_process_that_watches_it(number: int, tmp_path: Path) -> None:
    code = (
        "import pathlib\n"
        "def work():\n"
        f"    pathlib.Path({str(tmp_path / 'up')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(300)\n"
        "sys.exit(supervised(work))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", _START + code], stderr=subprocess.PIPE, text=True
    ) as process:
        _until(tmp_path / "up")
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stderr is not None
        said = "" if number == signal.SIGKILL else _ENDED
        assert process.stderr.read() == said
    worker = int((tmp_path / "up").read_text())
    _until_gone(worker)


def _until(path: Path) -> None:
    for _ in range(1200):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError("it did not start")


def _until_gone(process: int) -> None:
    for _ in range(600):
        stat = Path(f"/proc/{process}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.1)
    raise AssertionError("it goes on")


def test_a_caller_that_ignores_the_end_of_children(tmp_path: Path) -> None:
    """An ignored signal stays ignored in programs that are started."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'ortkit', '--version'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("ortkit ")

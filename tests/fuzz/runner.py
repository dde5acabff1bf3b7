"""Runs commands of ortkit on malformed models, one process each, forked from one that is warm.

`python -m tests.fuzz.runner FOLDER FIRST COUNT STEP` writes one line of JSON a case.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnxruntime

from ortkit.cli.main import run
from tests.fuzz.cases import write_case
from tests.fuzz.seeds import seeds

SECONDS = 60
_MEMORY = 4 << 30  # bytes that a process may allocate: a fault must not take the machine's
_CODES = (0, 1, 2, 3)
_SPEECHLESS = ("Traceback", "internal error", "This is a bug")


def judge_case(folder: Path, bases: Sequence[onnx.ModelProto], number: int) -> list[str]:
    """Return what is wrong with how the commands took one malformed model."""
    case = folder / str(number)
    model = write_case(case / "in", bases, number)
    base = case / "base.onnx"
    base.write_bytes(bases[number % 10].SerializeToString())
    (case / "out").mkdir()
    output = case / "out" / "m.opt.onnx"
    pair = (str(model), str(model)) if number % 2 else (str(base), str(model))
    faults = judge_commands(
        case,
        [
            ("inspect", str(model)),
            ("run", str(model), "--threads", "1"),
            ("optimize", str(model), "-o", str(output), "--kernels", "off"),
            ("verify", *pair),
        ],
    )
    if output.exists() and _loads(model) and not _loads(output):
        faults.append("optimize: ONNX Runtime loads the model and not the result")
    written = sorted(path.name for path in (case / "out").iterdir())
    if written and _code(case, "optimize") == 2:
        faults.append(f"optimize: code 2, and {written} is written")
    if not faults:
        shutil.rmtree(case)
    return [f"case {number}: {fault}" for fault in faults]


def judge_commands(case: Path, commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands in a row in one process, and behind a crash in another; return the faults."""
    (case / "tmp").mkdir(exist_ok=True)
    faults: list[str] = []
    waiting = list(commands)
    while waiting:

        def work(row: Sequence[Sequence[str]] = tuple(waiting)) -> int:
            os.environ["TMPDIR"] = tempfile.tempdir = str(case / "tmp")
            for command, *arguments in row:
                _redirect(case / f"{command}.err")
                started = time.monotonic()
                code = run([command, *arguments])
                sys.stderr.flush()
                taken = time.monotonic() - started
                (case / f"{command}.code").write_text(f"{code} {taken}", encoding="ascii")
            gc.collect()  # temporaries in cycles: a process that exits as usual removes them, too
            return 0

        status = _forked(work, case / "runner.err", SECONDS * len(waiting))
        while waiting and _code(case, waiting[0][0]) is not None:
            faults += _faults_of(case, waiting.pop(0)[0])
        if waiting:  # it did not come to an end
            command = waiting.pop(0)[0]
            if not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL:
                faults.append(f"{command}: hangs, or ends the process")
            # A crash is what the command line reports itself, by ortkit/cli/supervise.py.
            (case / f"{command}.code").write_text("2 0", encoding="ascii")
    if left := sorted(path.name for path in (case / "tmp").iterdir()):
        faults.append(f"temporary files are left: {left}")
    return faults


def _code(case: Path, command: str) -> int | None:
    path = case / f"{command}.code"
    return int(path.read_text(encoding="ascii").split()[0]) if path.exists() else None


def _faults_of(case: Path, command: str) -> list[str]:
    text, taken = (case / f"{command}.code").read_text(encoding="ascii").split()
    said = (case / f"{command}.err").read_text(encoding="utf-8", errors="replace")
    code, lines = int(text), said.splitlines()
    faults = [f"{command}: {word}: {said[-300:]}" for word in _SPEECHLESS if word in said][:1]
    if float(taken) > SECONDS:
        faults.append(f"{command}: takes {taken} s")
    if code not in _CODES:
        faults.append(f"{command}: code {code}: {said[-300:]}")
    if code == 2 and not (lines and lines[-1].startswith("ortkit: ")):
        faults.append(f"{command}: code 2, and it says {lines[-1:]}")
    return faults


def _redirect(error: Path) -> None:
    """Write what is said from now on into a file."""
    err = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(err, 2)
    os.close(err)


def _loads(model: Path) -> bool:
    def work() -> int:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001  whatever it is, it does not load
            return 1
        return 0

    status = _forked(work, Path(os.devnull), SECONDS)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def _forked(work: Callable[[], int], error: Path, seconds: float) -> int:
    """Do something in a process of its own, ended when its time is over; return its status."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            out = os.open(os.devnull, os.O_RDWR)
            err = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    pause = 0.001
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > until:
            os.killpg(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1]
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _warm_up(folder: Path, model: onnx.ModelProto) -> None:
    """Import what the commands import on a good model, but without starting any thread here."""
    path, names = folder / "good.onnx", folder / "modules.json"
    path.write_bytes(model.SerializeToString())

    def work() -> int:
        for command in ("inspect", "run", "optimize"):
            run([command, str(path), *(["--kernels", "off"] if command == "optimize" else [])])
        run(["verify", str(path), str(path)])
        names.write_text(json.dumps(list(sys.modules)), encoding="utf-8")
        return 0

    _forked(work, Path(os.devnull), 600)
    for name in json.loads(names.read_text(encoding="utf-8")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # so that the collector writes to no page that is shared


def main(folder: str, first: str, count: str, step: str) -> None:
    """Judge the cases FIRST, FIRST + STEP, ...; print the faults of each as a line of JSON."""
    bases = seeds()
    Path(folder).mkdir(parents=True, exist_ok=True)
    _warm_up(Path(folder), bases[0])
    for number in range(int(first), int(first) + int(count) * int(step), int(step)):
        print(json.dumps(judge_case(Path(folder), bases, number)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

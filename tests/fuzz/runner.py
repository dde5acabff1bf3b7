"""Runs commands of ortkit on malformed models, one process each, forked from one that is warm.

`python -m tests.fuzz.runner FOLDER FIRST COUNT STEP [--whole]` writes one line of JSON a case.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnxruntime

from ortkit.cli.main import run
from ortkit.verify import child, sessions
from tests.fuzz.cases import write_case
from tests.fuzz.seeds import seeds

SECONDS = 60
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
    faults = [
        *_judged(case, "inspect", str(model)),
        *_judged(case, "run", str(model), "--threads", "1"),
        *_judged(case, "optimize", str(model), "-o", str(output), "--kernels", "off"),
    ]
    if output.exists() and _loads(model) and not _loads(output):
        faults.append("optimize: ONNX Runtime loads the model and not the result")
    written = sorted(path.name for path in (case / "out").iterdir())
    if written and (case / "optimize.code").read_text() == "2":
        faults.append(f"optimize: code 2, and {written} is written")
    pair = (str(model), str(model)) if number % 2 else (str(base), str(model))
    faults += _judged(case, "verify", *pair)
    if not faults:
        shutil.rmtree(case)
    return [f"case {number}: {fault}" for fault in faults]


def _judged(case: Path, command: str, *arguments: str) -> list[str]:
    temporary = case / "tmp"
    temporary.mkdir(exist_ok=True)
    error = case / f"{command}.err"

    def work() -> int:
        os.environ["TMPDIR"] = str(temporary)
        return run([command, *arguments])

    started = time.monotonic()
    status = _forked(work, error)
    taken = time.monotonic() - started
    said = error.read_text(encoding="utf-8", errors="replace")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and taken >= SECONDS:
            return [f"{command}: hangs"]
        # The command line reports a crash itself, where it forks: see ortkit/cli/supervise.py.
        (case / f"{command}.code").write_text("2")
        return []
    code = os.WEXITSTATUS(status)
    (case / f"{command}.code").write_text(str(code))
    faults = [f"{command}: {word}: {said[-300:]}" for word in _SPEECHLESS if word in said][:1]
    if code not in _CODES:
        faults.append(f"{command}: code {code}: {said[-300:]}")
    lines = said.splitlines()
    if code == 2 and command != "verify" and not (lines and lines[-1].startswith("ortkit: ")):
        faults.append(f"{command}: code 2, and it says {lines[-1:]}")
    if left := sorted(path.name for path in temporary.iterdir()):
        faults.append(f"{command}: left {left}")
    return faults


def _loads(model: Path) -> bool:
    def work() -> int:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001  whatever it is, it does not load
            return 1
        return 0

    status = _forked(work, Path(os.devnull))
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def _forked(work: Callable[[], int], error: Path, seconds: float = SECONDS) -> int:
    """Do something in a process of its own, ended when its time is over; return its status."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.setsid()
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


def _child_in_a_fork(job: Path, log: Path, timeout_seconds: float) -> str:
    """Run the sessions of a verification as `sessions._run_child` does, in a warm process."""

    def work() -> int:
        child.main(str(job))
        return 0

    status = _forked(work, log, timeout_seconds)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return f"did not finish within {timeout_seconds:g} seconds"
        return f"crashed with signal {number}"
    code = os.WEXITSTATUS(status)
    return f"ended with status {code}" if code else ""


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

    _forked(work, Path(os.devnull))
    for name in json.loads(names.read_text(encoding="utf-8")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # so that the collector writes to no page that is shared


def main(folder: str, first: str, count: str, step: str, *flags: str) -> None:
    """Judge the cases FIRST, FIRST + STEP, ...; print the faults of each as a line of JSON."""
    if "--whole" not in flags:
        sessions._run_child = _child_in_a_fork
    bases = seeds()
    Path(folder).mkdir(parents=True, exist_ok=True)
    _warm_up(Path(folder), bases[0])
    for number in range(int(first), int(first) + int(count) * int(step), int(step)):
        print(json.dumps(judge_case(Path(folder), bases, number)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

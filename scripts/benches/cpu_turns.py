"""Variants in processes that live side by side, each run in its turn and idle otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ortkit.errors import ModelError
from scripts.benches import cpu_worker

#: A turn is one run that is not counted and then as many as fill so much time, three at most.
_TURN_SECONDS = 0.08
_MOST_RUNS = 3
#: From so long on a run needs no other before it: it evicts its own beginnings.
_LONG_SECONDS = 0.25


@dataclass(frozen=True)
class Engine:
    """One variant: a model, and the Python and engine that run it."""

    python: Path
    engine: str
    model: Path
    library: Path | None = None
    clock: str = "wall"
    """Or `processor`, the time of all threads of a run."""


class Worker:
    """A process that holds one variant."""

    def __init__(self, engine: Engine, feeds: Path, threads: int, job: Path) -> None:
        content: cpu_worker.Job = {
            "engine": engine.engine,
            "model": str(engine.model),
            "libraries": [] if engine.library is None else [str(engine.library)],
            "feeds": str(feeds),
            "threads": threads,
            "clock": engine.clock,
        }
        job.write_text(json.dumps(content), encoding="utf-8")
        self._errors = job.with_suffix(".err").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(engine.python), "-P", cpu_worker.__file__, str(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def wait_until_ready(self) -> None:
        """Return when the model is loaded and has run once.

        Raises:
            ModelError: It did not load; the message has the last line of the error.
        """
        self._answer()

    def seconds(self, runs: int) -> list[float]:
        """Run a number of times."""
        self._ask({"runs": runs})
        found = self._answer()["seconds"]
        assert isinstance(found, list)
        return found

    def save(self, path: Path) -> None:
        """Write the outputs of one run, as npz."""
        self._ask({"save": str(path)})
        self._answer()

    def _ask(self, question: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it ended with is read next

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2][:200]
            raise ModelError(last or f"the process ended with {self._process.returncode}")
        found: dict[str, object] = json.loads(line)
        return found


Times = dict[str, list[list[float]]]


def take_turns(
    engines: Mapping[str, Engine],
    feeds: Path,
    folder: Path,
    *,
    threads: int,
    processes: int,
    turns: int,
) -> tuple[Times, dict[str, str]]:
    """Time variants interleaved, A B C ... C B A.

    Args:
        engines: By name. One that does not load is left out.
        feeds: Inputs of all, as npz.
        folder: For files of the processes, and for `NAME.npz`, what each variant computes.
        threads: Of each variant.
        processes: How many times every process is started: where memory lies is decided once.
        turns: Of each variant in each process.

    Returns:
        By name and process the median seconds of each turn; and why variants are left out.
    """
    times: Times = {name: [] for name in engines}
    problems: dict[str, str] = {}
    for number in range(processes):
        living = {n: e for n, e in engines.items() if n not in problems}
        workers: dict[str, Worker] = {}
        try:
            for name, engine in living.items():
                job = folder / f"{len(workers)}.json"
                worker = Worker(engine, feeds, threads, job)
                workers[name] = worker
                # One after the other: loading uses all cores and all memory there is to use.
                try:
                    worker.wait_until_ready()
                    if number == 0:
                        worker.save(folder / f"{name}.npz")
                except ModelError as error:
                    problems[name] = str(error)
                    workers.pop(name).__exit__(None, None, None)
            for name, found in _process(workers, turns).items():
                times[name].append(found)
        finally:
            for worker in workers.values():
                worker.__exit__(None, None, None)
    return {name: found for name, found in times.items() if name not in problems}, problems


def _process(workers: Mapping[str, Worker], turns: int) -> dict[str, list[float]]:
    """Run the turns of one set of processes."""
    usual = {name: min(worker.seconds(2)) for name, worker in workers.items()}
    found: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        order = list(workers) if turn % 2 == 0 else list(reversed(workers))
        for name in order:
            runs = max(1, min(_MOST_RUNS, int(_TURN_SECONDS / usual[name])))
            uncounted = usual[name] < _LONG_SECONDS
            elapsed = workers[name].seconds(runs + uncounted)
            found[name].append(median(elapsed[uncounted:]))
    return found


def output_error(reference: Path, other: Path) -> float:
    """Return the largest error of any output, as a part of that output's largest magnitude.

    Outputs are compared in their order. Infinite if one is missing or has another shape.
    """
    with np.load(reference) as one, np.load(other) as two:
        if len(one.files) != len(two.files):
            return float("inf")
        pairs = [(one[a], two[b]) for a, b in zip(one.files, two.files, strict=True)]
    return max((_error(a, b) for a, b in pairs), default=0.0)


def _error(wanted: np.ndarray, found: np.ndarray) -> float:
    if wanted.shape != found.shape:
        return float("inf")
    wide = wanted.astype(np.float64), found.astype(np.float64)
    is_number = np.isfinite(wide[0])
    if not np.array_equal(is_number, np.isfinite(wide[1])):
        return float("inf")
    scale = np.abs(wide[0][is_number]).max(initial=0.0) or 1.0
    return float(np.abs(wide[0] - wide[1])[is_number].max(initial=0.0) / scale)


def this_python() -> Path:
    """Return the running interpreter."""
    return Path(sys.executable)

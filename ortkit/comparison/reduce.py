"""Making a model smaller while a check of the user's holds: delta debugging on its graph."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import onnx

from ortkit.comparison.reduce_check import Check
from ortkit.comparison.reduce_state import Recorder, State, start
from ortkit.comparison.reduce_steps import RESIZES, STEPS, Candidate
from ortkit.errors import ModelError, UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import EXTERNAL_ABOVE_BYTES, save_model
from ortkit.temporary import TemporaryFolder
from ortkit.verify.inputs.feeds import Feeds

SCHEMA = "ortkit.reduce/1"

Stopped = Literal["", "time", "checks", "interrupted"]


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    seconds: float = 600.0
    checks: int = 1000
    check_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UserError: One is negative, or no number.
        """
        limits = (("seconds", self.seconds), ("checks", self.checks))
        for name, value in (*limits, ("check-seconds", self.check_seconds)):
            if not value >= 0:
                raise UserError(f"cannot be {value:g}", where=f"--{name}", fix="give 0 or more")


@dataclass(frozen=True)
class Taken:
    """One change after which the check still held."""

    step: str
    nodes: int
    bytes: int
    """Of the initializers."""


@dataclass(frozen=True)
class Reduction:
    """What is left of a model."""

    source: str
    output: str
    nodes_before: int
    nodes_after: int
    bytes_before: int
    """Of the initializers."""
    bytes_after: int
    taken: tuple[Taken, ...]
    checks: int
    stopped: Stopped
    """Why nothing more was tried; empty: nothing more could be left out."""
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit reduce --json`."""
        return {"schema": SCHEMA, **asdict(self), "seconds": round(self.seconds, 3)}


def _silent(stage: str) -> None:
    """Ignore progress."""


def reduce_model(
    model: Path,
    command: str,
    output: Path,
    *,
    feeds: Feeds | None = None,
    jobs: int = 1,
    limits: Limits = Limits(),
    progress: Callable[[str], None] = _silent,
) -> Reduction:
    """Make a model smaller while a command says that it is still interesting.

    Every model that is tried is valid. Whenever the check holds for a smaller one, it is
    written to `output`, whole: an interruption loses nothing.

    Args:
        model: The model to begin with.
        command: For a shell; `{}` stands for the model's path, which else comes last. Exit code
            0: still interesting.
        output: Where the smallest model is written.
        feeds: Inputs on which the model's values are computed, to stand in for nodes that are
            left out; None: only inputs stand in.
        jobs: Checks that run at the same time.
        limits: When to stop.
        progress: Called with what is being done.

    Raises:
        ModelError: It is no valid model.
        UserError: The check does not hold for the model as it came, or `output` cannot be
            written.
    """
    if jobs < 1:
        raise UserError(f"{jobs} checks at a time", where="--jobs", fix="give at least 1")
    with TemporaryFolder("reduce") as folder:
        path = start(model, folder)
        check = Check(command, limits.check_seconds, jobs)
        state = State.of(path)
        if feeds is not None:
            state.recorder = Recorder(path, feeds, frozenset(state.cutter.makers))
        reducer = _Reducer(state, check, output, limits, progress)
        stopped: Stopped = ""
        before = reducer.state
        try:
            reducer.begin(str(model))
            if state.recorder is not None:
                state.recorder.record(state.small_integers())
            stopped = reducer.run()
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            check.stop()
        after = reducer.state
        return Reduction(
            str(model),
            str(output),
            before.nodes,
            after.nodes,
            before.bytes,
            after.bytes,
            tuple(reducer.taken),
            check.count,
            stopped,
            time.monotonic() - reducer.started,
        )


@dataclass
class _Reducer:
    state: State
    check: Check
    output: Path
    limits: Limits
    progress: Callable[[str], None]
    taken: list[Taken] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    tried: set[bytes] = field(default_factory=set)
    written: int = 0

    def begin(self, name: str) -> None:
        """Make sure that there is something to reduce, and write it down."""
        self.progress("check the model as it is")
        status = self.check.status(self.state.path)
        if status != 0:
            how = (
                f"does not end within {self.limits.check_seconds:g} seconds"
                if status is None
                else f"ends with {status}"
            )
            raise UserError(
                f"the check {how} on the model as it is",
                where=name,
                fix="it must end with 0 for a model that is interesting: "
                + self.check.line(Path(name)),
            )
        self._save()

    def run(self) -> Stopped:
        """Repeat all steps until none of them finds anything."""
        while True:
            before = len(self.taken)
            for name, _ in STEPS:
                if stopped := self._repeat(name):
                    return stopped
            if len(self.taken) == before:
                return ""

    def _repeat(self, name: str) -> Stopped:
        """Take candidates of one step as long as there are any that hold."""
        step = dict(STEPS)[name]
        is_new = True
        while is_new:
            is_new = False
            for candidates in step(self.state):
                if stopped := self._is_over():
                    return stopped
                nodes, size = self.state.nodes, self.state.bytes
                self.progress(f"{name} ({nodes} nodes, {size:,} bytes of weights)")
                if self._take(name, candidates):
                    is_new = True
                    break
        return self._is_over()

    def _is_over(self) -> Stopped:
        if time.monotonic() - self.started > self.limits.seconds:
            return "time"
        return "checks" if self.check.count >= self.limits.checks else ""

    def _take(self, name: str, candidates: list[Candidate]) -> bool:
        """Go on with the first candidate that holds; False if none does."""
        paths: dict[int, Path] = {}

        def writer(number: int, make: Candidate) -> Callable[[], Path | None]:
            def write() -> Path | None:
                path = None if self._is_over() else self._written(make())
                if path is not None:
                    paths[number] = path
                return path

            return write

        chosen = self.check.first([writer(n, make) for n, make in enumerate(candidates)])
        for number, path in paths.items():
            if number != chosen:
                path.unlink()
        if chosen is None:
            return False
        # Where sizes change, what was computed before is of no use any more.
        recorder = None if name == RESIZES else self.state.recorder
        self.state = State.of(paths[chosen], recorder)
        self.taken.append(Taken(name, self.state.nodes, self.state.bytes))
        self._save()
        return True

    def _written(self, made: onnx.ModelProto | None) -> Path | None:
        """Write a candidate, if it is a valid model that was not tried yet."""
        if made is None:
            return None
        data = made.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).digest()
        if digest in self.tried:
            return None
        self.tried.add(digest)
        self.written += 1
        path = self.state.path.with_name(f"candidate{self.written}.onnx")
        path.write_bytes(data)
        try:
            open_model(path)
        except ModelError:
            path.unlink()
            return None
        return path

    def _save(self) -> None:
        is_large = self.state.bytes > EXTERNAL_ABOVE_BYTES
        save_model(open_model(self.state.path), self.output, external_data=is_large)

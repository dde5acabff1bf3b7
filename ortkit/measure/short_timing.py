"""A short timing of the original and the result, interleaved: the number of a headline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import median

from ortkit.errors import OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.measure.inputs import shapes_in, written_inputs
from ortkit.runtime.intervals import FEWEST_ROUNDS, Speedup, speedup_of
from ortkit.runtime.machine import LoadWatch, MachineLoad
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.rounds import interleaved
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.timing.variants import Variant
from ortkit.runtime.workers.worker import Worker, WorkerError
from ortkit.text import plural

#: For all of it: the processes, their sessions, and the runs that count.
SECONDS = 1.5
#: A part of what came before it may be taken instead, if that is more, up to a bound.
_PART, _MOST_SECONDS = 0.15, 5.0
#: That part of the time may be added where a process had to wait for a processor.
_GRACE = 0.5
#: Weights in a session of the original and one of the result: 0.25 s for 100 MB (Xeon, 2026-11).
_LOADED_BYTES_A_SECOND = 200e6
#: Processes of each model, one after the other. On a busy machine one process may take 1.7 times
#: as long as another of the same model, in all of its runs (Xeon, 2 cores, load 6, 2026-11).
_PAIRS = 2
_LEAST_ROUNDS = 3
_MOST_INPUT_SETS = 4
_TURN_SECONDS = 0.02
_MOST_ROUNDS = 200
#: By pairs of processes, what those of one model differ by on a machine that does nothing else.
_LEAST_NOISE = (0.1, 0.05)
#: Processors that are left beside other work, at least.
_LEAST_LEFT = 0.1
#: Part of the processors that other work may use before the machine counts as busy.
_DISTURBED = 0.25


@dataclass(frozen=True)
class ShortTiming:
    """What a run takes before and after, or why that is not known."""

    problem: str = ""
    """Why it was not timed; empty if it was."""
    before_ms: float | None = None
    """Median of a run of the original, in ms."""
    after_ms: float | None = None
    """Median of a run of the result, in ms."""
    speedup: Speedup | None = None
    """How many times as fast the result is, over rounds in common."""
    rounds: int = 0
    """How many turns each of the two had."""
    threads: int = 0
    """Of a session; 0: ONNX Runtime decides."""
    cores: int = 0
    """Processors that this process may use."""
    others_cores: float | None = None
    """Processors that other work used meanwhile, on average; None: not known."""
    noise: float = 0.0
    """Ratios up to 1 + noise are no difference."""
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of each input."""

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval, and why it says nothing where that is so."""
        found = self.speedup
        if found is None:
            return ""
        interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
        text = f"{found.ratio:.2f} times as fast{interval}"
        if found.direction in ("faster", "slower"):
            return text
        others = self.others_cores or 0.0
        because = f", as other work used {others:.1f} of {plural(self.cores, 'core')}"
        return f"{text}, within the noise here{because if others >= 0.1 else ''}"

    @property
    def is_disturbed(self) -> bool:
        """Whether other work took so much of the machine that most ratios say nothing."""
        return (self.others_cores or 0.0) >= _DISTURBED * self.cores

    @property
    def where(self) -> str:
        """What the sessions had: `2 threads` if that was asked for, else `2 cores`."""
        return plural(self.threads, "thread") if self.threads else plural(self.cores, "core")

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class ShortRequest:
    """What is timed, and on what."""

    original: Path
    result: Variant
    folder: Path
    """For what is written."""
    inputs: Path | None = None
    """The user's, in place of made-up ones."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    """Numbers for named sizes."""
    threads: int = 0
    """Of a session; 0: ONNX Runtime decides."""


def time_shortly(request: ShortRequest, seconds: float = SECONDS) -> ShortTiming:
    """Time the original and the result, each in processes of its own.

    What fails, or takes much longer than `seconds`, is not timed, with the reason.
    """
    started = time.perf_counter()
    deadline = _Deadline(started + seconds, started + (1 + _GRACE) * seconds)
    try:
        return _timed(request, deadline)
    except WorkerError as error:
        late = "to load and to run both models takes too long"
        return ShortTiming(late if deadline.is_over else str(error))
    except (OrtkitError, OSError, MemoryError, _TooLongError) as error:
        return ShortTiming(" ".join(str(error).split()))


def seconds_after(elapsed: float) -> float:
    """Return the time for a short timing after something that took `elapsed` seconds."""
    return max(SECONDS, min(_MOST_SECONDS, _PART * elapsed))


def too_large(weight_bytes: int, seconds: float) -> str:
    """Say that there is no time to load these weights; empty if there is."""
    if weight_bytes / _LOADED_BYTES_A_SECOND <= seconds:
        return ""
    return f"weights of {weight_bytes / 1e6:,.0f} MB take long to load"


class _TooLongError(Exception):
    """What takes longer than there is time."""


@dataclass(frozen=True)
class _Deadline:
    """When to end, as `time.perf_counter` counts."""

    at: float
    """When rounds end."""
    latest: float
    """When everything is given up."""

    @property
    def left(self) -> float:
        """Seconds until everything is given up, at least a moment."""
        return max(0.01, self.latest - time.perf_counter())

    @property
    def is_over(self) -> bool:
        """Whether everything is given up."""
        return time.perf_counter() >= self.latest


def _timed(request: ShortRequest, deadline: _Deadline) -> ShortTiming:
    """Let both take turns in one pair of processes after the other.

    Raises:
        WorkerError: A session cannot be created or run, or not in time.
        OrtkitError: There are no inputs.
        _TooLongError: There is no time for as many runs as a ratio needs.
    """
    feeds = written_inputs(
        open_model(request.original), request.inputs, request.shapes, request.folder
    )
    fitting = _Inputs(islice(feeds, _MOST_INPUT_SETS))
    with LoadWatch() as watch:
        rounds: list[list[list[float]]] = []
        while len(rounds) < _PAIRS:
            left = _PAIRS - len(rounds)
            elapsed, is_last = _rounds_of_a_pair(request, fitting, deadline, watch, left)
            rounds.append(elapsed)
            if is_last:
                break
    before, after = ([elapsed[index] for elapsed in rounds] for index in (0, 1))
    load = watch.found()
    noise = _noise(load, len(rounds))
    return ShortTiming(
        before_ms=1e3 * median(chain(*before)),
        after_ms=1e3 * median(chain(*after)),
        speedup=speedup_of(before, after, floor=noise),
        rounds=sum(map(len, before)),
        threads=request.threads,
        cores=load.cpus,
        others_cores=load.others_cpus,
        noise=noise,
        inputs=shapes_in(fitting.path),
    )


def _rounds_of_a_pair(
    request: ShortRequest,
    inputs: _Inputs,
    deadline: _Deadline,
    watch: LoadWatch,
    pairs_left: int,
) -> tuple[list[list[float]], bool]:
    """Create both sessions, see how long a run takes, and let them take turns.

    Args:
        request: What is timed.
        inputs: On what.
        deadline: For all pairs.
        watch: Counts the processes.
        pairs_left: This one, and those that will take as long to start.

    Returns:
        Seconds of a run, by round, of the original and of the result; and whether there is no
        time for another pair.
    """
    started = time.perf_counter()
    with Worker("ortkit") as before, Worker("ortkit") as after:
        before.load(_plan(Variant(request.original), request.threads), deadline.left)
        inputs.feed_first(before, deadline)
        after.load(_plan(request.result, request.threads), deadline.left)
        after.feed(inputs.path, deadline.left)
        # First runs also allocate: those after them tell how long a run takes.
        once = sum(worker.turn(0, deadline.left).wall for worker in (before, after))
        is_short = once < 2 * _TURN_SECONDS
        a_round = once + 2 * _TURN_SECONDS if is_short else once
        now = time.perf_counter()
        setup, others, least = now - started, pairs_left - 1, _LEAST_ROUNDS
        if others and now + least * a_round * (1 + others) + setup * others > deadline.latest:
            others, least = 0, FEWEST_ROUNDS
        if now + least * a_round > deadline.latest:
            text = f"to load both models takes {setup:.1f} s, and a run {500 * once:,.1f} ms"
            raise _TooLongError(f"{text}: a ratio would take too long")
        share = (deadline.at - now - others * setup) / (1 + others)
        turns = [partial(_turn, worker, int(is_short), deadline) for worker in (before, after)]
        until = now + share - a_round
        elapsed = interleaved(turns, _MOST_ROUNDS, least=least, until=until)
        for worker in (before, after):
            watch.count(worker.pid)
        return elapsed, not others


def _noise(load: MachineLoad, pairs: int) -> float:
    """Return the noise for what other work takes: it may all be taken from one of the two."""
    left = max(_LEAST_LEFT, load.cpus - (load.others_cpus or 0.0))
    return max(_LEAST_NOISE[pairs - 1], load.cpus / left - 1)


class _Inputs:
    """Input sets, of which the first on which the original runs is taken."""

    def __init__(self, sets: Iterator[Path]) -> None:
        self._sets = sets
        self.path = Path()

    def feed_first(self, worker: Worker, deadline: _Deadline) -> None:
        """Give a session of the original the set on which it runs.

        Raises:
            WorkerError: It runs on none.
            OrtkitError: There are none.
        """
        problem: WorkerError | None = None
        for path in chain([self.path] if self.path.name else [], self._sets):
            try:
                worker.feed(path, deadline.left)
            except WorkerError as error:
                problem = problem or error
            else:
                self.path = path
                return
        raise problem or WorkerError("there are no inputs to run on")


def _plan(variant: Variant, threads: int) -> SessionPlan:
    libraries = () if variant.library is None else (variant.library,)
    return SessionPlan(variant.model, libraries, settings=SessionSettings(threads=threads))


def _turn(worker: Worker, settle: int, deadline: _Deadline) -> float:
    """Return the median of the runs of a turn, in seconds; the worker sleeps afterwards."""
    turn = worker.turn(_TURN_SECONDS, deadline.left, settle=settle)
    worker.stop()
    return median(turn.seconds)

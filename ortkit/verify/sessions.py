"""Running models in a child process, one session after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ortkit.errors import InternalError
from ortkit.isolation.ended import Ended, TimedOut
from ortkit.isolation.run import Imports, stream_isolated
from ortkit.runtime.options import plain_text
from ortkit.runtime.ort import require_onnxruntime
from ortkit.verify.budget import NO_TIME, Budget
from ortkit.verify.child import Outcome, SettingsJob, run_settings
from ortkit.verify.child import Setting as Setting
from ortkit.verify.kernels.library import NotRun
from ortkit.verify.limits import memory_limit

CPU = ("CPUExecutionProvider",)
#: A session that did not end in this many times the time of another one computes something else.
_SLOW_FACTOR = 10.0
_SLOW_SECONDS = 2.0


@dataclass
class SessionResult:
    """What became of one session; filled while its process runs."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    is_loaded: bool = False
    not_run: tuple[NotRun, ...] = ()
    """Kernels that the session did without."""
    done: list[str] = field(default_factory=list)
    """Names of the input sets that ran."""
    failed: dict[str, str] = field(default_factory=dict)
    """Names of the input sets that did not run, with the reasons."""
    running: str = ""
    """Name of the input set that the session is at; empty between two."""
    problem: str = ""
    """The first failure, empty if there was none."""
    is_ended: bool = False
    """Whether the process crashed or ran out of time during this session."""
    is_late: bool = False
    """Whether time ran out during this session or before it."""
    seconds: float = 0.0
    """For loading and for all runs, up to the end of time."""
    run_seconds: float = 0.0
    """For the runs that ended."""

    def is_slower_than(self, other: SessionResult) -> bool:
        """Say whether it did not end in many times the time that another session took."""
        return self.is_late and self.seconds > _SLOW_FACTOR * other.seconds + _SLOW_SECONDS


@dataclass(frozen=True)
class CandidateRun:
    """The files of a candidate.

    Args:
        plain: The model that is run with optimizations off.
        optimized: The model that is run under deploy settings.
        folder: For the results.
        library: The kernel library; None for none.
        ops: The fused operators that the candidate has.
        custom_ops: Libraries that the models need to load at all.
    """

    plain: Path
    optimized: Path
    folder: Path
    library: Path | None
    ops: tuple[str, ...]
    custom_ops: tuple[Path, ...]

    def undeployed(self) -> Setting:
        """Return the session with optimizations off."""
        return Setting(self.plain, self.folder / "plain", False, self.custom_ops)

    def deployed(self) -> Setting:
        """Return the session under deploy settings."""
        return Setting(
            self.optimized, self.folder / "optimized", True, self.custom_ops,
            kernels=self.library, fused=self.ops,
        )  # fmt: skip


def run_sessions(
    settings: Sequence[Setting],
    feeds: Sequence[Path],
    wanted: int,
    timeout_seconds: float,
    memory: int | None = None,
) -> list[SessionResult]:
    """Run each model on each input set, in a child process.

    Args:
        settings: The sessions, in order.
        feeds: Folders of input sets, named differently.
        wanted: After how many good input sets the first session stops; the others run
            those on which the first one was good.
        timeout_seconds: For all sessions together; 0: none is run.
        memory: The bytes that the process may allocate; None: as many as are there.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        InternalError: The child process failed outside any session.
    """
    require_onnxruntime()
    if timeout_seconds <= 0:
        return [SessionResult(problem=NO_TIME, is_late=True) for _ in settings]
    is_on_cpu = all(setting.providers == CPU for setting in settings)
    job = SettingsJob(
        tuple(settings),
        tuple(feeds),
        wanted,
        # CUDA reserves more addresses than there is memory.
        memory_limit(memory) if is_on_cpu else 0,
    )
    results = [SessionResult() for _ in settings]
    stopped: int | None = None
    # A process that others are forked from has the installed ONNX Runtime.
    others = any(setting.onnxruntime is not None for setting in settings)
    imports: Imports = "nothing" if others else "ortkit"
    for outcome in stream_isolated(
        run_settings, job, timeout_seconds=timeout_seconds, imports=imports
    ):
        if isinstance(outcome, Ended):
            _note_end(results, stopped, outcome)
        else:
            stopped = outcome.number
            _note(results[stopped], outcome)
    _note_late(results, timeout_seconds)
    return results


def run_within(
    budget: Budget,
    settings: Sequence[Setting],
    feeds: Sequence[Path],
    wanted: int,
    *,
    kept_seconds: float = 0.0,
) -> list[SessionResult]:
    """Run sessions as `run_sessions` does, in the time that is left.

    Args:
        budget: What is left of a verification's time, and its memory.
        settings: As for `run_sessions`.
        feeds: As for `run_sessions`.
        wanted: As for `run_sessions`.
        kept_seconds: What is to be left after them.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        InternalError: The child process failed outside any session.
    """
    with budget.running():
        seconds = budget.left - kept_seconds
        return run_sessions(settings, feeds, wanted, seconds, budget.memory)


def _note_end(results: Sequence[SessionResult], stopped: int | None, ended: Ended) -> None:
    """Mark the session at which the process ended, and those after it."""
    if stopped is None and not isinstance(ended, TimedOut):
        raise InternalError(f"the verification process {ended}")
    at = stopped or 0
    # Between two sessions the one that was running is done: it is the next that stopped.
    results[at].problem = str(ended)
    results[at].is_ended = True
    results[at].is_late = isinstance(ended, TimedOut)
    for result in results[at + 1 :]:
        result.problem = "not run"


def _note_late(results: Sequence[SessionResult], timeout_seconds: float) -> None:
    """Mark the session that ran out of time, with its time, and those after it."""
    ended = next((at for at, each in enumerate(results) if each.is_ended), None)
    if ended is None or not results[ended].is_late:
        return
    results[ended].seconds = timeout_seconds - sum(each.seconds for each in results[:ended])
    for each in results[ended:]:
        each.is_late = True


def _note(result: SessionResult, outcome: Outcome) -> None:
    """Add a step to what is known of its session."""
    result.seconds += outcome.seconds
    match outcome.at:
        case "loaded":
            result.is_loaded = True
            result.inputs = outcome.inputs
            result.outputs = outcome.outputs
            result.not_run = outcome.not_run
        case "run":
            result.running = outcome.feeds
        case "done":
            result.done.append(outcome.feeds)
            result.run_seconds += outcome.seconds
            result.running = ""
        case "failed":
            if result.running:
                result.failed[result.running] = plain_text(outcome.message)
                result.running = ""
            result.problem = result.problem or plain_text(outcome.message)

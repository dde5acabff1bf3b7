"""Running models in a child process, one session after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ortkit.errors import InternalError
from ortkit.isolation.run import LATE, run_isolated
from ortkit.runtime.options import plain_text
from ortkit.runtime.ort import require_onnxruntime
from ortkit.verify import child
from ortkit.verify.budget import NO_TIME, Budget
from ortkit.verify.kernels.library import NotRun
from ortkit.verify.limits import memory_limit

CPU = ("CPUExecutionProvider",)
_CHILD = child.__name__
#: A session that did not end in this many times the time of another one computes something else.
_SLOW_FACTOR = 10.0
_SLOW_SECONDS = 2.0


@dataclass(frozen=True)
class Setting:
    """One model under one setting."""

    model: Path
    results: Path
    optimize: bool = False
    libraries: tuple[Path, ...] = ()
    providers: tuple[str, ...] = CPU
    kernels: Path | None = None
    """The library of the model's kernels; where they run decides the providers."""
    fused: tuple[str, ...] = ()
    """The operators that they are for."""
    weights_folder: Path | None = None
    """Where external data lies when it is not beside `model`."""
    prepack: bool = True
    """Whether constants are laid out for kernels, which is most of the time of loading."""
    given: Path | None = None
    """Results of an earlier setting, which are inputs named `NAME/given` of this one."""
    repeats: int = 1
    """How often each input set is run; if more than once, `results` has folders 0, 1, ..."""


@dataclass
class SessionResult:
    """What became of one session; filled while the status file is read."""

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

    def is_slower_than(self, other: SessionResult) -> bool:
        """Say whether it did not end in many times the time that another session took."""
        return self.is_late and self.seconds > _SLOW_FACTOR * other.seconds + _SLOW_SECONDS


def run_sessions(
    settings: Sequence[Setting],
    feeds: Sequence[Path],
    wanted: int,
    folder: Path,
    timeout_seconds: float,
    memory: int | None = None,
) -> list[SessionResult]:
    """Run each model on each input set, in a child process.

    Args:
        settings: The sessions, in order.
        feeds: Folders of input sets, named differently.
        wanted: After how many good input sets the first session stops; the others run
            those on which the first one was good.
        folder: For the job's own files; made here.
        timeout_seconds: For all sessions together; 0: none is run.
        memory: The bytes that the process may allocate; None: as many as are there.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        InternalError: The child process failed outside any session.
    """
    require_onnxruntime()
    if timeout_seconds <= 0:
        return [SessionResult(problem=NO_TIME, is_late=True) for _ in settings]
    folder.mkdir(parents=True)
    status = folder / "status.jsonl"
    status.touch()
    job: child.Job = {
        "runs": [_run(setting) for setting in settings],
        "feeds": [str(path) for path in feeds],
        "wanted": wanted,
        "status": str(status),
        # CUDA reserves more addresses than there is memory.
        "memory_bytes": memory_limit(memory) if all(s.providers == CPU for s in settings) else 0,
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    ended = run_isolated(
        _CHILD, str(job_file), log=folder / "log.txt", timeout_seconds=timeout_seconds
    )
    results = _read(status, len(settings), ended)
    _note_late(results, timeout_seconds)
    return results


def run_within(
    budget: Budget,
    settings: Sequence[Setting],
    feeds: Sequence[Path],
    wanted: int,
    folder: Path,
    *,
    kept_seconds: float = 0.0,
) -> list[SessionResult]:
    """Run sessions as `run_sessions` does, in the time that is left.

    Args:
        budget: What is left of a verification's time, and its memory.
        settings: As for `run_sessions`.
        feeds: As for `run_sessions`.
        wanted: As for `run_sessions`.
        folder: As for `run_sessions`.
        kept_seconds: What is to be left after them.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        InternalError: The child process failed outside any session.
    """
    with budget.running():
        seconds = budget.left - kept_seconds
        return run_sessions(settings, feeds, wanted, folder, seconds, budget.memory)


def _run(setting: Setting) -> child.Run:
    return {
        "model": str(setting.model),
        "weights_folder": str(setting.weights_folder or ""),
        "optimize": setting.optimize,
        "prepack": setting.prepack,
        "libraries": [str(path.absolute()) for path in setting.libraries],
        "providers": list(setting.providers),
        "kernels": "" if setting.kernels is None else str(setting.kernels.absolute()),
        "fused": list(setting.fused),
        "results": str(setting.results),
        "given": str(setting.given or ""),
        "repeats": setting.repeats,
    }


def _read(status: Path, count: int, ended: str) -> list[SessionResult]:
    results = [SessionResult() for _ in range(count)]
    lines = status.read_text(encoding="utf-8").splitlines()
    outcomes: list[child.Outcome] = [json.loads(line) for line in lines if line.endswith("}")]
    for outcome in outcomes:
        _note(results[outcome["run"]], outcome)
    if not ended:
        return results
    if not outcomes and not ended.startswith(LATE):
        raise InternalError(f"the verification process {ended}")
    stopped = outcomes[-1]["run"] if outcomes else 0
    # Between two sessions the one that was running is done: it is the next that stopped.
    results[stopped].problem = ended
    results[stopped].is_ended = True
    for result in results[stopped + 1 :]:
        result.problem = "not run"
    return results


def _note_late(results: Sequence[SessionResult], timeout_seconds: float) -> None:
    """Mark the session that ran out of time, with its time, and those after it."""
    ended = next((at for at, each in enumerate(results) if each.is_ended), None)
    if ended is None or not results[ended].problem.startswith(LATE):
        return
    results[ended].seconds = timeout_seconds - sum(each.seconds for each in results[:ended])
    for each in results[ended:]:
        each.is_late = True


def _note(result: SessionResult, outcome: child.Outcome) -> None:
    """Add one line of the status file to what is known of its session."""
    result.seconds += outcome.get("seconds", 0.0)
    match outcome["at"]:
        case "loaded":
            result.is_loaded = True
            result.inputs = tuple(outcome["inputs"])
            result.outputs = tuple(outcome["outputs"])
            result.not_run = tuple(outcome["not_run"])
        case "run":
            result.running = Path(outcome["feeds"]).name
        case "done":
            result.done.append(result.running)
            result.running = ""
        case "failed":
            if result.running:
                result.failed[result.running] = plain_text(outcome["message"])
                result.running = ""
            result.problem = result.problem or plain_text(outcome["message"])

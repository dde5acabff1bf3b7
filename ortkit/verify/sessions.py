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
from ortkit.verify.kernel_library import NotRun
from ortkit.verify.limits import memory_limit

CPU = ("CPUExecutionProvider",)
_CHILD = child.__name__


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
    seconds: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the process ran out of time during this session."""
        return self.is_ended and self.problem.startswith(LATE)


def run_sessions(
    settings: Sequence[Setting],
    feeds: Sequence[Path],
    wanted: int,
    folder: Path,
    timeout_seconds: float,
) -> list[SessionResult]:
    """Run each model on each input set, in a child process.

    Args:
        settings: The sessions, in order.
        feeds: Folders of input sets, named differently.
        wanted: After how many good input sets the first session stops; the others run
            those on which the first one was good.
        folder: For the job's own files; made here.
        timeout_seconds: For all sessions together.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        InternalError: The child process failed outside any session.
    """
    require_onnxruntime()
    folder.mkdir(parents=True)
    status = folder / "status.jsonl"
    status.touch()
    job: child.Job = {
        "runs": [_run(setting) for setting in settings],
        "feeds": [str(path) for path in feeds],
        "wanted": wanted,
        "status": str(status),
        # CUDA reserves more addresses than there is memory.
        "memory_bytes": memory_limit() if all(s.providers == CPU for s in settings) else 0,
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    ended = run_isolated(
        _CHILD, str(job_file), log=folder / "log.txt", timeout_seconds=timeout_seconds
    )
    return _read(status, len(settings), ended)


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
    if not outcomes:
        raise InternalError(f"the verification process {ended}")
    stopped = outcomes[-1]["run"]
    # Between two sessions the one that was running is done: it is the next that stopped.
    results[stopped].problem = ended
    results[stopped].is_ended = True
    for result in results[stopped + 1 :]:
        result.problem = "not run"
    return results


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

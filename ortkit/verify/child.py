"""The sessions that `sessions.py` runs in a process of its own.

A crash of ONNX Runtime or of a kernel ends that process and not the caller's. This module imports
little, so that the process takes little memory.
"""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import onnxruntime_in, preload_onnxruntime
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.tensor_files import (
    Entry,
    Item,
    of_ort_value,
    of_plain,
    ort_value,
    plain_value,
    read_manifest,
    write_manifest,
)
from ortkit.verify.kernels.library import CPU, Kernels, NotRun, kernels_here

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime

#: Added to the name of a value where it is an input and another model computes it.
GIVEN = "/given"
_PAGE = resource.getpagesize()
#: Threads that wait for work would take a third of the processor time of a run of bert-base.
_CONFIG = {"session.intra_op.allow_spinning": "0"}


@dataclass(frozen=True)
class Setting:
    """One model under one setting."""

    model: Path
    results: Path
    optimize: bool = False
    libraries: tuple[Path, ...] = ()
    providers: tuple[str, ...] = (CPU,)
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
    first: int = 0
    """The number of the first of these folders: that many runs were made before."""
    onnxruntime: Path | None = None
    """Where the ONNX Runtime is, the same for all of a job; None: the installed one."""


@dataclass(frozen=True)
class SettingsJob:
    """Sessions to run one after the other, each on the same input sets.

    Args:
        settings: The sessions.
        feeds: Folders of input sets.
        wanted: After how many good input sets the first session stops; the others run those.
        memory_bytes: What the process may allocate; 0 for no limit.
    """

    settings: tuple[Setting, ...]
    feeds: tuple[Path, ...]
    wanted: int
    memory_bytes: int


@dataclass(frozen=True)
class Outcome:
    """A step of a session that begins or ended: the last one says where a process crashed."""

    number: int
    """Of the session."""
    at: Literal["load", "loaded", "run", "done", "failed"]
    feeds: str = ""
    """Name of the input set."""
    seconds: float = 0.0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    message: str = ""


def run_settings(job: SettingsJob, tell: Callable[[Outcome], None]) -> None:
    """Run all sessions and tell each step before and after."""
    if job.memory_bytes:
        _limit_memory(job.memory_bytes)
    onnxruntime = onnxruntime_in(job.settings[0].onnxruntime if job.settings else None)
    feeds = job.feeds
    for number, setting in enumerate(job.settings):
        done = []
        for outcome in _outcomes(onnxruntime, number, setting, feeds, job.wanted):
            tell(outcome)
            if outcome.at == "done":
                done.append(outcome.feeds)
        if number == 0:
            feeds = tuple(each for each in feeds if each.name in done)


def _limit_memory(wanted: int) -> None:
    """Let allocations fail before the system runs out of memory and ends what it likes.

    What the process was forked with is shared with its server, and none of what it allocates.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted += _data_bytes()
    given = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (given, most))


def _data_bytes() -> int:
    """Return what the kernel counts against RLIMIT_DATA, 0 where it does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _lift_memory_limit() -> None:
    """CUDA reserves more addresses than there is memory."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _outcomes(
    ort: ModuleType, number: int, setting: Setting, feeds: Sequence[Path], wanted: int
) -> Iterator[Outcome]:
    """Load one model and run it on the input sets, until `wanted` of them ran."""
    yield Outcome(number, "load")
    started = time.perf_counter()
    try:
        kernels = Kernels("", setting.providers, [])
        if setting.kernels is not None:
            kernels = kernels_here(ort, str(setting.kernels.absolute()), setting.fused)
        if list(kernels.providers) != [CPU]:
            _lift_memory_limit()
        session = _session(ort, setting, kernels)
    except Exception as error:  # noqa: BLE001  whatever stops a session is the verdict
        yield Outcome(number, "failed", message=_line(error))
        return
    yield Outcome(
        number,
        "loaded",
        seconds=time.perf_counter() - started,
        inputs=tuple(value.name for value in session.get_inputs()),
        outputs=tuple(value.name for value in session.get_outputs()),
        not_run=tuple(kernels.not_run),
    )
    count = 0
    for folder in feeds:
        if count == wanted:
            return
        yield Outcome(number, "run", folder.name)
        started = time.perf_counter()
        try:
            _run_set(ort, session, setting, folder)
        except Exception as error:  # noqa: BLE001  as above
            yield Outcome(number, "failed", folder.name, message=_line(error))
            continue
        count += 1
        yield Outcome(number, "done", folder.name, time.perf_counter() - started)


def _session(ort: ModuleType, setting: Setting, kernels: Kernels) -> Any:
    settings = SessionSettings(
        optimizations="all" if setting.optimize else "off",
        config=_CONFIG if setting.prepack else {**_CONFIG, "session.disable_prepacking": "1"},
    )
    libraries = [*setting.libraries, *([Path(kernels.library)] if kernels.library else [])]
    plan = SessionPlan(
        setting.model, tuple(libraries), kernels.with_options, settings,
        weights_folder=setting.weights_folder,
    )  # fmt: skip
    return open_session(ort, plan)


def _run_set(ort: ModuleType, session: Any, setting: Setting, feeds: Path) -> None:
    """Run one input set as often as is wanted."""
    given = None if setting.given is None else setting.given / feeds.name
    if setting.repeats == 1:
        _run_once(ort, session, feeds, given, setting.results / feeds.name)
        return
    for number in range(setting.first, setting.first + setting.repeats):
        _run_once(ort, session, feeds, given, setting.results / str(number) / feeds.name)


def _run_once(
    ort: ModuleType, session: Any, feeds: Path, given: Path | None, results: Path
) -> None:
    results.mkdir(parents=True)
    declared = {value.name: value.type for value in session.get_inputs()}
    entries = [entry for entry in read_manifest(feeds) if entry["name"] in declared]
    entries += [] if given is None else _given_entries(given, declared)
    types = [*declared.values(), *(value.type for value in session.get_outputs())]
    names = [value.name for value in session.get_outputs()]
    outputs: list[Entry] = []
    if all(kind.startswith("tensor(") and kind != "tensor(string)" for kind in types):
        made = {entry["name"]: ort_value(ort, feeds, entry["items"][0]) for entry in entries}
        values = session.run_with_ort_values(names, made)
        for name, value in zip(names, values, strict=True):
            outputs.append(of_ort_value(name, len(outputs), value, results))
    else:
        arrays = {entry["name"]: plain_value(feeds, entry) for entry in entries}
        values = session.run(names, arrays)
        for name, value in zip(names, values, strict=True):
            outputs.append(of_plain(name, len(outputs), value, results))
    write_manifest(results, outputs)


def _given_entries(given: Path, declared: Collection[str]) -> list[Entry]:
    """Return the results of an earlier run that are inputs now."""
    entries: list[Entry] = []
    for entry in read_manifest(given):
        name = f"{entry['name']}{GIVEN}"
        if name in declared:
            items: list[Item] = [
                {**item, "file": str(given.absolute() / item["file"])} for item in entry["items"]
            ]
            entries.append({"name": name, "kind": entry["kind"], "items": items})
    return entries


def _line(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: free some space, or set TMPDIR"
    return " ".join(str(error).split()) or type(error).__name__

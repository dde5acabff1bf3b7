"""The process that runs the sessions, started by `sessions.py`.

A crash of ONNX Runtime or of a kernel ends this process and not the caller's. It imports
numpy, onnxruntime and how tensors lie in files, so that it starts fast.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

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

#: Added to the name of a value where it is an input and another model computes it.
GIVEN = "/given"


class Run(TypedDict):
    """One session: a model under one setting."""

    model: str
    weights_folder: str  # where external data lies when `model` was moved; else ""
    optimize: bool
    prepack: bool
    libraries: list[str]
    providers: list[str]
    kernels: str  # the library of the kernels, else ""
    fused: list[str]  # the operators that they are for; both decide the providers
    results: str
    given: str  # the results of an earlier run, which come as inputs named `NAME/given`; else ""
    repeats: int  # how often each input set is run; the results lie in folders 0, 1, ... if > 1


class Job(TypedDict):
    """Sessions to run one after the other, each on the same input sets."""

    runs: list[Run]
    feeds: list[str]
    wanted: int  # stop when this many input sets ran in the first session; the rest follow it
    status: str
    memory_bytes: int  # what the process may allocate; 0 for no limit


class Outcome(TypedDict, total=False):
    """One line of the status file; `at` is what was being done, for when nothing follows."""

    run: int
    at: str  # "load", "loaded", "run", "done" or "failed"
    feeds: str
    seconds: float
    inputs: list[str]
    outputs: list[str]
    not_run: list[NotRun]
    message: str


def main(job_file: str) -> None:
    """Run a job; every step is noted before and after, so that a crash shows where it was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    if job["memory_bytes"]:
        _limit_memory(job["memory_bytes"])
    import onnxruntime

    feeds = job["feeds"]
    with Path(job["status"]).open("a", encoding="utf-8") as status:
        for index, run in enumerate(job["runs"]):
            done: list[str] = []
            for outcome in _outcomes(onnxruntime, run, feeds, job["wanted"]):
                outcome["run"] = index
                status.write(json.dumps(outcome) + "\n")
                status.flush()
                if outcome["at"] == "done":
                    done.append(outcome["feeds"])
            if index == 0:
                feeds = done


def _limit_memory(wanted: int) -> None:
    """Let allocations fail before the system runs out of memory and ends what it likes."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    given = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (given, most))


def _lift_memory_limit() -> None:
    """CUDA reserves more addresses than there is memory."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _outcomes(ort: ModuleType, run: Run, feeds: Sequence[str], wanted: int) -> Iterator[Outcome]:
    """Load one model and run it on the input sets, until `wanted` of them ran."""
    yield {"at": "load"}
    started = time.perf_counter()
    try:
        kernels = Kernels("", run["providers"], [])
        if run["kernels"]:
            kernels = kernels_here(ort, run["kernels"], run["fused"])
        if list(kernels.providers) != [CPU]:
            _lift_memory_limit()
        session = _session(ort, run, kernels)
    except Exception as error:  # noqa: BLE001  whatever stops a session is the verdict
        yield {"at": "failed", "message": _line(error)}
        return
    yield {
        "at": "loaded",
        "seconds": time.perf_counter() - started,
        "inputs": [value.name for value in session.get_inputs()],
        "outputs": [value.name for value in session.get_outputs()],
        "not_run": list(kernels.not_run),
    }
    count = 0
    for folder in feeds:
        if count == wanted:
            return
        yield {"at": "run", "feeds": folder}
        started = time.perf_counter()
        try:
            _run_set(ort, session, run, Path(folder))
        except Exception as error:  # noqa: BLE001  as above
            yield {"at": "failed", "feeds": folder, "message": _line(error)}
            continue
        count += 1
        yield {"at": "done", "feeds": folder, "seconds": time.perf_counter() - started}


def _session(ort: ModuleType, run: Run, kernels: Kernels) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_ALL if run["optimize"] else level.ORT_DISABLE_ALL
    )
    options.add_session_config_entry(*kernels.target)
    # Threads that wait for work would take a third of the processor time of a run of bert-base.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not run["prepack"]:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for library in filter(None, [*run["libraries"], kernels.library]):
        options.register_custom_ops_library(library)
    model: str | bytes = run["model"]
    if run["weights_folder"]:
        # A model that lies elsewhere than its weights must be given as bytes: only then
        # does ONNX Runtime (1.31.1) take the folder from this option.
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", run["weights_folder"]
        )
        model = Path(run["model"]).read_bytes()
    # Without the fallback: it prints, and tries once more what failed.
    return ort.InferenceSession(model, options, providers=kernels.providers, enable_fallback=0)


def _run_set(ort: ModuleType, session: Any, run: Run, feeds: Path) -> None:
    """Run one input set as often as is wanted."""
    given = Path(run["given"]) / feeds.name if run["given"] else None
    results = Path(run["results"])
    if run["repeats"] == 1:
        _run_once(ort, session, feeds, given, results / feeds.name)
        return
    for number in range(run["repeats"]):
        _run_once(ort, session, feeds, given, results / str(number) / feeds.name)


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
    return " ".join(str(error).split()) or type(error).__name__

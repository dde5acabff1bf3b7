"""A session in a process of its own, driven by `worker.py`.

It imports numpy, onnxruntime, how tensors lie in files and what a session's settings are, and
nothing large: its memory is what a process that only runs the model needs.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import Barrier
from types import ModuleType
from typing import Any, ParamSpec, TypedDict, TypeVar

from ortkit.errors import UserError
from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.options import explained
from ortkit.runtime.ort import onnxruntime_in, preload_onnxruntime
from ortkit.runtime.placement import read_placement
from ortkit.runtime.tensor_files import (
    Entry,
    of_ort_value,
    of_plain,
    ort_value,
    plain_value,
    read_manifest,
    write_manifest,
)

#: Where the process is forked; see `worker.IMPORTS`.
before_jobs = preload_onnxruntime


class Usage(TypedDict):
    """What the process uses, in bytes; -1 where the system does not say."""

    resident: int
    peak_resident: int


@dataclass(frozen=True)
class Loaded:
    """A session that was made."""

    seconds: float
    before: Usage
    """Memory before it, with ONNX Runtime imported."""
    after: Usage
    providers: tuple[str, ...]
    nodes: Mapping[str, int]
    """By provider, after ONNX Runtime's own optimizations; empty if it does not say."""
    version: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """Runs one after the other."""

    seconds: tuple[float, ...]
    """Of each run."""
    wall: float
    """From the first's begin to the last's end."""
    cpu: float
    """Processor time of all threads meanwhile."""


@dataclass(frozen=True)
class ConcurrentRuns:
    """Runs of several threads at a time."""

    callers: int
    seconds: tuple[float, ...]
    """Of each run of each thread."""
    wall: float
    """From the first's begin to the last's end."""


#: ONNX Runtime's names of element types that its `run` takes and gives as arrays.
_AS_ARRAYS = frozenset(
    {
        "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool",
        "float16", "double", "uint32", "uint64", "complex64", "complex128",
    }
)  # fmt: skip

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _explains(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a method raise what stops a session as one line of ours."""

    @wraps(method)
    def explaining(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return method(*given, **named)
        except Exception as error:
            raise explained(error) from error

    return explaining


class HeldSession:
    """A session and what it is run on."""

    def __init__(self, _: None = None) -> None:
        """Hold nothing yet."""
        self.ort: ModuleType | None = None
        self.session: Any = None
        self.run_once: Callable[[], Any] | None = None
        self.share: Mapping[str, str] = {}
        # Where memory runs out, this process is the one to kill and not the caller.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")

    @_explains
    def load(self, plan: SessionPlan) -> Loaded:
        """Make the session."""
        self.ort = onnxruntime = onnxruntime_in(plan.onnxruntime)
        self.share = plan.share
        before = usage()
        names = [name for name, _ in plan.providers]
        for name in names:
            if name not in onnxruntime.get_available_providers():
                raise ValueError(f"this ONNX Runtime has no {name}")
        if any(name != "CPUExecutionProvider" for name in names):
            with contextlib.suppress(AttributeError):
                onnxruntime.preload_dlls()
        started = time.perf_counter()
        self.session = open_session(onnxruntime, plan)
        seconds = time.perf_counter() - started
        providers = tuple(self.session.get_providers())
        # ONNX Runtime goes on with the CPU and says so in a log only.
        for name in names:
            if name not in providers:
                raise ValueError(f"{name} was asked for and not got")
        after = usage()
        nodes = _nodes(self.session)
        if nodes and names[0] not in nodes:
            raise ValueError(f"{names[0]} takes none of the model's nodes")
        return Loaded(
            seconds, before, after, providers, nodes, onnxruntime.__version__,
            tuple(value.name for value in self.session.get_outputs()),
        )  # fmt: skip

    @_explains
    def feed(self, inputs: Path) -> float:
        """Read inputs, a folder of tensors or an npz file; returns the first run's seconds."""
        if inputs.suffix == ".npz":
            self.run_once = self._with_arrays(inputs)
        elif self.share:
            self.run_once = _in_place(self.ort, self.session, inputs, self.share)
        else:
            self.run_once = _with_tensors(self.ort, self.session, inputs)
        started = time.perf_counter()
        self.run_once()
        return time.perf_counter() - started

    def _with_arrays(self, file: Path) -> Callable[[], Any]:
        import numpy as np

        with np.load(file) as arrays:
            feeds = {name: arrays[name] for name in arrays.files}
        names, run = [v.name for v in self.session.get_outputs()], self.session.run
        return lambda: run(names, feeds)

    @_explains
    def keep(self, results: Path) -> None:
        """Run once and write the outputs into a new folder of tensors."""
        assert self.run_once is not None
        values = self.run_once()
        results.mkdir(parents=True)
        entries: list[Entry] = []
        names = [value.name for value in self.session.get_outputs()]
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            is_ort_value = hasattr(value, "tensor_size_in_bytes")
            write = of_ort_value if is_ort_value else of_plain
            entries.append(write(name, index, value, results))
        write_manifest(results, entries)

    @_explains
    def turn(self, seconds: float, most: int, settle: int) -> Turn:
        """Run again and again for some time, at least once; the first runs do not count.

        Args:
            seconds: How long the runs that count go on.
            most: How many of them there may be.
            settle: How many runs come before them: others had the caches meanwhile.
        """
        call, clock = self.run_once, time.perf_counter
        assert call is not None
        elapsed: list[float] = []
        gc.disable()
        try:
            for _ in range(settle):
                call()
            cpu, began = time.process_time(), clock()
            until = began + seconds
            while True:
                started = clock()
                call()
                ended = clock()
                elapsed.append(ended - started)
                if ended >= until or len(elapsed) >= most:
                    break
            return Turn(tuple(elapsed), ended - began, time.process_time() - cpu)
        finally:
            gc.enable()

    @_explains
    def concurrent(self, callers: int, seconds: float) -> ConcurrentRuns:
        """Let several threads run again and again for some time, each at least once."""
        call, clock = self.run_once, time.perf_counter
        assert call is not None
        start = Barrier(callers)

        def runs() -> tuple[list[float], float, float]:
            start.wait()
            elapsed: list[float] = []
            began = clock()
            ended = began
            while not elapsed or ended < began + seconds:
                started = clock()
                call()
                ended = clock()
                elapsed.append(ended - started)
            return elapsed, began, ended

        with ThreadPoolExecutor(callers) as threads:
            found = [future.result() for future in [threads.submit(runs) for _ in range(callers)]]
        wall = max(ended for *_, ended in found) - min(began for _, began, _ in found)
        return ConcurrentRuns(
            callers, tuple(each for elapsed, *_ in found for each in elapsed), wall
        )

    def usage(self) -> Usage:
        """Say what the process uses, and has used at most."""
        return usage()

    @_explains
    def arenas(self) -> tuple[list[Mapping[str, object]], list[str]]:
        """Return what the session's allocators count, and what is not known of it and why.

        To be asked last: finding them takes small sessions of its own.
        """
        from ortkit.runtime.arenas import arenas_of

        arenas, missing = arenas_of(self.session)
        counts: list[Mapping[str, object]] = [arena.to_json() for arena in arenas]
        return counts, [f"{each.what}: {each.reason}" for each in missing]

    @_explains
    def end_profiling(self) -> Path:
        """End profiling; returns the trace."""
        return Path(self.session.end_profiling())


def usage() -> Usage:
    """Return this process' memory.

    Not from `getrusage`: its peak begins with that of the process that started this one.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return {"resident": -1, "peak_resident": -1}
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {
        "resident": 1024 * int(lines.get("VmRSS", "-1 kB").split()[0]),
        "peak_resident": 1024 * int(lines.get("VmHWM", "-1 kB").split()[0]),
    }


def _nodes(session: Any) -> dict[str, int]:
    try:
        return dict(Counter(placed.provider for placed in read_placement(session)))
    except UserError:
        return {}


def _with_tensors(ort: ModuleType | None, session: Any, folder: Path) -> Callable[[], Any]:
    """Return what runs the session once on the inputs in a folder."""
    assert ort is not None
    declared: Mapping[str, str] = {value.name: value.type for value in session.get_inputs()}
    entries = [entry for entry in read_manifest(folder) if entry["name"] in declared]
    types = [*declared.values(), *(value.type for value in session.get_outputs())]
    names = [value.name for value in session.get_outputs()]
    if all(_is_array(kind) for kind in types):
        feeds = {entry["name"]: plain_value(folder, entry) for entry in entries}
        run = session.run
        return lambda: run(names, feeds)
    made = {entry["name"]: ort_value(ort, folder, entry["items"][0]) for entry in entries}
    run_values = session.run_with_ort_values
    return lambda: run_values(names, made)


def _in_place(
    ort: ModuleType | None, session: Any, folder: Path, share: Mapping[str, str]
) -> Callable[[], Any]:
    """Return what runs the session on inputs, some of whose memory is written by outputs."""
    assert ort is not None
    declared = {value.name for value in session.get_inputs()}
    made = {
        entry["name"]: ort_value(ort, folder, entry["items"][0])
        for entry in read_manifest(folder)
        if entry["name"] in declared
    }
    written = {output: made[name] for name, output in share.items()}
    names = [value.name for value in session.get_outputs()]
    binding = session.io_binding()
    for name, value in made.items():
        binding.bind_ortvalue_input(name, value)

    def run() -> Any:
        # A size may be another than in the last run: what is not shared is bound again.
        for name in names:
            if name in written:
                binding.bind_ortvalue_output(name, written[name])
            else:
                binding.bind_output(name)
        session.run_with_iobinding(binding)
        return binding.get_outputs()

    return run


def _is_array(kind: str) -> bool:
    """Say whether `run` takes and gives this type; sequences and maps it does."""
    return not kind.startswith("tensor(") or kind[len("tensor(") : -1] in _AS_ARRAYS

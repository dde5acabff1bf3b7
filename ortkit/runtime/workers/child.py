"""The process that holds one session: `main()`, told what to do by lines of JSON on stdin.

It imports numpy, onnxruntime, how tensors lie in files and what a session's settings are, and
nothing large: its memory is what a process that only runs the model needs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from ortkit.errors import UserError
from ortkit.runtime.library_target import target_entry
from ortkit.runtime.options import explained, session_options
from ortkit.runtime.placement import read_placement
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.tensor_files import (
    Entry,
    of_ort_value,
    of_plain,
    ort_value,
    plain_value,
    read_manifest,
    write_manifest,
)


class Load(TypedDict):
    """What session to make."""

    model: str
    libraries: list[str]
    providers: list[tuple[str, dict[str, str]]]
    settings: dict[str, Any]  # the fields of `SessionSettings`


class Usage(TypedDict):
    """What the process uses, in bytes; -1 where the system does not say."""

    resident: int
    peak_resident: int


Message = dict[str, Any]

#: ONNX Runtime's names of element types that its `run` takes and gives as arrays.
_AS_ARRAYS = frozenset(
    {
        "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool",
        "float16", "double", "uint32", "uint64", "complex64", "complex128",
    }
)  # fmt: skip


def main() -> None:
    """Answer each line on stdin with one on stdout, until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends this process
    _be_the_first_to_go()
    # Whatever a library prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    holder = _Holder()
    for line in sys.stdin:
        message: Message = json.loads(line)
        try:
            answer = getattr(holder, message.pop("do"))(**message)
        except Exception as error:  # noqa: BLE001  whatever stops a session is the answer
            answer = {"problem": str(explained(error))}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Holder:
    """The session and what it is run on."""

    def __init__(self) -> None:
        self.ort: ModuleType | None = None
        self.session: Any = None
        self.call: Callable[[], Any] | None = None

    def load(self, **asked: Any) -> Message:
        """Make the session."""
        import onnxruntime

        self.ort = onnxruntime
        job = Load(**asked)  # type: ignore[typeddict-item]
        before = usage()
        providers = [(name, options) for name, options in job["providers"]]
        for name, _ in providers:
            if name not in onnxruntime.get_available_providers():
                raise ValueError(f"this ONNX Runtime has no {name}")
        if any(name != "CPUExecutionProvider" for name, _ in providers):
            with contextlib.suppress(AttributeError):
                onnxruntime.preload_dlls()
        options = session_options(SessionSettings(**job["settings"]), onnxruntime)
        options.add_session_config_entry(*target_entry([name for name, _ in providers]))
        for library in job["libraries"]:
            options.register_custom_ops_library(library)
        started = time.perf_counter()
        self.session = onnxruntime.InferenceSession(
            job["model"], options, providers=providers, enable_fallback=0
        )
        seconds = time.perf_counter() - started
        got = self.session.get_providers()
        # ONNX Runtime goes on with the CPU and says so in a log only.
        for name, _ in providers:
            if name not in got:
                raise ValueError(f"{name} was asked for and not got")
        after = usage()
        nodes = _nodes(self.session)
        if nodes and providers[0][0] not in nodes:
            raise ValueError(f"{providers[0][0]} takes none of the model's nodes")
        return {
            "seconds": seconds,
            "before": before,
            "after": after,
            "providers": got,
            "nodes": nodes,
            "version": onnxruntime.__version__,
            "outputs": [value.name for value in self.session.get_outputs()],
        }

    def feed(self, folder: str) -> Message:
        """Read the inputs from a folder of tensors and run for the first time."""
        self.call = _call(self.ort, self.session, Path(folder))
        return self._first_run()

    def feed_arrays(self, file: str) -> Message:
        """Read the inputs from an npz file and run for the first time."""
        import numpy as np

        with np.load(file) as arrays:
            feeds = {name: arrays[name] for name in arrays.files}
        names, run = [v.name for v in self.session.get_outputs()], self.session.run
        self.call = lambda: run(names, feeds)
        return self._first_run()

    def _first_run(self) -> Message:
        assert self.call is not None
        started = time.perf_counter()
        self.call()
        return {"seconds": time.perf_counter() - started}

    def keep(self, folder: str) -> Message:
        """Run once and write the outputs into a new folder of tensors."""
        assert self.call is not None
        values = self.call()
        results = Path(folder)
        results.mkdir(parents=True)
        entries: list[Entry] = []
        names = [value.name for value in self.session.get_outputs()]
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            is_ort_value = hasattr(value, "tensor_size_in_bytes")
            write = of_ort_value if is_ort_value else of_plain
            entries.append(write(name, index, value, results))
        write_manifest(results, entries)
        return {}

    def turn(self, seconds: float, most: int, settle: int) -> Message:
        """Run again and again for some time, at least once; the first runs do not count.

        Args:
            seconds: How long the runs that count go on.
            most: How many of them there may be.
            settle: How many runs come before them: others had the caches meanwhile.
        """
        call, clock = self.call, time.perf_counter
        assert call is not None
        taken: list[float] = []
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
                taken.append(ended - started)
                if ended >= until or len(taken) >= most:
                    break
            return {"seconds": taken, "wall": ended - began, "cpu": time.process_time() - cpu}
        finally:
            gc.enable()

    def use(self) -> Message:
        """Say what the process uses, and has used at most."""
        return {"usage": usage()}

    def count(self) -> Message:
        """Say what the session's allocators count.

        To be asked last: finding them takes small sessions of its own.
        """
        from ortkit.runtime.arenas import arenas_of

        arenas, missing = arenas_of(self.session)
        return {
            "arenas": [arena.to_json() for arena in arenas],
            "missing": [f"{each.what}: {each.reason}" for each in missing],
        }

    def trace(self) -> Message:
        """End profiling; returns the file."""
        return {"file": str(self.session.end_profiling())}


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
        return dict(Counter(one.provider for one in read_placement(session)))
    except UserError:
        return {}


def _call(ort: ModuleType | None, session: Any, folder: Path) -> Callable[[], Any]:
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


def _is_array(kind: str) -> bool:
    """Say whether `run` takes and gives this type; sequences and maps it does."""
    return not kind.startswith("tensor(") or kind[len("tensor(") : -1] in _AS_ARRAYS


def _be_the_first_to_go() -> None:
    """Where memory runs out, this process is the one to kill and not the caller."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")

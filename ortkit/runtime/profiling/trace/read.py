"""Reading the file that ONNX Runtime's profiler writes."""

from __future__ import annotations

import io
from array import array
from pathlib import Path

import numpy as np

from ortkit.errors import UserError
from ortkit.private_folder import read_regular
from ortkit.runtime.profiling.trace.devices import KERNEL, attach_kernels, device_event
from ortkit.runtime.profiling.trace.events import (
    HOLDERS,
    DeviceEvent,
    NodeSignature,
    RunEvent,
)
from ortkit.runtime.profiling.trace.lines import (
    Head,
    NotAnEventError,
    is_kernel,
    match_head,
    parse_event,
    signature_key,
    signature_of,
)
from ortkit.runtime.profiling.trace.membership import runs_of
from ortkit.runtime.profiling.trace.trace import NodeEvents, Trace


def read_trace(path: Path) -> Trace:
    """Read the file that `InferenceSession.end_profiling` names.

    Raises:
        UserError: It cannot be read, is cut off, is no trace of ONNX Runtime, or holds no run.
    """
    try:
        text = read_regular(path)
        try:
            reader = _Reader(text, by_name=True)
        except _SharedNamesError:
            reader = _Reader(text, by_name=False)
    except OSError as error:
        raise UserError(
            f"cannot read the profile: {error.strerror or error}", where=str(path)
        ) from error
    except NotAnEventError as error:
        raise UserError(str(error), where=str(path), fix=_FIX) from error
    return reader.trace(path)


_FIX = (
    "give the file that `end_profiling` of an ONNX Runtime session names, "
    "after the session has ended its profiling"
)


class _SharedNamesError(Exception):
    """There are nodes in bodies: their names may be those of nodes elsewhere."""


class _Reader:
    """What has been read so far."""

    def __init__(self, text: bytes, *, by_name: bool) -> None:
        """Read all lines.

        Args:
            text: The file.
            by_name: Whether to take it that no two nodes have the same name.

        Raises:
            NotAnEventError: A line is no event, or the last is not the list's end.
            _SharedNamesError: `by_name`, and it cannot be taken so.
        """
        self.text = text
        self.by_name = by_name
        self.runs: list[RunEvent] = []
        self.load_us: int | None = None
        self.initialize_us: int | None = None
        self.kernels: list[DeviceEvent] = []
        self.line_start = array("q")
        self.thread, self.duration_us, self.start_us = array("q"), array("q"), array("q")
        self.signature = array("q")
        self.signatures: dict[NodeSignature, int] = {}
        self.keys: dict[tuple[bytes, ...], int] = {}
        self._read()

    def _read(self) -> None:
        file = io.BytesIO(self.text)
        line, number = next(file, b""), 1
        if line.strip() != b"[":
            raise NotAnEventError("is no profile of ONNX Runtime: it does not begin with a list")
        keys, by_name = self.keys, self.by_name
        end = len(line)
        for number, line in enumerate(file, 2):
            begin, end = end, end + len(line)
            head = match_head(line)
            # The whole of a line is what ends as all of them do.
            if head is None or not line.endswith((b"}},\n", b"}}\n")):
                if line.strip() not in (b"", b"]"):
                    self._parsed(line, number, begin)
                continue
            category, thread, elapsed, start, name = head.groups()
            if category != b"Node":
                self._parsed(line, number, begin)
                continue
            key = signature_key(line, name, by_name=by_name)
            known = keys.get(key) if key is not None else None
            if known is None and (known := self._signature(line, key)) is None:
                continue
            self.line_start.append(begin)
            self.signature.append(known)
            self.thread.append(int(thread))
            self.duration_us.append(int(elapsed))
            self.start_us.append(int(start))
        if line.strip() != b"]":
            raise NotAnEventError(f"the profile is cut off after line {number}")

    def _signature(self, line: bytes, key: tuple[bytes, ...] | None) -> int | None:
        """Return the number of a line's signature, None if it is not that of a kernel."""
        head, args = parse_event(line)
        if not is_kernel(head.name):
            return None
        signature = signature_of(head.name, args)
        if self.by_name and signature.op in HOLDERS:
            raise _SharedNamesError
        known = self.signatures.setdefault(signature, len(self.signatures))
        if key is not None:
            self.keys[key] = known
        return known

    def _session(self, head: Head) -> None:
        if head.name == "model_run":
            self.runs.append(RunEvent(head.start_us, head.duration_us, head.thread))
        elif head.name.startswith("model_loading"):
            self.load_us = head.duration_us
        elif head.name == "session_initialization":
            self.initialize_us = head.duration_us

    def _parsed(self, line: bytes, number: int, begin: int) -> None:
        """Take in a line that is not of the known form, or one of another category."""
        try:
            head, args = parse_event(line)
        except NotAnEventError as error:
            raise NotAnEventError(f"line {number} holds no whole event: {error}") from error
        if head.category == "Node":
            if (known := self._signature(line, None)) is not None:
                self.line_start.append(begin)
                self.signature.append(known)
                self.thread.append(head.thread)
                self.duration_us.append(head.duration_us)
                self.start_us.append(head.start_us)
        elif head.category == "Session":
            self._session(head)
        elif head.category == KERNEL:
            self.kernels.append(device_event(head, args))

    def trace(self, path: Path) -> Trace:
        """Return what was read.

        Raises:
            UserError: There is no run.
        """
        if not self.runs:
            raise UserError(
                "the profile holds no run", where=str(path), fix="run the session before it ends"
            )
        runs = tuple(sorted(self.runs, key=lambda run_event: run_event.start_us))
        columns = (self.signature, self.thread, self.duration_us, self.start_us, self.line_start)
        signature, thread, elapsed, start, line_start = (
            np.array(column, np.int64) for column in columns
        )
        nodes = NodeEvents(
            signatures=tuple(self.signatures),
            signature=signature,
            run=runs_of(runs, start, elapsed, thread),
            start_us=start,
            duration_us=elapsed,
            thread=thread,
            line_start=line_start,
            text=self.text,
        )
        return attach_kernels(
            Trace(runs, nodes, (), self.load_us, self.initialize_us), self.kernels
        )

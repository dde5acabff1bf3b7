"""Notes which lines of the changed packages each test runs, in all of its processes.

A copy of this file is the `sitecustomize` of a `Tree`, so it stands alone: every Python that a
test starts imports it first. The number of the running test is in a file that all of them map.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

#: A call is followed line by line so many times for each test; later ones run no new lines.
_FOLLOWED = 40
#: Read as a whole: kernels whose text is compiled and never run as Python.
WHOLE = 0


class Recorder:
    """Writes `NUMBER FILE LINE...` for each call that runs lines for the first time in a test."""

    def __init__(self, folder: Path, tree: Path, packages: tuple[str, ...]) -> None:
        self._tree = f"{tree}/"
        self._packages = packages
        with (folder / "current").open("r+b") as file:
            self._current = mmap.mmap(file.fileno(), 8)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._out = os.open(folder / "lines", flags, 0o600)
        self._names: dict[str, str | None] = {}
        self._calls: dict[tuple[bytes, Any], int] = {}
        self._seen: set[tuple[bytes, str, int]] = set()

    def start(self) -> None:
        """Follow all threads of this process."""
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow a call if it is one of the packages'."""
        code = frame.f_code
        name = self._name(code.co_filename)
        if code.co_name in ("kernel_text", "getsource"):
            self._note_text(code.co_name, frame.f_locals)
        if name is None:
            return None
        test = self._current[:8]
        calls = self._calls.get((test, code), 0)
        if calls == _FOLLOWED:
            return None
        self._calls[test, code] = calls + 1
        lines: list[int] = []

        def follow(inner: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                key = (test, name, inner.f_lineno)
                if key not in self._seen:
                    self._seen.add(key)
                    lines.append(inner.f_lineno)
            elif event == "return" and lines:
                self._write(test, name, lines)
                lines.clear()
            return follow

        return follow

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            name = path.removeprefix(self._tree)
            is_wanted = name != path and name.startswith(self._packages)
            self._names[path] = name if is_wanted else None
        return self._names[path]

    def _note_text(self, function: str, given: dict[str, Any]) -> None:
        """Note a file whose text is read for a kernel: by its name, or by a function in it."""
        if function == "kernel_text":
            paths = [str(path) for path in Path(self._tree).rglob(f"{given.get('name')}.py")]
        else:
            paths = [getattr(getattr(given.get("object"), "__code__", None), "co_filename", "")]
        for name in filter(None, map(self._name, paths)):
            self._write(self._current[:8], name, [WHOLE])

    def _write(self, test: bytes, name: str, lines: list[int]) -> None:
        numbers = " ".join(map(str, lines))
        os.write(self._out, f"{int.from_bytes(test, 'little')} {name} {numbers}\n".encode())


if os.environ.get("MUTATION_LINES"):
    _recorder = Recorder(
        Path(os.environ["MUTATION_LINES"]),
        Path(os.environ["MUTATION_TREE"]),
        tuple(os.environ["MUTATION_PACKAGES"].split(":")),
    )
    _recorder.start()

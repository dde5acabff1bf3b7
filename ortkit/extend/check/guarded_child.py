"""A kernel called with every tensor between pages that nobody may touch; see `guarded.py`."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from ortkit.extend.declare.prepack import Workspace
from ortkit.targets.cpu import ask_for_tiles

#: What is in memory that a kernel must not write, and in outputs that it must: of floats NaN, as
#: others may pass for 0.
_BYTE, _UNWRITTEN = 0xA5, 0xFF
_PROT_NONE = 0
_LINE = 64


class Guarded:
    """Bytes between two pages that nobody may touch, flush with the first or the second."""

    def __init__(self, content: bytes | None, size: int, *, at_end: bool) -> None:
        """Map memory; without content it is filled with a mark."""
        page = mmap.PAGESIZE
        pages = max(1, -(-size // page))
        self.size, self.workspace = size, pages * page
        self.memory = mmap.mmap(-1, (pages + 2) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.begin = page + (self.workspace - size if at_end else 0)
        self.memory[page : page + self.workspace] = bytes([_BYTE]) * self.workspace
        inside = bytes([_UNWRITTEN]) * size if content is None else content
        self.memory[self.begin : self.begin + size] = inside
        self.address = base + self.begin
        self.content = content
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (base, base + page + self.workspace):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), _PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def bytes(self) -> bytes:
        """Return the tensor's bytes."""
        return self.memory[self.begin : self.begin + self.size]

    def problem(self, name: str) -> str:
        """Say what was written that must not be."""
        page = mmap.PAGESIZE
        around = self.memory[page : self.begin]
        around += self.memory[self.begin + self.size : page + self.workspace]
        if around.strip(bytes([_BYTE])):
            return f"it writes beside {name}"
        if self.content is not None and self.bytes() != self.content:
            return f"it writes into its input {name}"
        return ""


@dataclass(frozen=True)
class CallFiles:
    """The tensors of one call."""

    inputs: tuple[Path, ...]
    """Files with their bytes."""
    outputs: tuple[int, ...]
    """Bytes of each."""
    results: tuple[Path, ...]
    """Where the outputs go."""


@dataclass(frozen=True)
class GuardedCall:
    """One call of a kernel."""

    files: CallFiles
    sizes: tuple[int, ...]
    """The named ones."""
    units: int
    packs: tuple[Workspace, ...]


@dataclass(frozen=True)
class GuardedJob:
    """A kernel in a library, and its calls."""

    library: Path
    symbol: str
    level: str
    """Of the processors that it is for."""
    names: tuple[str, ...]
    """Of its tensors."""
    calls: tuple[GuardedCall, ...]
    inplace: tuple[tuple[int, int], ...]
    packs: tuple[tuple[int, str], ...]
    """Inputs that are packed, and the functions that do it."""


@dataclass(frozen=True)
class Begun:
    """A call begins; a process that ends after it went out of bounds."""

    number: int


@dataclass(frozen=True)
class Done:
    """A call came to its end."""

    number: int
    problem: str
    """What is wrong with it, empty if nothing is."""


Tell: TypeAlias = Callable[[Begun | Done], None]


def call_with_guards(job: GuardedJob, tell: Tell) -> None:
    """Do all calls of a job."""
    ask_for_tiles(job.level)
    kernel = _Kernel(job)
    for number, call in enumerate(job.calls):
        for at_end in (True, False):
            tell(Begun(number))
            tell(Done(number, kernel.problem(call, at_end)))


class _Kernel:
    """A kernel with its functions."""

    def __init__(self, job: GuardedJob) -> None:
        library = ctypes.CDLL(str(job.library))
        self.job = job
        self.function = getattr(library, job.symbol)
        self.function.restype = ctypes.c_int32
        self.packers = [getattr(library, symbol) for _, symbol in job.packs]

    def problem(self, call: GuardedCall, at_end: bool) -> str:
        """Return what is wrong with one call, empty if nothing is."""
        units = call.units
        # All at once, then in two parts: what is cut must come out the same.
        cuts = [[0, units]] if units < 2 else [[0, units], [0, units // 3 or 1, units]]
        results: list[list[bytes]] = []
        for cut in cuts:
            tensors = [
                Guarded(content, len(content), at_end=at_end)
                for content in (path.read_bytes() for path in call.files.inputs)
            ]
            outputs = [Guarded(None, size, at_end=at_end) for size in call.files.outputs]
            packed, problem = self._packed(call, tensors, at_end)
            if problem:
                return problem
            pointers = [ctypes.c_void_p(item.address) for item in (*packed, *outputs)]
            sizes = [ctypes.c_int64(size) for size in call.sizes]
            for begin, end in pairwise(cut):
                code = self.function(*pointers, *sizes, ctypes.c_int64(begin), ctypes.c_int64(end))
                if code != 0:
                    return f"it returned {code}"
            for number, name in enumerate(self.job.names):
                for guarded in {(*tensors, *outputs)[number], (*packed, *outputs)[number]}:
                    if problem := guarded.problem(name):
                        return problem
            results.append([output.bytes() for output in outputs])
        if any(result != results[0] for result in results):
            return "cut in two, its work gives another result"
        if self.job.inplace and (problem := self._in_place(call, results[0])):
            return problem
        for index, path in enumerate(call.files.results):
            path.write_bytes(results[0][index])
        return ""

    def _packed(
        self, call: GuardedCall, tensors: list[Guarded], at_end: bool
    ) -> tuple[list[Guarded], str]:
        """Return the inputs as the kernel takes them, and what is wrong with packed ones."""
        found = list(tensors)
        pairs = zip(self.job.packs, self.packers, call.packs, strict=True)
        for (index, _), function, workspace in pairs:
            # It begins at a line, as in a session.
            made = Guarded(None, -(-workspace.size // _LINE) * _LINE, at_end=at_end)
            arguments: list[Any] = [
                ctypes.c_void_p(tensors[index].address),
                ctypes.c_void_p(made.address),
            ]
            arguments += [ctypes.c_int64(size) for size in (*workspace.sizes, 0, workspace.units)]
            if workspace.size and workspace.units and function(*arguments):
                return found, "packing an input failed"
            if made.bytes()[workspace.size :].strip(bytes([_UNWRITTEN])) or made.problem(""):
                return found, f"it writes beside the packed {self.job.names[index]}"
            made.content = made.bytes()  # from now on an input
            found[index] = made
        return found, ""

    def _in_place(self, call: GuardedCall, want: list[bytes]) -> str:
        """Return what is wrong where outputs lie in inputs, empty if nothing is."""
        inputs = [path.read_bytes() for path in call.files.inputs]
        tensors = [Guarded(content, len(content), at_end=True) for content in inputs]
        outputs = [Guarded(None, size, at_end=True) for size in call.files.outputs]
        for source, result in self.job.inplace:
            outputs[result] = tensors[source]
        packed, _ = self._packed(call, tensors, at_end=True)
        pointers = [ctypes.c_void_p(guarded.address) for guarded in (*packed, *outputs)]
        sizes = [ctypes.c_int64(size) for size in call.sizes]
        self.function(*pointers, *sizes, ctypes.c_int64(0), ctypes.c_int64(call.units))
        if [output.bytes() for output in outputs] != want:
            return "in place, it gives another result"
        return ""

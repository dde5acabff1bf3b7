"""Where the C++ session of a Python session is.

ONNX Runtime's Python package keeps it in an object of its own class, whose layout is documented
nowhere. It is found by its type: every C++ object with virtual functions leads to the name of its
class (Itanium C++ ABI, 2.9.5 "RTTI layout"). At which offset it lies is learned from sessions of
our own. These are distinguished by how many inputs they have, so that a session that merely lies
near in memory is not taken for it. All reading goes through the kernel: an address that is
none is an error there, and not a crash here.

Tried with onnxruntime 1.24.1, 1.27.0 and 1.31.1 on Linux x86-64, CPython 3.11 (2026-11).
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from ortkit.runtime.native_library import NotAvailableError, runtime_library
from ortkit.runtime.ort import import_onnxruntime

if TYPE_CHECKING:
    import onnxruntime

_CLASS = b"N11onnxruntime16InferenceSessionE\0"
_WORD = struct.Struct("<Q")
#: How far into the object of the Python package it is looked for; it is at 992 in 1.31.1.
_REACH = 4096
#: A pybind11 instance: reference count, type, then the address of what it holds.
_HEADER = 16
_LOWEST = 1 << 16
#: Inputs of the sessions that the offset is learned from.
_COUNTS = (61, 89)


def session_address(session: onnxruntime.InferenceSession) -> int:
    """Return the address of the C++ session, which is what the C API calls OrtSession.

    Raises:
        NotAvailableError: It is not where other sessions have it.
    """
    with _Memory() as memory:
        holder = memory.word(_native(session) + _HEADER)
        address = memory.word(holder + _offset())
        if not memory.is_session(address):
            raise NotAvailableError("this session is not where ONNX Runtime has others")
    _check_inputs(address, len(session.get_inputs()))
    return address


@cache
def _offset() -> int:
    """Return where in its holder a session lies, learned from two whose inputs are counted."""
    library = runtime_library()
    candidates: set[int] | None = None
    for count in _COUNTS:
        session = _session_of(count)
        with _Memory() as memory:
            holder = memory.word(_native(session) + _HEADER)
            found = {
                offset
                for offset, address in memory.words(holder, _REACH)
                if memory.is_session(address) and library.input_count(address) == count
            }
        candidates = found if candidates is None else candidates & found
    if not candidates:
        version = import_onnxruntime().__version__
        raise NotAvailableError(
            f"onnxruntime {version} keeps its sessions where they were not found"
        )
    return min(candidates)


def _native(session: Any) -> int:
    inner = getattr(session, "_sess", None)
    if inner is None:
        raise NotAvailableError("the Python session holds no C++ session (is it closed?)")
    return id(inner)


def _check_inputs(address: int, count: int) -> None:
    found = runtime_library().input_count(address)
    if found != count:
        raise NotAvailableError(
            f"what was found in place of the session takes {found} inputs, and the session {count}"
        )


def _session_of(count: int) -> onnxruntime.InferenceSession:
    """Make a session with this many inputs."""
    import onnx.parser

    onnxruntime = import_onnxruntime()
    inputs = ", ".join(f"float[1] x{i}" for i in range(count))
    nodes = f"y = Sum ({', '.join(f'x{i}' for i in range(count))})"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[1] y) {{ {nodes} }}'
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )


class _Memory:
    """This process's memory, read through the kernel; what is not mapped reads as 0."""

    def __enter__(self) -> _Memory:
        try:
            self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NotAvailableError(
                f"the process may not read its own memory: {error.strerror}",
                where="/proc/self/mem",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, address: int, count: int) -> bytes:
        """Return up to `count` bytes, none where nothing is mapped."""
        if not _LOWEST <= address < 1 << 47:
            return b""
        try:
            return os.pread(self._file, count, address)
        except OSError:
            return b""

    def word(self, address: int) -> int:
        """Return the 8 bytes there as a number, 0 if there are none."""
        content = self.read(address, _WORD.size)
        return int(_WORD.unpack(content)[0]) if len(content) == _WORD.size else 0

    def words(self, address: int, count: int) -> list[tuple[int, int]]:
        """Return (offset, word) for the words of `count` bytes, as far as they are mapped."""
        content = self.read(address, count)
        whole = content[: len(content) // _WORD.size * _WORD.size]
        return [(i * _WORD.size, found) for i, (found,) in enumerate(_WORD.iter_unpack(whole))]

    def is_session(self, address: int) -> bool:
        """Say whether the class of the object there is onnxruntime's InferenceSession."""
        if address % _WORD.size:
            return False
        table = self.word(address)
        # Before an object's table of functions stands its type: a table, then its name.
        name = self.word(self.word(table - _WORD.size) + _WORD.size) if table else 0
        return self.read(name, len(_CLASS)) == _CLASS

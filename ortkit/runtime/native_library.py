"""The runtime library: the live C API of ONNX Runtime, where its Python package has no answer."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ortkit.errors import UserError
from ortkit.runtime.ort import import_onnxruntime

RUNTIME_LIBRARY = "libortkit_runtime.so"
_ROOM = 4096
#: custom_ops/native/runtime/runtime.cc
_NO_RUNTIME, _NO_ROOM = 1, 3


class NotAvailableError(UserError):
    """A number that cannot be had here; the message says why."""


class RuntimeLibrary:
    """Questions to a session that only ONNX Runtime's C API answers.

    Addresses of sessions are taken as they are: a wrong one ends the process.
    """

    def __init__(self, path: Path) -> None:
        """Load the library and let ONNX Runtime hand it its API.

        Raises:
            NotAvailableError: It does not load, or ONNX Runtime is too old.
        """
        onnxruntime = import_onnxruntime()
        try:
            # First: ONNX Runtime closes its own handle together with the options.
            self._library = ctypes.CDLL(str(path))
            onnxruntime.SessionOptions().register_custom_ops_library(str(path))
        except Exception as error:  # onnxruntime's own classes, which share no base
            raise NotAvailableError(f"{path.name} does not load: {error}") from error
        self._statistics = self._library.ortkit_arena_statistics
        self._statistics.argtypes = (
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p,
            ctypes.c_size_t,
        )  # fmt: skip
        self._input_count = self._library.ortkit_session_input_count
        self._input_count.argtypes = (
            ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_char_p, ctypes.c_size_t,
        )  # fmt: skip

    @property
    def native(self) -> ctypes.CDLL:
        """The library itself, for what in it needs no ONNX Runtime."""
        return self._library

    def input_count(self, session: int) -> int:
        """Return how many inputs the session at this address takes.

        Raises:
            NotAvailableError: ONNX Runtime refuses the question.
        """
        count, answer = ctypes.c_size_t(), ctypes.create_string_buffer(_ROOM)
        outcome = self._input_count(session, ctypes.byref(count), answer, _ROOM)
        _check(outcome, answer)
        return count.value

    def arena_statistics(self, session: int, memory: str, device: int, use: int) -> dict[str, int]:
        """Return what an arena counts, by the names that ONNX Runtime gives; empty if it is none.

        Args:
            session: Address of an OrtSession.
            memory: As ONNX Runtime calls it: "Cpu", "Cuda", "CudaPinned".
            device: Number of the device.
            use: 0 what kernels compute in, -1 what the host reads.

        Raises:
            NotAvailableError: The session has no such memory.
        """
        answer = ctypes.create_string_buffer(_ROOM)
        outcome = self._statistics(session, memory.encode(), device, use, answer, _ROOM)
        _check(outcome, answer)
        pairs = (line.partition("=") for line in answer.value.decode().splitlines())
        return {name: int(number) for name, _, number in pairs}


def _check(outcome: int, answer: ctypes.Array[ctypes.c_char]) -> None:
    if outcome == _NO_RUNTIME:
        raise NotAvailableError("ONNX Runtime has not handed over its API")
    if outcome == _NO_ROOM:
        raise NotAvailableError("the allocator counts more than there is room for")
    if outcome:
        raise NotAvailableError(answer.value.decode(errors="replace"))


@cache
def runtime_library() -> RuntimeLibrary:
    """Return the one runtime library of this process.

    Raises:
        NotAvailableError: It is not installed or does not load.
    """
    if find_spec("ortkit.custom_ops") is not None:
        for folder in import_module("ortkit.custom_ops").__path__:
            path = Path(folder) / RUNTIME_LIBRARY
            if path.is_file():
                return RuntimeLibrary(path)
    raise NotAvailableError(
        f"the native part of ortkit ({RUNTIME_LIBRARY}) is not installed", fix="pip install ortkit"
    )

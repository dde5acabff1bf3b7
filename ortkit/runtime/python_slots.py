"""Ops of onnxruntime-extensions whose types and code are set when a session needs them.

It keeps its Python ops in one growing array and hands addresses in it to sessions. So one that is
declared after a session was made breaks that session (0.15.2: memory that was freed is read). All
that ortkit ever uses are therefore declared at once, before the first such session.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ortkit.errors import MissingDependencyError, UserError

#: Where they are in the models that sessions load.
DOMAIN = "ortkit.python"
#: Each costs a session with Python ops some 50 us to load.
COUNT = 512
#: numpy's names to what onnxruntime-extensions calls element types, as far as it passes them.
_TYPES = {
    "float32": "dt_float", "float64": "dt_double", "int8": "dt_int8", "uint8": "dt_uint8",
    "int16": "dt_int16", "uint16": "dt_uint16", "int32": "dt_int32", "uint32": "dt_uint32",
    "int64": "dt_int64", "bool": "dt_bool",
}  # fmt: skip


class Slots:
    """The ops that there are, and which of them are free."""

    def __init__(self) -> None:
        """Begin without; they are declared when the first is taken."""
        self._lock = threading.Lock()
        self._ops: list[Any] = []
        self._free: list[int] = []

    def take(self, code: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> int:
        """Let a free op run `code` on tensors of these element types; returns its number.

        Raises:
            MissingDependencyError: onnxruntime-extensions is not installed.
            UserError: There are no free ones.
        """
        with self._lock:
            if not self._ops:
                self._declare()
            if not self._free:
                raise UserError(
                    f"the sessions of one process have at most {COUNT} nodes of ops in Python",
                    fix="close some, or build a library with `ortkit ops build`",
                )
            number = self._free.pop()
            kinds = _module().PyCustomOpDef
            op = self._ops[number]
            op.body = code
            op._nativedef.input_types = [getattr(kinds, _TYPES[item]) for item in inputs]
            op._nativedef.output_types = [getattr(kinds, _TYPES[output]) for output in outputs]
            return number

    def release(self, numbers: Sequence[int]) -> None:
        """Take ops back whose sessions are gone."""
        with self._lock:
            for number in numbers:
                self._ops[number].body = None
            self._free.extend(numbers)

    def _declare(self) -> None:
        module = _module()
        kinds = [module.PyCustomOpDef.dt_float]
        for number in range(COUNT):
            name = f"{DOMAIN}::{op_type(number)}"
            create = module._ocos.Opdef.create
            self._ops.append(create(None, op_type=name, inputs=kinds, outputs=kinds))
        self._free = list(reversed(range(COUNT)))


SLOTS = Slots()


def op_type(number: int) -> str:
    """Return what an op is called."""
    return f"Op{number}"


def passes(dtypes: Sequence[str]) -> bool:
    """Say whether tensors of these element types get to Python and back."""
    return all(dtype in _TYPES for dtype in dtypes)


def python_library() -> Path:
    """Return the library that runs Python ops.

    Raises:
        MissingDependencyError: onnxruntime-extensions is not installed.
    """
    return Path(str(_module().get_library_path()))


def _module() -> Any:
    if importlib.util.find_spec("onnxruntime_extensions") is None:
        raise MissingDependencyError(
            "ops that are defined in Python need onnxruntime-extensions",
            fix="pip install onnxruntime-extensions, or load a library of `ortkit ops build`",
        )
    return importlib.import_module("onnxruntime_extensions")

"""What a session's inputs and outputs are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

#: ONNX Runtime's names of element types (1.31.1) to numpy's.
DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bool": np.dtype(np.bool_),
    "string": np.dtype(object),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
#: Those that ONNX Runtime's Python binding neither takes as arrays nor gives back as such.
ONNX_CODES = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
}
_TENSOR = re.compile(r"tensor\((\w+)\)")
_HOLDS_TENSORS = re.compile(r"(?:optional\()?(seq\()?(tensor\(\w+\))\)+")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a session."""

    name: str
    type: str
    """As ONNX Runtime writes it: `tensor(float)`, `seq(tensor(int64))`."""
    shape: tuple[int | str | None, ...] | None
    """A size's name where it has one, None for one that has none; None if no rank is known."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type of the elements, None if this is no tensor or numpy has no such type."""
        found = _TENSOR.fullmatch(self.type)
        return None if found is None else DTYPES.get(found[1])

    @property
    def onnx_code(self) -> int | None:
        """The element type's number where only an `OrtValue` can hold it, else None."""
        found = _TENSOR.fullmatch(self.type)
        return None if found is None else ONNX_CODES.get(found[1])

    @property
    def is_tensor(self) -> bool:
        return _TENSOR.fullmatch(self.type) is not None

    @property
    def is_sequence(self) -> bool:
        """Whether it is a sequence of tensors, perhaps one that may be left out."""
        found = _HOLDS_TENSORS.fullmatch(self.type)
        return found is not None and found[1] is not None

    @property
    def element(self) -> TensorSpec | None:
        """Each tensor of a sequence, or that of an optional; None if there are no such."""
        found = _HOLDS_TENSORS.fullmatch(self.type)
        return None if found is None else TensorSpec(self.name, found[2], None)

    @property
    def is_optional(self) -> bool:
        """Whether it may be left out."""
        return self.type.startswith("optional")

    def __str__(self) -> str:
        found = _TENSOR.fullmatch(self.type)
        kind = {"float": "float32", "double": "float64"}.get(
            found[1] if found else "", found[1] if found else self.type
        )
        if self.shape is None:
            return f"{self.name}: {kind}"
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name}: {kind}[{sizes}]"


def specs_of(arguments: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Read what `InferenceSession.get_inputs` or `get_outputs` gives."""
    found = []
    for argument in arguments:
        shape = argument.shape if argument.type.startswith("tensor") else None
        # A scalar and an unknown rank are both []; checks then leave the rank alone.
        sizes = None if not shape else tuple(size if size != "" else None for size in shape)
        found.append(TensorSpec(argument.name, argument.type, sizes))
    return tuple(found)


def signature(inputs: Iterable[TensorSpec]) -> str:
    """Return what a model takes, on one line."""
    return ", ".join(str(spec) for spec in inputs) or "no inputs"

"""One session, run on tensors that lie where the caller wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.verify.kernel_inputs import is_floating, numpy_type
from ortkit.verify.kernel_library import Kernels

#: Bytes before and behind a result that a kernel must not touch, and what they and the result
#: hold before: no usual number of any type.
_GUARD, _POISON = 64, 0xA5


class OutsideError(Exception):
    """A kernel wrote outside of its results."""


class Runner:
    """A session of a model of one kernel."""

    def __init__(
        self,
        ort: ModuleType,
        model: str,
        custom_ops: Sequence[str],
        kernels: Kernels,
        *,
        threads: int,
    ) -> None:
        """Open it, with ONNX Runtime's optimizations off."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry(*kernels.target)
        for library in filter(None, [*custom_ops, kernels.library]):
            options.register_custom_ops_library(library)
        self._session: Any = ort.InferenceSession(
            model, options, providers=kernels.providers, enable_fallback=0
        )
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = 4

    def run(
        self, inputs: Sequence[np.ndarray], into: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Run it.

        Args:
            inputs: Read where they lie.
            into: Where results are written; else ONNX Runtime allocates them.

        Raises:
            Exception: ONNX Runtime's.
        """
        binding = self._session.io_binding()
        for name, array in zip(self._inputs, inputs, strict=True):
            binding.bind_input(
                name, "cpu", 0, _element_type(array), list(array.shape), array.ctypes.data
            )
        for index, name in enumerate(self._outputs):
            if into is None:
                binding.bind_output(name)
                continue
            array = into[index]
            binding.bind_output(
                name, "cpu", 0, _element_type(array), list(array.shape), array.ctypes.data
            )
        self._session.run_with_iobinding(binding, self._run_options)
        return list(into) if into is not None else [_copied(v) for v in binding.get_outputs()]


class Operand:
    """An input of a kernel: its values, and copies of it where a run wants them."""

    def __init__(self, array: np.ndarray, *, is_constant: bool = False) -> None:
        self.array = array
        self.is_constant = is_constant
        self._copies: dict[bool, np.ndarray] = {}

    @cached_property
    def wide(self) -> np.ndarray:
        """The values, floats in float64."""
        return self.array.astype(np.float64) if is_floating(self.array.dtype) else self.array

    def placed(self, *, is_aligned: bool) -> np.ndarray:
        """Return a copy that begins at a multiple of 64 bytes, or one element behind that."""
        if is_aligned not in self._copies:
            x = self.array
            self._copies[is_aligned] = _placed(x.shape, x.dtype, is_aligned=is_aligned)[1]
            self._copies[is_aligned][...] = x
        return self._copies[is_aligned]


def guarded(
    session: Runner,
    operands: Sequence[Operand],
    shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    *,
    is_aligned: bool,
) -> list[np.ndarray]:
    """Run a session on copies of its inputs, into memory with guards around it.

    Args:
        session: The session.
        operands: Its inputs.
        shapes: Shape and type of each result.
        is_aligned: Where tensors begin; see `Operand.placed`.

    Raises:
        OutsideError: It wrote outside of its results, or into its inputs.
        Exception: ONNX Runtime's.
    """
    placed = [operand.placed(is_aligned=is_aligned) for operand in operands]
    made = [_placed(shape, dtype, is_aligned=is_aligned) for shape, dtype in shapes]
    results = session.run(placed, [view for _, view in made])
    for index, (memory, view) in enumerate(made):
        start = view.ctypes.data - memory.ctypes.data
        before, behind = memory[:start], memory[start + view.nbytes :]
        if (before != _POISON).any() or (behind != _POISON).any():
            raise OutsideError(f"it writes outside of output {index}")
    for index, (copy, operand) in enumerate(zip(placed, operands, strict=True)):
        if not operand.is_constant and not same_bytes(copy, operand.array):
            raise OutsideError(f"it writes into input {index}")
    return results


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether two arrays of one shape and type hold the same bits."""
    return np.array_equal(_bytes(left), _bytes(right))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _placed(
    shape: tuple[int, ...], dtype: np.dtype[Any], *, is_aligned: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return memory, and an array in it."""
    size = prod(shape) * dtype.itemsize
    memory = np.full(size + 3 * _GUARD, _POISON, np.uint8)
    start = _GUARD + -memory.ctypes.data % _GUARD + (0 if is_aligned else dtype.itemsize)
    return memory, memory[start : start + size].view(dtype).reshape(shape)


def _element_type(array: np.ndarray) -> int:
    return _ELEMENT_TYPES[array.dtype]


_ELEMENT_TYPES: dict[np.dtype[Any], int] = {
    numpy_type(code): code for code in (*range(1, 8), *range(9, 14), 16, 17, 19)
}


def _copied(value: Any) -> np.ndarray:
    """Return a copy of a tensor of any type."""
    dtype, size = numpy_type(value.element_type()), value.tensor_size_in_bytes()
    if value.device_name() != "cpu":
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, dtype).reshape(value.shape())

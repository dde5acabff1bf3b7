"""Functions over flat arrays, written with the emitter and called without ONNX Runtime."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.region.dtypes import load, memory_dtype, store_value
from ortkit.kernels.tvm.build import write_object
from ortkit.kernels.tvm.emit import Emitter, Expr
from ortkit.targets.cpu import native_level

Array = np.ndarray
Write = Callable[[Emitter, Sequence[Expr]], Expr]
Function = Callable[[Emitter, Expr], Expr]
WIDTH = 16


@dataclass(frozen=True)
class Elementwise:
    """`name`(inputs..., output, n): `write` at each of n elements; dtypes as ONNX has them."""

    name: str
    inputs: tuple[str, ...]
    output: str
    write: Write


def unary_kernel(name: str, function: Function) -> Elementwise:
    """A function of one float32."""
    return Elementwise(name, ("float32",), "float32", lambda e, x: function(e, x[0]))


def emit(kernel: Elementwise) -> Any:
    """The kernel as a TIR function: full vectors, then one element at a time."""
    e = Emitter(kernel.name)
    dtypes = (*kernel.inputs, kernel.output)
    *inputs, output = [e.pointer(f"p{i}", memory_dtype(dtype)) for i, dtype in enumerate(dtypes)]
    size = e.size("n")

    def point(at: Expr) -> None:
        operands = [
            e.share(load(e, buffer[at], dtype))
            for buffer, dtype in zip(inputs, kernel.inputs, strict=True)
        ]
        e.store(output, store_value(e, kernel.write(e, operands), kernel.output), at)

    vectors = e.tir.floordiv(size, e.i64(WIDTH))
    with e.loop(vectors) as index, e.vector(WIDTH) as lane:
        point(index * e.i64(WIDTH) + lane)
    with e.loop(size - vectors * e.i64(WIDTH)) as index:
        point(vectors * e.i64(WIDTH) + index)
    return e.function()


class Library:
    """Compiled kernels, called on numpy arrays."""

    def __init__(
        self, kernels: Sequence[Elementwise], folder: Path, level: str | None = None
    ) -> None:
        objects = []
        for kernel in kernels:
            objects.append(folder / f"{kernel.name}.o")
            write_object(emit(kernel), level or native_level(), objects[-1])
        self.path = folder / "elementwise.so"
        command = [*find_linker(), "-shared", "-o", str(self.path), *map(str, objects)]
        subprocess.run(command, check=True, capture_output=True)
        self._library = ctypes.CDLL(str(self.path))
        self._kernels = {kernel.name: kernel for kernel in kernels}

    def function(self, name: str) -> Any:
        """The C function of that name."""
        return getattr(self._library, name)

    def __call__(self, name: str, *inputs: Array, out: Array | None = None) -> Array:
        """Run kernel `name` on arrays of equal size."""
        kernel = self._kernels[name]
        arrays = [np.ascontiguousarray(array) for array in inputs]
        assert [array.dtype.name for array in arrays] == list(kernel.inputs)
        size = arrays[0].size
        assert all(array.size == size for array in arrays)
        result = np.empty(size, numpy_dtype(kernel.output)) if out is None else out
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, result)]
        status = self.function(name)(*pointers, ctypes.c_int64(size))
        assert status == 0
        return result


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype by ONNX's spelling; bfloat16 as ml_dtypes has it."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

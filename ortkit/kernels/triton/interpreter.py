"""Triton's interpreter on memory of this process, for processes with TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from ortkit.kernels.triton.interpreter_types import share_types
from ortkit.kernels.triton.launches import Launch, Passed
from ortkit.kernels.triton.unsigned import interpretable

_DESCRIPTOR = re.compile(r"tensordesc<(?P<type>\w+)\[(?P<box>[^]]*)\]")


class Tensor:
    """As much of a tensor as the interpreter asks for: memory at some address."""

    def __init__(self, address: int, type_: str) -> None:
        """Describe memory; the type is a pointer's in Triton's signatures, such as `*fp32`."""
        from triton.language import str_to_ty

        self.address, self.dtype = address, str_to_ty(type_, None).element_ty

    def data_ptr(self) -> int:
        """Return the address."""
        return self.address

    def untyped_storage(self) -> Tensor:
        """Return what holds the memory."""
        return self

    def cpu(self) -> Tensor:
        """Return it where the interpreter reads it."""
        return self

    def new_empty(self, *_: object, **__: object) -> Tensor:
        """Return what is then set to the storage."""
        return self

    def set_(self, *_: object) -> None:
        """Keep the memory."""

    def copy_(self, _: object) -> None:
        """Leave the memory, which is written in place."""

    def storage_offset(self) -> int:
        """Return where it begins in its storage."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Return nothing: kernels see an address."""
        return ()

    def stride(self) -> tuple[int, ...]:
        """Return nothing: kernels see an address."""
        return ()


class Interpreter:
    """Runs launches one after the other; loads each module once."""

    def __init__(self, folder: Path) -> None:
        """Repair Triton's interpreter, and say where modules may be written."""
        repair()
        self._folder = folder
        self._known: dict[str, ModuleType] = {}

    def launch(self, launch: Launch, addresses: Sequence[int]) -> None:
        """Run one launch.

        Args:
            launch: In plain Triton; Gluon has no interpreter.
            addresses: Of all tensors, then of all blocks of scratch memory.

        Raises:
            Exception: The kernel's own, and the interpreter's for what it does not support.
        """
        function = getattr(module_of(launch.text, self._folder, self._known), launch.entry)
        arguments = [_argument(argument, addresses) for argument in launch.arguments]
        with np.errstate(all="ignore"):
            function[launch.grid](*arguments)


def _argument(passed: Passed, addresses: Sequence[int]) -> Any:
    if passed.type.startswith("*"):
        return Tensor(addresses[passed.value], passed.type)
    if not passed.type.startswith("tensordesc"):
        return passed.value
    found = _DESCRIPTOR.match(passed.type)
    if found is None:
        raise NotImplementedError(f"a parameter of type {passed.type}")
    tensor = Tensor(addresses[passed.value] + passed.first, f"*{found['type']}")
    box = [int(side) for side in found["box"].split(",")]
    return descriptor(tensor, passed.dims, passed.strides, box)


def descriptor(
    tensor: Tensor, dims: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> Any:
    """Return what the interpreter takes for a tensor map; strides in bytes."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    size = tensor.dtype.primitive_bitwidth // 8
    elements = [*(stride // size for stride in strides), 1]
    return TensorDescriptor(tensor, list(dims), elements, list(box))


def module_of(text: str, folder: Path, known: dict[str, ModuleType]) -> ModuleType:
    """Return the module of a source; Triton reads it again from its file."""
    if text not in known:
        path = folder / f"kernel{len(known)}.py"
        path.write_text(interpretable(text), "utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        known[text] = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = known[text]
        spec.loader.exec_module(known[text])
    return known[text]


@cache
def repair() -> None:
    """Make the interpreter round as GPUs do, keep bools that fill a tile, know narrow floats.

    Its own conversions lose denormal numbers and carries; a comparison of two numbers it takes
    for a float, and bfloat16 for integers of its bits. It also prepares the language again in
    each call of a function (6 ms), and computes sums of integers a second time in 64 bits.
    Once for a process.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    share_types()
    named = {tl.bfloat16: ml_dtypes.bfloat16, tl.float8e4nv: ml_dtypes.float8_e4m3fn}

    def converted(data: Any, source: Any, target: Any, _rounding: object) -> Any:
        kinds = [
            np.dtype(named.get(item) or item.name.replace("fp", "float"))
            for item in (source, target)
        ]
        found = data.view(kinds[0])
        if target == tl.float8e4nv:  # what is beyond the range becomes its end
            found = np.clip(found, -448, 448)
        return found.astype(kinds[1]).view(f"uint{kinds[1].itemsize * 8}")

    def splat(_builder: object, kind: Any, scalar: Any) -> Any:
        data = np.full(kind.shape.values, scalar.data)
        return interpreter.TensorHandle(data, tl.int1 if data.dtype == bool else scalar.dtype)

    def floats(one: Any, kind: np.dtype[Any]) -> Any:
        narrow = named.get(one.dtype.scalar)
        return np.asarray(one.data if narrow is None else one.data.view(narrow), kind)

    def dot(_builder: object, a: Any, b: Any, d: Any, _precision: object, _most: object) -> Any:
        kind = d.data.dtype
        product = floats(a, kind) @ floats(b, kind) + d.data
        return interpreter.TensorHandle(product, d.dtype.scalar)

    plain = interpreter.InterpreterBuilder.binary_op

    def binary(builder: Any, a: Any, b: Any, operator: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16 or b.dtype.scalar != tl.bfloat16:
            return plain(builder, a, b, operator)
        found = operator(*(one.data.view(ml_dtypes.bfloat16) for one in (a, b)))
        if found.dtype == bool:
            return interpreter.TensorHandle(found, tl.int1)
        return interpreter.TensorHandle(found.astype(ml_dtypes.bfloat16).view(np.uint16),
                                        a.dtype.scalar)  # fmt: skip

    used: dict[object, list[Any]] = {}

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn not in used:
            there = function.fn.__globals__.values()
            used[function.fn] = [one for one in (tl, tl.core) if one in there]
        if any(tl.core.is_builtin(one.load) for one in used[function.fn]):
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    interpreter.InterpretedFunction.__call__ = call
    interpreter._convert_float = converted
    interpreter.InterpreterBuilder.binary_op = binary
    interpreter.InterpreterBuilder.create_splat = splat
    interpreter.InterpreterBuilder.create_dot = dot

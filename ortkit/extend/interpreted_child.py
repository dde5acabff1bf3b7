"""Runs a Triton kernel in its interpreter, with tensors between pages that nobody may touch.

A process of its own, with TRITON_INTERPRET=1. Reads a job as JSON from stdin: a folder, names of
tensors, and for each call files with the bytes of its inputs, the outputs' sizes in bytes, the
module's text, its function, the grid and the arguments. Answers as `guarded_child` does.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from ortkit.extend.guarded_child import Guarded


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


def main() -> None:
    """Do all calls of the job."""
    job = json.load(sys.stdin)
    repair()
    known: dict[str, ModuleType] = {}
    with np.errstate(all="ignore"):
        for number, call in enumerate(job["calls"]):
            for at_end in (False, True):
                print(f"begin {number}", flush=True)  # noqa: T201  to the starting process
                problem = call["problem"] or _problem(job, call, known, at_end=at_end)
                print(f"end {number} {problem}", flush=True)  # noqa: T201  to the starting process


def _problem(
    job: dict[str, Any], call: dict[str, Any], known: dict[str, ModuleType], *, at_end: bool
) -> str:
    """Return what is wrong with one call, empty if nothing is."""
    contents = [Path(path).read_bytes() for path in call["inputs"]]
    tensors = [Guarded(content, len(content), at_end=at_end) for content in contents]
    outputs = [Guarded(None, size, at_end=at_end) for size in call["outputs"]]
    places = [*tensors, *outputs]
    arguments = [_argument(one, places, contents) for one in call["arguments"]]
    if all(call["grid"]):
        function = getattr(module_of(call["text"], Path(job["folder"]), known), call["entry"])
        try:
            function[tuple(call["grid"])](*arguments)
        except Exception as error:  # noqa: BLE001  the user's code, and the interpreter's own
            return " ".join(f"it raised {type(error).__name__}: {error}".split())
    for name, one in zip(job["names"], places, strict=True):
        if problem := one.problem(name):
            return problem
    for path, one in zip(call["results"], outputs, strict=True):
        Path(path).write_bytes(one.bytes())
    return ""


def _argument(one: list[Any], places: list[Guarded], contents: list[bytes]) -> Any:
    kind, type_, value, *map_ = one
    if kind == "tensor":
        return Tensor(places[value].address, type_)
    if kind == "map":
        return _descriptor(Tensor(places[value].address, type_), *map_)
    if kind == "number":
        return struct.unpack("<f" if type_ == "fp32" else "<q", contents[value])[0]
    return value


def _descriptor(tensor: Tensor, dims: list[int], strides: list[int], box: list[int]) -> Any:
    """Return what the interpreter takes for a map of a tensor; strides in bytes."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    size = tensor.dtype.primitive_bitwidth // 8
    return TensorDescriptor(tensor, dims, [*(one // size for one in strides), 1], box)


def module_of(text: str, folder: Path, known: dict[str, ModuleType]) -> ModuleType:
    """Return the module of a source; Triton reads it again from its file."""
    if text not in known:
        path = folder / f"kernel{len(known)}.py"
        path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        known[text] = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = known[text]
        spec.loader.exec_module(known[text])
    return known[text]


def repair() -> None:
    """Make the interpreter round as GPUs do, keep bools that fill a tile, know narrow floats.

    Its own conversions lose denormal numbers and carries; a comparison of two numbers it takes
    for a float, and bfloat16 for integers of its bits.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    named = {tl.bfloat16: ml_dtypes.bfloat16, tl.float8e4nv: ml_dtypes.float8_e4m3fn}

    def converted(data: Any, source: Any, target: Any, _rounding: object) -> Any:
        kinds = [
            np.dtype(named.get(one) or one.name.replace("fp", "float")) for one in (source, target)
        ]
        found = data.view(kinds[0])
        if target == tl.float8e4nv:  # what is beyond the range becomes its end
            found = np.clip(found, -448, 448)
        return found.astype(kinds[1]).view(f"uint{kinds[1].itemsize * 8}")

    def splat(_builder: object, kind: Any, scalar: Any) -> Any:
        data = np.full(kind.shape, scalar.data)
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

    interpreter._convert_float = converted
    interpreter.InterpreterBuilder.binary_op = binary
    interpreter.InterpreterBuilder.create_splat = splat
    interpreter.InterpreterBuilder.create_dot = dot


if __name__ == "__main__":
    main()

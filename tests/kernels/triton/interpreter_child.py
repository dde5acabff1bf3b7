"""Runs kernels' sources by Triton's interpreter, on numpy arrays; started by `interpreter.py`.

Reads pickled launches from standard input, one after the other, and answers each with the tensors
that it was given, or with what went wrong.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import gluon_machine
import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_TYPES = {
    "*u8": tl.uint8, "*u16": tl.uint16, "*u32": tl.uint32, "*u64": tl.uint64,
    "*i8": tl.int8, "*i16": tl.int16, "*i32": tl.int32, "*i64": tl.int64,
    "*fp16": tl.float16, "*bf16": tl.bfloat16, "*fp32": tl.float32, "*fp64": tl.float64,
}  # fmt: skip


class Tensor:
    """As much of a tensor as the interpreter asks for: bytes at some address."""

    def __init__(self, data: np.ndarray, address: int, type_: str) -> None:
        self.data, self.address, self.dtype = data, address, _TYPES[type_]

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def new_empty(self, *_: object, **__: object) -> Tensor:
        return self

    def set_(self, *_: object) -> None:
        pass

    def copy_(self, _: object) -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return ()

    def stride(self) -> tuple[int, ...]:
        return ()


def module_of(text: str, folder: Path, known: dict[str, ModuleType]) -> ModuleType:
    """The module of a source; Triton reads it again from its file."""
    if text not in known:
        path = folder / f"kernel{len(known)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        known[text] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(known[text])
    return known[text]


def converted(data: np.ndarray, source: Any, target: Any, _rounding: object) -> np.ndarray:
    """Floating types as bits of unsigned integers, rounded as GPUs round them.

    The interpreter's own loses denormal numbers, and carries of the rounding.
    """
    named = {tl.bfloat16: ml_dtypes.bfloat16}
    kinds = [
        np.dtype(named.get(one) or one.name.replace("fp", "float")) for one in (source, target)
    ]
    return data.view(kinds[0]).astype(kinds[1]).view(f"uint{kinds[1].itemsize * 8}")


def splat(_builder: object, kind: Any, scalar: Any) -> Any:
    """A tile of one number; a comparison's bool, which the interpreter's own takes for a float."""
    data = np.full(kind.shape, scalar.data)
    return interpreter.TensorHandle(data, tl.int1 if data.dtype == bool else scalar.dtype)


def dot(_builder: object, a: Any, b: Any, d: Any, _precision: object, _imprecise: object) -> Any:
    """A product of matrices plus a third; the interpreter's own takes bfloat16 for integers."""

    def floats(one: Any) -> np.ndarray:
        data = one.data.view(ml_dtypes.bfloat16) if one.dtype.scalar == tl.bfloat16 else one.data
        return np.asarray(data, d.data.dtype)

    return interpreter.TensorHandle(floats(a) @ floats(b) + d.data, d.dtype.scalar)


def main() -> None:
    """Answer until the input ends."""
    interpreter._convert_float = converted
    interpreter.InterpreterBuilder.create_splat = splat
    interpreter.InterpreterBuilder.create_dot = dot
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    known: dict[str, ModuleType] = {}
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        while True:
            try:
                job: dict[str, Any] = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            blocks: list[np.ndarray] = job["blocks"]
            answer: Any = blocks
            try:
                for launch in job["launches"]:
                    if launch["is_gluon"]:
                        gluon_machine.launch(
                            launch["text"], launch["entry"], launch["grid"], launch["arguments"],
                            blocks,
                        )  # fmt: skip
                        continue
                    function = getattr(
                        module_of(launch["text"], Path(name), known), launch["entry"]
                    )
                    arguments = [
                        Tensor(blocks[at[0]], blocks[at[0]].ctypes.data + at[1], type_)
                        if type_.startswith("*")
                        else at
                        for type_, at in launch["arguments"]
                    ]
                    function[launch["grid"]](*arguments)
            except Exception as error:  # noqa: BLE001  what goes wrong is the answer
                answer = f"{type(error).__name__}: {error}"
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    main()

"""Runs kernels' sources by Triton's interpreter, on numpy arrays; started by `interpreter.py`.

Reads pickled launches from standard input, one after the other, and answers each with the tensors
that it was given, or with what went wrong.
"""

from __future__ import annotations

import pickle
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import gluon_machine
import numpy as np

from ortkit.extend.interpreted_child import Tensor, module_of, repair


def main() -> None:
    """Answer until the input ends."""
    repair()
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
                        Tensor(blocks[at[0]].ctypes.data + at[1], type_)
                        if type_.startswith("*")
                        else _descriptor(type_, at, blocks)
                        if type_.startswith("tensordesc")
                        else at
                        for type_, at in launch["arguments"]
                    ]
                    function[launch["grid"]](*arguments)
            except Exception as error:  # noqa: BLE001  what goes wrong is the answer
                answer = f"{type(error).__name__}: {error}"
            pickle.dump(answer, answers)
            answers.flush()


def _descriptor(type_: str, at: tuple[Any, ...], blocks: list[np.ndarray]) -> Any:
    """A tensor that boxes are copied of: `at` is where it lies, its dims and strides in bytes."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    tensor, start, dims, strides = at
    found = re.match(r"tensordesc<(\D+)(\d+)\[([^]]*)\]>", type_)
    assert found is not None, type_
    base = Tensor(blocks[tensor].ctypes.data + start, f"*{found[1]}{found[2]}")
    size = int(found[2]) // 8
    box = [int(side) for side in found[3].split(",")]
    return TensorDescriptor(base, dims, [*(stride // size for stride in strides), 1], box)


if __name__ == "__main__":
    main()

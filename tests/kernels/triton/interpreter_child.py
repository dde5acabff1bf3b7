"""Runs kernels' sources by Triton's interpreter, on numpy arrays; started by `interpreter.py`.

Reads pickled launches from standard input, one after the other, and answers each with the tensors
that it was given, or with what went wrong.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gluon_machine
import numpy as np

from ortkit.kernels.triton.interpreter import Interpreter
from ortkit.kernels.triton.launches import Launch, Passed


def main() -> None:
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        interpreter = Interpreter(Path(name))
        while True:
            try:
                job: dict[str, Any] = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            blocks: list[np.ndarray] = job["blocks"]
            starts = [*job["starts"], *[0] * (len(blocks) - len(job["starts"]))]
            places = [
                block.ctypes.data + start for block, start in zip(blocks, starts, strict=True)
            ]
            answer: Any = blocks
            try:
                for launch in job["launches"]:
                    if launch.is_gluon:
                        _launch_gluon(launch, blocks, starts)
                    else:
                        interpreter.launch(launch, places)
            except Exception as error:  # noqa: BLE001  what goes wrong is the answer
                answer = f"{type(error).__name__}: {error}"
            pickle.dump(answer, answers)
            answers.flush()


def _launch_gluon(launch: Launch, blocks: list[np.ndarray], starts: Sequence[int]) -> None:
    def at(passed: Passed) -> Any:
        if passed.dims:
            return (
                passed.value,
                starts[passed.value] + passed.first,
                [*passed.dims],
                [*passed.strides],
            )
        return (
            (passed.value, starts[passed.value]) if passed.type.startswith("*") else passed.value
        )

    arguments = [(argument.type, at(argument)) for argument in launch.arguments]
    gluon_machine.launch(launch.text, launch.entry, launch.grid, arguments, blocks)


if __name__ == "__main__":
    main()

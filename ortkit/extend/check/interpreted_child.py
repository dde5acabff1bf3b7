"""Runs a Triton kernel in its interpreter, with tensors between pages that nobody may touch.

A process of its own, with TRITON_INTERPRET=1. Reads a job as JSON from stdin: a folder, names of
tensors, and for each call files with the bytes of its inputs, the outputs' sizes in bytes, the
module's text, its function, the grid and the arguments. Answers as `guarded_child` does.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.extend.check.guarded_child import Guarded
from ortkit.kernels.triton.interpreter import Tensor, descriptor, module_of, repair


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
        return descriptor(Tensor(places[value].address, type_), *map_)
    if kind == "number":
        return struct.unpack("<f" if type_ == "fp32" else "<q", contents[value])[0]
    return value


if __name__ == "__main__":
    main()

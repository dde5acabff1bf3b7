"""Saves over an earlier model and is killed at each file operation in turn; see test_save_kills.

Run as `python save_killer.py FOLDER`; prints what was found as JSON. It forks, so that it must
not have threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.optimization.result import Optimized

#: All that changes what lies in a folder, or in a file of it.
OPERATIONS = (
    "open", "write", "pwrite", "copy_file_range", "ftruncate", "fsync", "fchmod", "chmod", "close",
    "mkdir", "link", "symlink", "unlink", "remove", "rename", "replace", "rmdir",
)  # fmt: skip
SIZE = 1024
#: How old and new are stored, and whether the new model is the old one, changed.
CASES = {
    "external over external": (True, True, False),
    "whole over external": (True, False, False),
    "in place": (True, True, True),
}


def model(number: int) -> onnx.ModelProto:
    """Return a model that can be told from others by its weights."""
    tensors = [
        numpy_helper.from_array(np.full(SIZE, number + i, np.float32), f"w{i}") for i in (0, 10)
    ]
    nodes = [
        helper.make_node("Add", ["x", "w0"], ["a"]),
        helper.make_node("Mul", ["a", "w10"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        f"number {number}",
        [value("x", TensorProto.FLOAT, [SIZE])],
        [value("y", TensorProto.FLOAT, [SIZE])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def save(source: Path, path: Path, *, at: int | None = None) -> None:
    """Save a model with a library, as `optimize` does.

    Args:
        source: The model; what is read from `path` itself becomes model 2.
        path: Where to save it.
        at: The file operation to be killed at.
    """
    opened = open_model(source)
    if source == path:
        opened.graph.initializers["w0"].const_value = ir.tensor(np.full(SIZE, 2, np.float32))
        opened.graph.name = "number 2"
    report = cast(Any, SimpleNamespace(target="cpu"))
    made = Optimized(opened, source, report, cast(Any, None))
    if at is not None:
        kill_at(at)
    made.save(path)


def kill_at(number: int) -> None:
    """Kill this process instead of its file operation `number`, counted from here."""
    count = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return original(*arguments, **named)

        return call

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))


def forked(call: Callable[[], None]) -> int:
    """Return how a copy of this process ends that makes a call."""
    process = os.fork()
    if process == 0:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def fault(path: Path, in_place: bool) -> str:
    """Say what is wrong with what lies at `path`; empty if it is one whole model."""
    try:
        found = onnx.load(path)
    except Exception as error:  # noqa: BLE001
        return f"does not load: {error}"
    number = int(found.graph.name.split()[1])
    values = [int(numpy_helper.to_array(tensor)[0]) for tensor in found.graph.initializer]
    if values != [number, 11 if in_place else number + 10]:
        return f"model {number} with data {values}"
    library = path.with_name("m.ops.so").read_bytes()
    stated = {entry.key: entry.value for entry in found.metadata_props}["ortkit.library.sha256"]
    if number == 2 and hashlib.sha256(library).hexdigest() != stated:
        return "the new model is there before its library"
    return ""


def expected(path: Path) -> list[str]:
    """Return what belongs to the model at `path`."""
    graph = onnx.load(path, load_external_data=False).graph
    locations = {
        e.value for t in graph.initializer for e in t.external_data if e.key == "location"
    }
    return sorted({"m.onnx", "m.ops.so", *locations})


def stored(folder: Path, number: int, *, external: bool) -> Path:
    """Write a model to be saved elsewhere; it keeps the form that it has here."""
    folder.mkdir(parents=True)
    return save_model(open_model(model(number)), folder / "m.onnx", external_data=external).model


def main(folder: Path) -> None:
    """Print the faults of all cases, and how many operations each has."""
    os.fsync = lambda _: None  # a killed process loses nothing that it has written
    faults: list[str] = []
    counts = {}
    third = stored(folder / "third", 3, external=True)
    for case, (old_external, new_external, in_place) in CASES.items():
        own = folder / case
        new = stored(own / "new", 2, external=new_external)
        old = stored(own / "1", 1, external=old_external)
        (own / "old").mkdir()
        save(old, own / "old" / "m.onnx")
        at, status = 0, -1
        while status != 0:
            place = own / str(at) / "out"
            shutil.copytree(own / "old", place)
            path = place / "m.onnx"
            source = path if in_place else new
            status = forked(partial(save, source, path, at=at))
            assert status in (0, -signal.SIGKILL), f"{case}, operation {at}: exit {status}"
            if problem := fault(path, in_place):
                faults.append(f"{case}, operation {at}: {problem}")
            assert forked(partial(save, third, path)) == 0
            left = sorted(entry.name for entry in place.iterdir())
            if left != expected(path):
                faults.append(f"{case}, operation {at}: {left} are left")
            at += 1
        counts[case] = at - 1
    sys.stdout.write(json.dumps({"faults": faults, "counts": counts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

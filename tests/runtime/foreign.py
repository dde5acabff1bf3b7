"""A kernel library from elsewhere: loading it leaves a mark, whatever comes after."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.kernels.metadata import EMBEDDED_KEY, LIBRARY_HASH_KEY, LIBRARY_KEY

_SOURCE = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void) {{ close(creat("{mark}", 0600)); }}
void* RegisterCustomOps(void* options, const void* api) {{ return 0; }}
"""


def compile_foreign(folder: Path, mark: Path) -> Path:
    """Build a library that creates `mark` when it is loaded."""
    source = folder / "foreign.c"
    source.write_text(_SOURCE.format(mark=mark))
    library = folder / "foreign.so"
    compiler = next(name for name in ("cc", "gcc", "clang") if shutil.which(name))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def fused_model(folder: Path, metadata: Mapping[str, str], data: str = "") -> Path:
    """Write `m.onnx` with a fused function, and its weights in the file `data` if it is named."""
    body = [helper.make_node("Relu", ["x"], ["y"])]
    function = helper.make_function(
        "ortkit.fused", "f_1", ["x"], ["y"], body, [helper.make_opsetid("", 17)]
    )
    weights = numpy_helper.from_array(np.ones((4, 1024), np.float32), "w")
    nodes = [
        helper.make_node("f_1", ["a"], ["b"], domain="ortkit.fused"),
        helper.make_node("Add", ["b", "w"], ["c"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 1024]) for name in ("a", "c")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ortkit.fused", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, dict(metadata))
    path = folder / "m.onnx"
    if data:
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def stated(library: Path, name: str = "m.ops.so") -> dict[str, str]:
    """Return metadata that name a library with its right hash."""
    return {LIBRARY_KEY: name, LIBRARY_HASH_KEY: hash_of(library)}


def untrusted_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Write a model beside a library that this user has not built, and trust nothing.

    Returns:
        The model, and the mark that the library leaves when it is loaded.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delenv("ORTKIT_TRUST", raising=False)
    (folder / "elsewhere").mkdir()
    mark = folder / "was-loaded"
    library = compile_foreign(folder / "elsewhere", mark)
    shutil.copyfile(library, folder / "m.ops.so")
    return fused_model(folder, stated(library)), mark


def embedded(library: Path, text: str) -> dict[str, str]:
    """Return metadata that hold a library."""
    return {EMBEDDED_KEY: text, LIBRARY_HASH_KEY: hash_of(library)}


def hash_of(library: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(library.read_bytes()).hexdigest()

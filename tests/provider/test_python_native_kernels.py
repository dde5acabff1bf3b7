"""Native kernels that a provider in Python returns."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import pytest
from python_providers import model, options, placement, registered, session

import ortkit
from ortkit.errors import UserError
from ortkit.provider import GraphView, Kernel, header_folder
from ortkit.provider.native import KernelLibrary
from tests.provider.native_library import build

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] a, float[n] b) => (float[n] y) { y = Sub(a, b) }
"""
SOURCE = r"""
#include "kernel.h"
static int32_t combine(OrtkitKernelContext* context, float factor) {
  const OrtkitDLTensor *a = &context->inputs[0].tensor, *b = &context->inputs[1].tensor;
  OrtkitView y;
  int32_t code = context->make_output(context, 0, a->dims, a->rank, &y);
  if (code != 0) return code;
  for (int64_t i = 0; i < a->dims[0]; ++i)
    ((float*)y.tensor.data)[i] = factor * (((float*)a->data)[i] - ((float*)b->data)[i]);
  return 0;
}
int32_t difference(void* user, OrtkitKernelContext* context) {
  return combine(context, user ? *(float*)user : 1);
}
int32_t refuse(void* user, OrtkitKernelContext* context) {
  (void)user;
  return context->fail(context, 2, "not today");
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    command = [*compiler.split(), "-O1", "-shared", "-fPIC", f"-I{header_folder()}", "-xc", "-"]
    subprocess.run([*command, "-o", str(path)], input=SOURCE, text=True, check=True)
    return ctypes.CDLL(str(path))


class Native(ortkit.ExecutionProvider):
    """Takes all nodes as one, and runs what a test says."""

    name: ClassVar[str] = "NativeExecutionProvider"

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return [list(graph)]

    def compile(self, subgraph: GraphView) -> Any:
        return self.make()


FEEDS = {"a": np.array([5, 1], np.float32), "b": np.array([2, 4], np.float32)}


def run(make: Callable[[], object]) -> Any:
    with registered(Native(make)) as name:
        made = session(model(MODEL), name)
        assert placement(made, name) == ["Sub"]
        return made.run(None, FEEDS)[0].tolist()


def test_a_function_runs_a_group(library: Any) -> None:
    assert run(lambda: Kernel(function=library.difference)) == [3, -3]


def test_an_address_runs_a_group(library: Any) -> None:
    address = ctypes.cast(library.difference, ctypes.c_void_p).value
    assert run(lambda: Kernel(function=address, keep=library)) == [3, -3]


def test_a_function_gets_what_is_its_users(library: Any) -> None:
    factor = ctypes.c_float(10)
    kernel = Kernel(function=library.difference, user=ctypes.addressof(factor), keep=factor)
    assert run(lambda: kernel) == [30, -30]


def test_inputs_are_put_in_order(library: Any) -> None:
    assert run(lambda: Kernel(function=library.difference, inputs=(1, 0))) == [-3, 3]


def test_a_function_says_why_it_fails(library: Any) -> None:
    with pytest.raises(Exception, match="not today"):
        run(lambda: Kernel(function=library.refuse, label="refusing"))


def test_a_function_of_a_kernel_library_runs_a_group(tmp_path: Path) -> None:
    path = build(tmp_path)
    for source in (path, str(path), path.read_bytes()):
        assert run(lambda source=source: Kernel(library=source, op="scaled_sum")) == [21, 15]


def test_a_function_of_a_kernel_library_gets_what_is_its_users(tmp_path: Path) -> None:
    factor = ctypes.c_float(10)
    kept: list[weakref.ref[Kept]] = []

    def make() -> Kernel:
        kept.append(weakref.ref(one := Kept()))
        user = ctypes.addressof(factor)
        return Kernel(library=opened, op="scaled_sum", user=user, keep=one)

    with KernelLibrary(build(tmp_path)) as opened, registered(Native(make)) as name:
        made = session(model(MODEL), name)
        opened.close()  # the kernel has it still
        assert made.run(None, FEEDS)[0].tolist() == [210, 150]
        gc.collect()
        assert kept[0]() is not None
        del made
        gc.collect()
        assert kept[0]() is None


def test_memory_of_this_process_is_not_written_into_a_model(tmp_path: Path) -> None:
    factor = ctypes.c_float(10)

    def make() -> Kernel:
        user = ctypes.addressof(factor)
        return Kernel(library=build(tmp_path), op="scaled_sum", user=user, keep=factor)

    settings = options()
    settings.add_session_config_entry("ep.context_enable", "1")
    settings.add_session_config_entry("ep.context_file_path", str(tmp_path / "x.onnx"))
    with (
        registered(Native(make)) as name,
        pytest.raises(Exception, match="reads memory of this process"),
    ):
        session(model(MODEL), name, session_options=settings)
    assert not (tmp_path / "x.onnx").exists()


def test_what_a_kernel_library_has_not_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path)
    with pytest.raises(Exception, match="nothing_of_it"):
        run(lambda: Kernel(library=path, op="nothing_of_it"))
    with pytest.raises(Exception, match=r"no_library.so"):
        run(lambda: Kernel(library=tmp_path / "no_library.so", op="scaled_sum"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Kernel, "a Kernel has either a function or a library"),
        (
            lambda: Kernel(function=7, library="x.so"),
            "a Kernel has either a function or a library",
        ),
        (lambda: Kernel(library="x.so"), "a Kernel of a library needs an op"),
        (lambda: Kernel(function="text"), "a Kernel's function is of type str"),
        (
            lambda: Kernel(function=len),
            "a Kernel's function is of type builtin_function_or_method",
        ),
    ],
)
def test_kernels_that_are_not_right_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)


class Kept:
    """What a kernel's function belongs to."""


def test_what_a_kernel_keeps_lives_as_long_as_its_sessions(library: Any) -> None:
    kept: list[weakref.ref[Kept]] = []

    def make() -> Kernel:
        one = Kept()
        kept.append(weakref.ref(one))
        return Kernel(function=library.difference, keep=one)

    with registered(Native(make)) as name:
        first, second = session(model(MODEL), name), session(model(MODEL), name)
        gc.collect()
        assert all(item() is not None for item in kept)
        assert first.run(None, FEEDS)[0].tolist() == [3, -3]
        del first
        gc.collect()
        assert second.run(None, FEEDS)[0].tolist() == [3, -3]
        assert kept[1]() is not None
        del second
        gc.collect()
        assert [one() for one in kept] == [None, None]

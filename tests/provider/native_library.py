"""A small kernel library made in a second, and a provider that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.link.linker import Programs, link_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.provider import bridge, native
from ortkit.targets.target import Target
from tests.provider.native_providers import HEADERS, Graph, Groups, Reader, TestProvider, arrange

_COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
_BODY = """<opset_import: ["" : 20]> f (X, Y, Z) => (W)
{ S = Add (X, Y) M = Mul (S, Z) W = Relu (M) }"""
SIGNATURE = RegionSignature(
    "triple",
    _BODY,
    tuple(TensorSpec(name, "float32", ("n", 4)) for name in "XYZ"),
    (TensorSpec("W", "float32", ("n", 4)),),
)
_KERNEL = """#include <stdint.h>
int32_t probe(const float* x, const float* y, const float* z, float* w, int64_t s0, int64_t begin,
              int64_t end) {
  (void)s0;
  for (int64_t i = 4 * begin; i < 4 * end; ++i) {
    const float m = (x[i] + y[i]) * z[i];
    w[i] = m > 0 ? m : 0;
  }
  return 0;
}
"""
_PROGRAM = """#include "kernel.h"
__attribute__((visibility("default")))
int32_t scaled_sum(void* user, OrtkitKernelContext* context) {
  const float factor = user != 0 ? *(const float*)user : 1;
  const OrtkitView* views = context->inputs;
  OrtkitView out;
  int64_t count = 1;
  for (int32_t i = 0; i < views[0].tensor.rank; ++i) count *= views[0].tensor.dims[i];
  const int32_t code =
      context->make_output(context, 0, views[0].tensor.dims, views[0].tensor.rank, &out);
  if (code != 0) return code;
  for (int64_t i = 0; i < count; ++i) {
    const float *x = views[0].tensor.data, *y = views[1].tensor.data;
    ((float*)out.tensor.data)[i] = factor * SCALE * (x[i] + y[i]);
  }
  return 0;
}
"""


def build(folder: Path, name: str = "kernels.so", scale: int = 3) -> Path:
    """Return a library with the op of SIGNATURE and the function `scaled_sum`.

    Skips the test where there is no C compiler.
    """
    if _COMPILER is None:
        pytest.skip("no C compiler")
    text, artifact = folder / "probe.c", folder / "probe.o"
    text.write_text(_KERNEL)
    command = [*_COMPILER.split(), "-std=c11", "-O1", "-fPIC", "-c", str(text), "-o"]
    subprocess.run([*command, str(artifact)], check=True)
    target = Target("cpu", "native").resolved()
    launch = Launch((Extent(1, ("s0",)),), Extent(4), 100)
    kernel = Kernel("probe", "tests", target, artifact, "probe", launch, 0.0)
    programs = Programs(f"#define SCALE {scale}\n{_PROGRAM}", {}, ("scaled_sum",))
    path = folder / name
    link_library([kernel], [SIGNATURE], path, target, programs)
    return path


def compiled(folder: Path, source: str) -> Path:
    """Return a shared library of C code that may include manifest.h."""
    if _COMPILER is None:
        pytest.skip("no C compiler")
    (folder / "made.c").write_text(source)
    command = [*_COMPILER.split(), "-std=c11", "-shared", "-fPIC", f"-I{HEADERS.parent}"]
    subprocess.run([*command, "made.c", "-o", "made.so"], cwd=folder, check=True)
    return folder / "made.so"


class LibraryProvider(TestProvider):
    """Runs each Add, Mul, Relu in a row by the library's op, any other Add by its function."""

    name = "LibraryExecutionProvider"
    arguments: ClassVar[dict[str, str]] = {}
    label: bytes | None = None

    def __init__(self, source: Path | bytes, other: Path | bytes | None = None) -> None:
        """Take the op from `source`, the function from `other` if it is given."""
        self.source = source
        self.other = source if other is None else other
        self.opened: list[native.KernelLibrary] = []

    def groups(self, graph: Graph) -> Groups:
        groups: Groups = []
        at = 0
        while at < len(graph.nodes):
            if graph.ops[at : at + 3] == ["Add", "Mul", "Relu"]:
                groups.append(graph.nodes[at : at + 3])
                at += 3
                continue
            if graph.ops[at] == "Add":
                groups.append([graph.nodes[at]])
            at += 1
        return groups

    def make(self, request: bridge.Compile, index: int) -> bridge.Kernel:
        graph = Graph(bridge.Graph(request.api, request.graphs[index], 0, 0))
        is_op = len(graph.nodes) == 3
        kernel = bridge.Kernel(kind=bridge.KERNEL_LIBRARY_OP, label=self.label)
        kernel.arguments = native.entries(self.arguments)
        library = native.KernelLibrary(self.source if is_op else self.other)
        self.opened.append(library)
        kernel.library = library.handle
        kernel.op_type = SIGNATURE.op_type.encode() if is_op else b"scaled_sum"
        reader = Reader(request.api)
        inputs = reader.inputs(graph.nodes[0])
        if is_op:
            inputs.append(reader.inputs(graph.nodes[1])[1])
        return arrange(kernel, request, index, inputs, reader.outputs(graph.nodes[-1]))

    def compile(self, *arguments: Any) -> None:
        super().compile(*arguments)
        for library in self.opened:
            library.close()
        self.opened.clear()

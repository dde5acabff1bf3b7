"""Kernel libraries whose kernels are wrong in known ways, and models that call them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.link.linker import find_linker, link_library
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.targets.target import Target

BODY = '<opset_import: ["" : 20]> f (X, B) => (Y) { S = Add (X, B)  Y = Relu (S) }'
#: Relu(x + b) for float32 x [n, m], b [m]: rows begin .. end - 1. RESULT is what is written for
#: `v`, BEGIN and END stand around the loops.
CODE = """
#define _GNU_SOURCE
#include <stdint.h>
#include <unistd.h>
#include <sys/syscall.h>
static int is_main(void) { return syscall(SYS_gettid) == getpid(); }
int32_t kernel(const float* x, const float* b, float* y, int64_t n, int64_t m, int64_t begin,
               int64_t end) {
  (void)is_main;
  BEGIN
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < m; ++j) {
      float v = x[i * m + j] + b[j];
      y[i * m + j] = RESULT;
    }
  END
  return 0;
}
"""
RELU = "(v < 0 ? 0 : v)"


@dataclass(frozen=True)
class Fault:
    """What a kernel does wrong."""

    result: str = RELU
    begin: str = ""
    end: str = ""
    inplace: bool = False


def signature(rows: int | str = "n", columns: int | str = "m") -> RegionSignature:
    x, y = (TensorSpec(name, "float32", (rows, columns)) for name in "XY")
    return RegionSignature("add_relu", BODY, (x, TensorSpec("B", "float32", (columns,))), (y,))


def faulty_library(fault: Fault, path: Path) -> Path:
    """Link a library whose one kernel has a fault."""
    folder = path.parent
    code = CODE.replace("RESULT", fault.result)
    (folder / "kernel.c").write_text(code.replace("BEGIN", fault.begin).replace("END", fault.end))
    command = [*find_linker(), "-c", "-O1", "-fPIC", "kernel.c", "-o", "kernel.o"]
    subprocess.run(command, cwd=folder, check=True)
    one, launch_rows = signature(), Extent(1, ("s0",))
    inplace = ((0, 0),) if fault.inplace else ()
    launch = Launch((launch_rows,), Extent(1, ("s1",)), 1_000_000, inplace)
    kernel = Kernel(one.key, "c", Target().resolved(), folder / "kernel.o", "kernel", launch, 0.0)
    return link_library([kernel], [one], path, Target()).path


def calling(*signatures: RegionSignature, bias: np.ndarray | None = None) -> ir.Model:
    """Return a model with a node for each signature of the form of `signature`.

    Args:
        signatures: Of the nodes.
        bias: What the first node adds, a constant; else an input.
    """
    nodes, inputs, outputs, functions = [], [], [], []
    for number, each in enumerate(signatures):
        function = each.function()
        function.domain, function.name = DOMAIN, each.op_type
        functions.append(function)
        names = [f"{spec.name}{number}" for spec in each.inputs]
        result = f"{each.outputs[0].name}{number}"
        nodes.append(helper.make_node(each.op_type, names, [result], domain=DOMAIN))
        inputs += [_value(name, s) for name, s in zip(names, each.inputs, strict=True)]
        outputs.append(_value(result, each.outputs[0]))
    graph = helper.make_graph(nodes, "model", inputs, outputs)
    if bias is not None:
        graph.initializer.append(numpy_helper.from_array(bias, "B0"))
        del graph.input[1]
        graph.input[0].type.tensor_type.shape.dim[1].dim_value = bias.size
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return ir.from_proto(
        helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    )


def _value(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(name, element, list(spec.shape))


def has_compiler() -> bool:
    """Return whether C code can be compiled."""
    return any(shutil.which(name) for name in ("cc", "gcc", "clang"))

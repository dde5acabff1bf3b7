"""What one call of a fused node costs, against a node of ONNX Runtime's own."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.targets.target import Target
from tests.kernels.fused_model import session

NODES = 200
ROUNDS = 100
RUNS = 5  # in a row, before it is the other's turn
BODY = '<opset_import: ["" : 20]> f (X, Z) => (Y) { Y = Add (X, Z) }'


def chain(signature: RegionSignature | None, shape: tuple[int | str, ...]) -> bytes:
    """A chain of Add, or of fused nodes that do the same."""
    op, domain = ("Add", "") if signature is None else (signature.op_type, DOMAIN)
    names = ["X", *(f"t{index}" for index in range(1, NODES)), "Y"]
    nodes = [
        helper.make_node(op, [before, "Z"], [after], domain=domain)
        for before, after in pairwise(names)
    ]
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "XYZ")
    functions = []
    if signature is not None:
        functions = [signature.function()]
        functions[0].domain, functions[0].name = DOMAIN, signature.op_type
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "chain", [x, z], [y])
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    return bytes(model.SerializeToString())


def nanoseconds(loaded: ort.InferenceSession, binding: ort.IOBinding) -> float:
    started = time.perf_counter_ns()
    for _ in range(RUNS):
        loaded.run_with_iobinding(binding)
    return (time.perf_counter_ns() - started) / RUNS / NODES


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((16,), (16,)), (("n",), (16,)), (("batch", "seq", 4), (1, 4, 4))],
    ids=["fixed", "one name", "two names"],
)
def test_a_call_costs_no_more_than_an_add(
    shape: tuple[int | str, ...], sizes: tuple[int, ...], threads: int, tmp_path: Path
) -> None:
    tensors = [TensorSpec(name, "float32", shape) for name in "XZY"]
    signature = RegionSignature("sum", BODY, tuple(tensors[:2]), tuple(tensors[2:]))
    build_library([signature], Target(), tmp_path / "x.so", cache=KernelCache(tmp_path))
    sessions = (
        session(chain(None, shape), threads=threads),
        session(chain(signature, shape), tmp_path / "x.so", threads),
    )
    bindings = []
    for loaded in sessions:
        binding = loaded.io_binding()
        for name in "XZ":
            binding.bind_cpu_input(name, np.ones(sizes, np.float32))
        binding.bind_output("Y")
        bindings.append(binding)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for which in (0, 1, 1, 0):
            taken[which].append(nanoseconds(sessions[which], bindings[which]))
    own, fused = map(min, taken)
    # Others use the machine too: the least of many, and a tenth for what is left of the noise.
    assert fused <= 1.1 * own, f"{fused:.0f} ns a call, and {own:.0f} for an Add"

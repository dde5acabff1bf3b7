"""Regions for CUDA that look rows of tables up. No GPU is needed, and none is used."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortkit

NORM = "s = Add(r, p)  y = LayerNormalization<axis = -1>(s, g)"


def model(nodes: str, inputs: str = "int64[b, 24] i") -> onnx.ModelProto:
    """Return a model around `nodes` with tables w of 50 rows and v of 24, and a scale g."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({inputs}) => (float16[b, 24, 64] y) {{ {nodes} }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (("w", (50, 64)), ("v", (24, 64)), ("p", (1, 24, 64)), ("g", (64,))):
        array = random.standard_normal(shape).astype(np.float16)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def found(proto: onnx.ModelProto, target: str) -> list[tuple[str, int]]:
    """Return the kind of each region that became a kernel, and how often it gathers."""
    options = ortkit.OptimizeOptions(
        target=target, arch="sm_90" if target == "cuda" else "native", verify=False,
        check_load=False,
    )  # fmt: skip
    made = ortkit.optimize(proto, options)
    return [
        (each.kind, each.ops.count("Gather")) for each in made.report.regions if each.emitted_as
    ]


def test_rows_are_looked_up_by_the_kernel_of_the_norm() -> None:
    assert found(model(f"r = Gather(w, i)  {NORM}"), "cuda") == [("gather_add_layer_norm", 1)]


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Gather(w, i)",
        "t = Transpose<perm = [1, 0]>(w)  q = Gather<axis = 1>(t, i)"
        "  r = Transpose<perm = [1, 2, 0]>(q)  y = Identity(r)",
    ],
    ids=["nothing computed", "columns"],
)
def test_other_gathers_stay(nodes: str) -> None:
    assert not any("gather" in kind for kind, _ in found(model(nodes), "cuda"))


def test_kernels_for_cpus_read_what_a_gather_wrote() -> None:
    kinds = found(model(f"r = Gather(w, i)  {NORM}"), "cpu")
    assert not any("gather" in kind for kind, _ in kinds)

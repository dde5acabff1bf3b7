"""Regions for CUDA that look rows of tables up. No GPU is needed, and none is used."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import ortkit
from ortkit.fusion.regions.parameters import looks_up_rows
from tests.fusion.region_models import scope_of

NORM = "s = Add(r, p)  y = LayerNormalization<axis = -1>(s, g)"


def model(nodes: str) -> onnx.ModelProto:
    """Return a model around `nodes` with tables w of 50 rows and v of 24, and a scale g."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (int64[b, 24] i) => (float16[b, 24, 64] y) {{ {nodes} }}"""
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


def test_rows_that_nothing_is_computed_of_stay() -> None:
    """Of so many rows a kernel would be predicted to save time."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (int64[8192, 24] i, float16[50, 64] w) => (float16[8192, 24, 64] y)
        { y = Gather(w, i) }"""
    )
    assert found(proto, "cuda") == []


@pytest.mark.parametrize(
    ("table", "gather", "is_lookup"),
    [
        ("float16[50, 64] w", "Gather(w, i)", True),
        ("float16[50, 64] w", "Gather<axis = -2>(w, i)", True),
        ("float16[50, 64] w", "Gather<axis = 1>(w, i)", False),
        ("float16[50] w", "Gather(w, i)", False),
        ("int32[50, 64] w", "Gather(w, i)", False),
        ("float16[50, 64] w", "Gather(w, k)", False),
    ],
    ids=["rows", "rows from the end", "columns", "numbers", "integers", "constant indices"],
)
def test_what_is_a_lookup(table: str, gather: str, is_lookup: bool) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (int64[b, 24] i, {table}) => (y) <int64[2] k = {{1, 2}}> {{ y = {gather} }}"""
    )
    parsed = ir.from_proto(proto)
    (node,) = parsed.graph
    assert looks_up_rows(scope_of(parsed), node) is is_lookup


def test_kernels_for_cpus_read_what_a_gather_wrote() -> None:
    assert found(model(f"r = Gather(w, i)  {NORM}"), "cpu") == [("add_layer_norm", 0)]

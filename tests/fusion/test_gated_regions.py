"""Products with a gate, a residual or factors of columns: what a region takes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from ortkit.custom_ops.tvm.gemm.fp32 import ANCHOR
from region_models import feeds_of, found_by, run, scope_of

from ortkit.fusion.plan import compile_regions
from ortkit.fusion.regions import packed
from ortkit.kernels.build.library import missing_toolchain
from ortkit.targets.target import Target

runs_wide = pytest.mark.skipif(
    missing_toolchain() is not None or not Target().resolved().level.startswith("x86-64-v4"),
    reason="products are for processors with AVX-512",
)
SPLIT = "m = MatMul(x, w)  a, c = Split<axis = -1, num_outputs = 2>(m)  "
IMAGES = "float[n, 64, 64, 128] x, float[n, 1, 1, 128] s, float[n, 64, 64, 128] r"


def model_of(nodes: str, inputs: str, columns: int = 192, opset: int = 20) -> onnx.ModelProto:
    """Return a model with a matrix `w` of 128 rows, and a row `b` of as many columns."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    outputs = [name for name in ("y", "z") if f"{name} =" in nodes]
    ends = ", ".join(f"float[?] {name}" for name in outputs)
    proto = onnx.parser.parse_model(f"{head} g ({inputs}) => ({ends}) {{ {nodes} }}")
    random = np.random.default_rng(3)
    for name, size in {"w": (128, columns), "b": (columns,)}.items():
        array = random.standard_normal(size, np.float32) / 8
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def taken(proto: onnx.ModelProto) -> list[list[str]]:
    """Return the operators of the products' regions."""
    scope = scope_of(ir.from_proto(proto), level="x86-64-v4")
    return [[node.op_type for node in each.region.nodes] for each in found_by(ANCHOR, scope)]


@pytest.mark.parametrize(
    ("nodes", "ops"),
    [
        ("y = Mul(a, c)", ["Split", "Mul"]),
        ("g = Gelu(c)  y = Mul(a, g)", ["Split", "Gelu", "Mul"]),
        ("t = Sigmoid(a)  u = Mul(a, t)  y = Mul(u, c)", ["Split", "Sigmoid", "Mul", "Mul"]),
        ("t = Mul(a, c)  y = Relu(t)", ["Split", "Mul", "Relu"]),
        # Something else reads a half, or what is in between; or is no function of each element.
        ("y = Mul(a, c)  z = Relu(a)", []),
        ("t = Relu(a)  y = Mul(t, c)  z = Abs(t)", []),
        ("t = Softmax(a)  y = Mul(t, c)", []),
        ("t = Mul(a, k)  y = Mul(t, c)", []),
        ("y = Concat<axis = -1>(a, c)", []),
    ],
)
def test_what_makes_one_value_of_two_halves(nodes: str, ops: list[str]) -> None:
    proto = model_of(SPLIT + nodes, "float[48, 128] x, float[48, 96] k")
    assert taken(proto) == [["MatMul", *ops]]


@pytest.mark.parametrize(
    "nodes",
    [
        "m = MatMul(x, w)  a, c = Split<axis = 0, num_outputs = 2>(m)  y = Mul(a, c)",
        "m = MatMul(x, w)  a, c, d = Split<axis = 1, num_outputs = 3>(m)  t = Mul(a, c)"
        "  y = Mul(t, d)",
        "m = MatMul(x, w)  k = Constant<value_ints = [64, 128]>()  a, c = Split<axis = 1>(m, k)"
        "  t = Relu(a)  y = Relu(t)  z = Relu(c)",
    ],
)
def test_other_parts_are_no_halves(nodes: str) -> None:
    assert taken(model_of(nodes, "float[48, 128] x"))[0] == ["MatMul"]


def test_a_matrix_of_two_products_is_packed_in_one_way() -> None:
    nodes = f"{SPLIT} y = Mul(a, c)  z = MatMul(v, w)"
    assert taken(model_of(nodes, "float[48, 128] x, float[48, 128] v")) == [["MatMul"]] * 2


@pytest.mark.parametrize(
    ("nodes", "inputs", "ops"),
    [
        ("m = MatMul(x, w)  t = Add(m, b)  y = Add(r, t)", IMAGES, ["MatMul", "Add", "Add"]),
        ("u = Mul(x, s)  y = MatMul(u, w)", IMAGES, ["Mul", "MatMul"]),
        ("u = Mul(s, x)  m = MatMul(u, w)  y = Add(m, r)", IMAGES, ["Mul", "MatMul", "Add"]),
        # Other shapes, two readers, and what stays in the cache.
        ("u = Mul(x, x)  y = MatMul(u, w)", IMAGES, ["MatMul"]),
        ("u = Mul(x, s)  y = MatMul(u, w)  z = Relu(u)", IMAGES, ["MatMul"]),
        (
            "u = Mul(x, s)  m = MatMul(u, w)  y = Add(m, r)",
            "float[n, 8, 8, 128] x, float[n, 1, 1, 128] s, float[n, 8, 8, 128] r", ["MatMul"],
        ),
        (
            "m = MatMul(x, w)  y = Add(m, r)", "float[n, 64, 64, 128] x, float[1, 64, 64, 128] r",
            ["MatMul"],
        ),
        (
            "u = Mul(x, s)  y = MatMul(u, w)", "float[n, 64, 64, 128] x, float[n, 64, 1, 128] s",
            ["MatMul"],
        ),
    ],
)  # fmt: skip
def test_what_comes_from_memory_is_read_by_the_product(
    nodes: str, inputs: str, ops: list[str]
) -> None:
    assert taken(model_of(nodes, inputs, 128)) == [ops]


@runs_wide
@pytest.mark.parametrize(
    ("nodes", "columns"),
    [
        (f"{SPLIT} y = Mul(a, c)", 74),
        (f"{SPLIT.replace('(m)', '(q)').replace('w)', 'w)  q = Add(m, b)')} y = Mul(c, a)", 256),
        ("u = Mul(x, s)  m = MatMul(u, w)  t = Add(m, b)  y = Add(t, r)", 128),
    ],
)
def test_same_results_with_and_without_kernels(
    nodes: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_NEAR_BYTES", 0)
    inputs = "float[n, h, 5, 128] x, float[n, 1, 1, 128] s, float[n, h, 5, 128] r"
    proto = model_of(nodes, inputs, columns)
    model = ir.from_proto(proto)
    reports, library, _ = compile_regions(
        [scope_of(model)], tmp_path / "a.ops.so", "tvm", Target(), lambda *_: None
    )
    assert library is not None
    assert [report.reason for report in reports] == [""]
    after = ir.to_proto(model)
    assert len(after.graph.node) == 1
    for sizes in ({"n": 1, "h": 1}, {"n": 3, "h": 7}, {"n": 2, "h": 0}):
        feeds = feeds_of(proto, sizes)
        (want,) = run(proto, feeds)
        for got in (run(after, feeds), run(after, feeds, library=library)):
            assert got[0].shape == want.shape
            np.testing.assert_allclose(got[0], want, rtol=0, atol=5e-5)

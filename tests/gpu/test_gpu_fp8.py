"""Products of eight-bit floats on a GPU: of quantized models, and by `--precision fp8`."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortkit
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.targets.target import Target
from tests.kernels.fused_model import fused_model
from tests.kernels.triton.triton_attention import CASES as ATTENTION
from tests.kernels.triton.triton_attention import SIZES, WHOLE, feeds_of, rounded

WIDTH, INNER = 512, 1536


def quantized(rows: tuple[int | str, ...], way: str) -> onnx.ModelProto:
    """Return a norm, a product up with GELU and one down with the sum, matrices in eight bits.

    Args:
        rows: Leading dims.
        way: "weights" leaves rows in half precision, "one" rounds them with one factor, "each"
            with a factor a row.
    """
    rng = np.random.default_rng(5)
    held: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def hold(name: str, array: np.ndarray) -> str:
        held.append(numpy_helper.from_array(array, name))
        return name

    def op(op_type: str, *inputs: str, **attributes: int) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name]))
        nodes[-1].attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        return name

    def matrix(name: str, depth: int, columns: int) -> str:
        wide = rng.standard_normal((depth, columns)) / depth**0.5
        scale = (np.abs(wide).max(axis=0) / 448).astype(np.float16)
        numbers = (wide / scale.astype(np.float64)).astype(ml_dtypes.float8_e4m3fn)
        hold(name, numbers)
        return op("DequantizeLinear", name, hold(f"{name}s", scale), axis=1)

    def rounded(value: str, factor: float) -> str:
        if way == "weights":
            return value
        if way == "one":
            scale = hold(f"{value}/one", np.array(factor, np.float16))
            narrow = op("QuantizeLinear", value, scale, "zero")
            return op("DequantizeLinear", narrow, scale, "zero")
        wide = op("Cast", value, to=TensorProto.FLOAT)
        top = op("ReduceMax", op("Abs", wide), "last", keepdims=1)
        scale = op("Max", op("Mul", top, "part"), "least")
        narrow = op("Cast", op("Div", wide, scale), to=TensorProto.FLOAT8E4M3FN)
        again = op("Mul", op("Cast", narrow, to=TensorProto.FLOAT), scale)
        return op("Cast", again, to=TensorProto.FLOAT16)

    hold("zero", np.array(0, ml_dtypes.float8_e4m3fn))
    hold("last", np.array([-1], np.int64))
    hold("part", np.array(1 / 448, np.float32))
    hold("least", np.array(1e-30, np.float32))
    hold("g", (1 + rng.random(WIDTH)).astype(np.float16))
    hold("b", rng.standard_normal(INNER).astype(np.float16))
    normed = op("LayerNormalization", "x", "g", axis=-1)
    up = op("MatMul", rounded(normed, 1 / 64), matrix("u", WIDTH, INNER))
    made = op("Gelu", op("Add", up, "b"))
    down = op("MatMul", rounded(made, 1 / 64), matrix("d", INNER, WIDTH))
    nodes.append(helper.make_node("Add", [down, "x"], ["y"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (*rows, WIDTH)) for name in "xy"
    ]
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", infos[:1], infos[1:], [item for item in held if item.name in read]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


CASES = [
    ((1, 1), "weights"), ((3,), "weights"), ((2, 8), "weights"), ((1, 1), "one"), ((1, 7), "one"),
    ((200,), "one"), ((1, 200), "each"), ((4100,), "each"), (("n",), "one"), (("n", 3), "each"),
]  # fmt: skip


def on_cpu(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Run a model as it is: ONNX Runtime's fusions give eight bits to what cannot take them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(["y"], {"x": x})
    return np.asarray(found, np.float64)


@pytest.mark.parametrize(("rows", "way"), CASES, ids=str)
def test_models_in_eight_bits(rows: tuple[int | str, ...], way: str) -> None:
    pytest.importorskip("triton")
    proto = quantized(rows, way)
    options = ortkit.OptimizeOptions(target="cuda", arch="sm_90", verify=False)
    made = ortkit.optimize(proto, options)
    kinds = sorted(region.kind for region in made.report.regions if region.emitted_as is not None)
    rounded = {"weights": 0, "one": 1, "each": 2}[way]
    assert kinds == ["product"] * 2 + ["rounded_rows"] * rounded
    assert not any(item.left_out for item in made.report.regions)
    rng = np.random.default_rng(3)
    for count in (0, 1, 130, 5000) if "n" in rows else (0,):
        sizes = [count if isinstance(size, str) else size for size in rows]
        x = rng.standard_normal((*sizes, WIDTH)).astype(np.float16)
        expected = on_cpu(proto, x)
        with ortkit.Session(made, "cuda", kernels="require") as session:
            found = np.asarray(session.run({"x": x})["y"], np.float64)
        # A number that is rounded to eight bits may fall to the neighbour, a 16th away.
        apart = np.linalg.norm(found - expected)
        assert apart <= 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("rows", [1, 4, 2048])
def test_a_model_in_half_precision_in_fp8(rows: int) -> None:
    pytest.importorskip("triton")
    proto = halves(rows)
    options = ortkit.OptimizeOptions(target="cuda", arch="sm_90", precision="fp8", samples=1)
    made = ortkit.optimize(proto, options)
    assert made.report.precision is not None
    assert made.report.precision.lowered > 0
    x = np.random.default_rng(3).standard_normal((1, rows, 1024)).astype(np.float16)
    expected = on_cpu(proto, x)
    with ortkit.Session(made, "cuda", kernels="require", cuda_graph=True) as session:
        for _ in range(3):
            found = np.asarray(session.run({"x": x})["y"], np.float64)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.1


def halves(rows: int) -> onnx.ModelProto:
    """Return gated products in float16."""
    rng = np.random.default_rng(8)
    sizes = {"a": (1024, 4096), "b": (1024, 4096), "c": (4096, 1024)}
    held = [
        numpy_helper.from_array((rng.standard_normal(size) / 32).astype(np.float16), name)
        for name, size in sizes.items()
    ]
    held.append(numpy_helper.from_array((1 + rng.random(1024)).astype(np.float16), "g"))
    nodes = [
        helper.make_node("RMSNormalization", ["x", "g"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "a"], ["u"]),
        helper.make_node("MatMul", ["n", "b"], ["v"]),
        helper.make_node("Sigmoid", ["u"], ["s"]), helper.make_node("Mul", ["u", "s"], ["t"]),
        helper.make_node("Mul", ["t", "v"], ["m"]), helper.make_node("MatMul", ["m", "c"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["y"]),
    ]  # fmt: skip
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (1, rows, 1024)) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


@pytest.mark.parametrize(
    "name", ["width 64", "width 64, chosen keys", "width 96", "shared heads",
             "columns of one, with a bias"],
)  # fmt: skip
def test_attention_in_eight_bits(name: str, tmp_path: Path) -> None:
    case, factor = ATTENTION[name], 2.0**-7
    signature = rounded(case, factor)
    path = tmp_path / "attention.so"
    cache = KernelCache(tmp_path / "cache")
    assert not build_library([signature], Target("cuda", "sm_90"), path, "triton", cache).refused
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.register_custom_ops_library(str(path))
    providers = ["CUDAExecutionProvider"]
    model = onnx.load_from_string(fused_model(signature))
    (node,) = model.graph.node
    node.output[0] = "narrow"
    model.graph.node.append(onnx.helper.make_node("Cast", ["narrow"], ["wide"], to=1))
    shape = model.graph.output[0].type.tensor_type.shape
    dims = [each.dim_param or each.dim_value for each in shape.dim]
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("wide", 1, dims))
    opened = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    names = [value.name for value in opened.get_inputs()]
    for sizes in (SIZES, WHOLE, {"b": 2, "s": 1000, "t": 2048, "p": 2047}):
        feeds = feeds_of(case, sizes)
        inside = np.clip(case.expected(feeds) / factor, -448, 448).astype(np.float32)
        expected = inside.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        (found,) = opened.run(None, dict(zip(names, feeds, strict=True)))
        bound = np.abs(expected) / 8 + 2.0**-9 + 4e-3 * np.abs(expected).max()
        assert (np.abs(found - expected) <= bound).all()
        assert np.linalg.norm(found - expected) <= 0.02 * np.linalg.norm(expected)

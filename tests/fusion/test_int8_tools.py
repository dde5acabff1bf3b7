"""Quantized models as different tools write them run on kernels, with ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import ortkit
from tests.exact_sums import exact

ROWS, DEPTH, COLUMNS = 6, 64, 48

pytestmark = pytest.mark.usefixtures("int8_level")


def floats(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], held: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", DEPTH])],
        [helper.make_tensor_value_info("y", 1, ["n", COLUMNS])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Reader:
    """What quantize_static calibrates on."""

    def __init__(self) -> None:
        self.sets = iter([{"x": floats(ROWS, DEPTH, seed=3)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.sets, None)


def float_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, {"w": floats(DEPTH, COLUMNS, seed=1), "b": floats(COLUMNS, seed=2)})


def onnx_runtime(folder: Path, kind: str) -> onnx.ModelProto:
    """The quantizer of ONNX Runtime itself."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(float_model(), source)
    if kind == "dynamic":
        quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8)
    else:
        quantize_static(
            source, target, _Reader(), quant_format=getattr(QuantFormat, kind), per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return onnx.load(target)


def weights_in_float(_: Path) -> onnx.ModelProto:
    """NNCF and ModelOpt: the weight is float32, and QuantizeLinear stands in front of it."""
    scales = np.full(COLUMNS, 0.02, np.float32)
    held = {
        "w": floats(DEPTH, COLUMNS, seed=1), "ws": scales, "wz": np.zeros(COLUMNS, np.int8),
        "xs": np.float32(0.03), "xz": np.uint8(120), "ys": np.float32(0.2), "yz": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], axis=1),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wf"], axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"]),
    ]
    return model_of(nodes, held)


def symmetric(_: Path) -> onnx.ModelProto:
    """ModelOpt and NNCF for GPUs: int8 around 0, a weight that a Transpose turns."""
    random = np.random.default_rng(1)
    held = {
        "w": random.integers(-127, 128, (COLUMNS, DEPTH), dtype=np.int8),
        "ws": np.full(COLUMNS, 0.02, np.float32), "wz": np.zeros(COLUMNS, np.int8),
        "xs": np.float32(0.03), "z": np.int8(0), "ys": np.float32(0.2),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("Transpose", ["wf"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["xf", "wt"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "z"], ["y"]),
    ]
    return model_of(nodes, held)


def named(make: Callable[[Path, str], onnx.ModelProto], kind: str) -> object:
    return pytest.param(lambda folder: make(folder, kind), id=f"onnxruntime {kind}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "make",
    [
        named(onnx_runtime, "QDQ"), named(onnx_runtime, "QOperator"),
        named(onnx_runtime, "dynamic"), weights_in_float, symmetric,
    ],
)  # fmt: skip
def test_runs_on_a_kernel_with_the_same_numbers(
    make: Callable[[Path], onnx.ModelProto], tmp_path: Path
) -> None:
    source = make(tmp_path)
    made = ortkit.optimize(source, ortkit.OptimizeOptions(verify=False, check_load=False))
    assert any("int8_product" in (region.emitted_as or "") for region in made.report.regions)
    made.save(tmp_path / "made.onnx")
    feeds = {"x": floats(ROWS, DEPTH, seed=7)}
    before = ort.InferenceSession(
        exact(source).SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)[0]
    after = ortkit.Session(tmp_path / "made.onnx").run(feeds)
    np.testing.assert_array_equal(next(iter(after.values())), before)


def convolutions(folder: Path) -> Path:
    """Two convolutions with a residual sum, quantized by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_static

    held = {"w": floats(32, 32, 3, 3, seed=1), "v": floats(32, 32, 1, 1, seed=2)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    sizes = ["n", 32, 12, 12]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, sizes)],
        [helper.make_tensor_value_info("y", 1, sizes)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "float.onnx")
    reader = _Reader()
    reader.sets = iter([{"x": floats(1, 32, 12, 12, seed=3)}])
    quantize_static(
        folder / "float.onnx", folder / "quantized.onnx", reader, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return folder / "quantized.onnx"


def test_a_chain_of_convolutions_gives_the_same_numbers_and_keeps_no_weight_twice(
    tmp_path: Path,
) -> None:
    source = convolutions(tmp_path)
    made = ortkit.optimize(source, ortkit.OptimizeOptions(verify=False, check_load=False))
    made.save(tmp_path / "made.onnx")
    graph = onnx.load(tmp_path / "made.onnx").graph
    assert sum(node.op_type.startswith("int8_conv") for node in graph.node) == 2
    assert "Conv" not in {node.op_type for node in graph.node}
    held = sum(len(tensor.raw_data) for tensor in graph.initializer)
    assert held < 2 * 32 * 32 * 10
    feeds = {"x": floats(3, 32, 12, 12, seed=7)}
    before = ort.InferenceSession(
        exact(onnx.load(source)).SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    after = ortkit.Session(tmp_path / "made.onnx").run(feeds)
    np.testing.assert_array_equal(next(iter(after.values())), before[0])


class _Quantized:
    """Nodes in QDQ format, each value with a grid of its own."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, np.ndarray] = {}

    def op(self, op_type: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def rounded(self, value: str, scale: float, zero: int) -> str:
        self.held |= {f"{value}_s": np.float32(scale), f"{value}_z": np.uint8(zero)}
        return self.op("QuantizeLinear", [value, f"{value}_s", f"{value}_z"], f"{value}_q")

    def wide(self, value: str, name: str) -> str:
        """DequantizeLinear of what was rounded: one for each reader, as quantizers write them."""
        return self.op("DequantizeLinear", [f"{value}_q", f"{value}_s", f"{value}_z"], name)

    def conv(self, x: str, shape: tuple[int, ...], name: str, **attributes: object) -> str:
        """A Conv of DequantizeLinear; NNCF keeps weights in float32 and biases too."""
        scales = self.random.uniform(0.01, 0.02, shape[0]).astype(np.float32)
        self.held |= {
            f"{name}_w": self.random.uniform(-1.2, 1.2, shape).astype(np.float32),
            f"{name}_ws": scales, f"{name}_wz": np.zeros(shape[0], np.int8),
            f"{name}_b": self.random.standard_normal(shape[0]).astype(np.float32),
        }  # fmt: skip
        grid = [f"{name}_ws", f"{name}_wz"]
        self.op("QuantizeLinear", [f"{name}_w", *grid], f"{name}_wq", axis=0)
        self.op("DequantizeLinear", [f"{name}_wq", *grid], f"{name}_wf", axis=0)
        return self.op("Conv", [x, f"{name}_wf", f"{name}_b"], name, **attributes)


def squeeze_excite(pool: str) -> onnx.ModelProto:
    """A depthwise convolution, squeeze-and-excite of it, and one of groups: as NNCF has it."""
    net, pads = _Quantized(), [1, 1, 1, 1]
    net.op("Relu", ["x"], "p")
    net.rounded("p", 0.02, 0)
    net.conv(net.wide("p", "pf"), (72, 1, 3, 3), "d", pads=pads, group=72)
    net.rounded("d", 0.05, 128)
    more = {"axes": [2, 3], "keepdims": 1} if pool == "ReduceMean" else {}
    net.op(pool, [net.wide("d", "d1")], "m", **more)
    net.rounded("m", 0.013, 120)
    net.conv(net.wide("m", "mf"), (24, 72, 1, 1), "s")
    net.rounded(net.op("Relu", ["s"], "sr"), 0.03, 0)
    net.conv(net.wide("sr", "srf"), (72, 24, 1, 1), "e")
    net.rounded("e", 0.06, 131)
    net.rounded(net.op("Sigmoid", [net.wide("e", "ef")], "g"), 1 / 255, 0)
    net.op("Mul", [net.wide("d", "d2"), net.wide("g", "gf")], "u")
    net.rounded("u", 0.05, 128)
    net.conv(net.wide("u", "uf"), (64, 18, 3, 3), "v", pads=pads, group=4)
    net.rounded("v", 0.2, 128)
    net.wide("v", "y")
    graph = helper.make_graph(
        net.nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 72, 14, 14])],
        [helper.make_tensor_value_info("y", 1, ["n", 64, 14, 14])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in net.held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("pool", ["GlobalAveragePool", "ReduceMean"])
def test_squeeze_and_excite_is_one_chain_of_bytes(pool: str, tmp_path: Path) -> None:
    source = squeeze_excite(pool)
    made = ortkit.optimize(source, ortkit.OptimizeOptions(verify=False, check_load=False))
    made.save(tmp_path / "made.onnx")
    ops = [node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node]
    kinds = [op.rpartition("_")[0] for op in ops if op.startswith("int8")]
    assert sorted(kinds) == ["int8_conv"] * 4 + ["int8_mean", "int8_scale"]
    assert not {"Conv", "Mul", "Sigmoid", pool} & set(ops)
    feeds = {"x": floats(3, 72, 14, 14, seed=7)}
    before = ort.InferenceSession(
        exact(source).SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)[0]
    after = ortkit.Session(tmp_path / "made.onnx").run(feeds)
    np.testing.assert_array_equal(next(iter(after.values())), before)


def test_an_activation_in_float32_keeps_its_convolution_in_bytes(tmp_path: Path) -> None:
    """NNCF rounds what the activation makes, and leaves the bias in float32."""
    net, pads = _Quantized(), [1, 1, 1, 1]
    net.rounded("x", 0.03, 125)
    net.conv(net.wide("x", "xf"), (64, 32, 3, 3), "c", pads=pads)
    net.op("Mul", ["c", net.op("Sigmoid", ["c"], "s")], "u")
    net.rounded("u", 0.02, 14)
    net.wide("u", "y")
    graph = helper.make_graph(
        net.nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 32, 28, 28])],
        [helper.make_tensor_value_info("y", 1, ["n", 64, 28, 28])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in net.held.items()],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = ortkit.optimize(source, ortkit.OptimizeOptions(verify=False, check_load=False))
    made.save(tmp_path / "made.onnx")
    ops = [node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node]
    assert sum(op.startswith("int8_conv") for op in ops) == 1
    assert not {"Conv", "Sigmoid", "QuickGelu"} & set(ops)
    feeds = {"x": floats(1, 32, 28, 28, seed=7)}
    before = ort.InferenceSession(
        exact(source).SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)[0]
    after = next(iter(ortkit.Session(tmp_path / "made.onnx").run(feeds).values()))
    # ONNX Runtime's convolution is one of float32 here: what lies halfway may be the next number.
    steps = np.abs(np.asarray(after) - before) / np.float32(0.02)
    assert steps.max() < 1.5
    assert (steps > 0.5).mean() < 1e-4

"""Small quantized models, as tools write them: one int8 matrix product and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
_TYPES = {
    np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32,
}  # fmt: skip
STEP = np.float32(0.0173)


@dataclass
class Net:
    """Nodes, constants and what is fed; the last node's first output is the result."""

    rows: int = 7
    depth: int = 37
    columns: int = 50
    extreme: bool = False
    per_tensor: bool = False
    zero: int = 117
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, np.ndarray] = field(default_factory=dict)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = self.random = np.random.default_rng(self.depth)
        shape = self.rows, self.depth
        self.feeds["x"] = random.integers(0, 256, shape, dtype=np.uint8)
        weight = random.integers(-128, 128, (self.depth, self.columns), dtype=np.int8)
        scales = (random.random(self.columns) * 0.01 + 0.001).astype(np.float32)
        if self.extreme:
            self.feeds["x"][...] = 255
            weight[...] = -128
        self.held |= {
            "xs": np.asarray(STEP), "xz": np.asarray(self.zero, np.uint8), "w": weight,
            "ws": scales[0] if self.per_tensor else scales,
            "wz": np.zeros(() if self.per_tensor else self.columns, np.int8),
        }  # fmt: skip

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        domain = MICROSOFT if op_type in _OWN else ""
        self.nodes.append(helper.make_node(op_type, inputs, [output], domain=domain, **attributes))
        return output

    def grid(self, name: str, scale: float, zero: int) -> tuple[str, str]:
        self.held[f"{name}s"] = np.asarray(scale, np.float32)
        self.held[f"{name}z"] = np.asarray(zero, np.uint8)
        return f"{name}s", f"{name}z"

    @property
    def reach(self) -> float:
        """A scale that results of the product do not often saturate at."""
        return 0.02 * float(self.depth) ** 0.5 * (60.0 if self.extreme else 1.0)

    def widened(self) -> tuple[str, str]:
        """DequantizeLinear of both operands."""
        axis = {} if self.per_tensor else {"axis": 1}
        return (
            self.add("DequantizeLinear", ["x", "xs", "xz"], "xf"),
            self.add("DequantizeLinear", ["w", "ws", "wz"], "wf", **axis),
        )

    def rounded(self, value: str, name: str, scale: float, zero: int) -> str:
        return self.add("QuantizeLinear", [value, *self.grid(name, scale, zero)], f"{name}q")

    def again(self, name: str) -> str:
        """DequantizeLinear of what was rounded."""
        return self.add("DequantizeLinear", [f"{name}q", f"{name}s", f"{name}z"], f"{name}f")

    def model(self, opset: int = 17) -> onnx.ModelProto:
        result = self.nodes[-1].output[0]
        graph = helper.make_graph(
            self.nodes, "g", [_info(*item) for item in self.feeds.items()],
            [onnx.ValueInfoProto(name=result)],
            [numpy_helper.from_array(np.asarray(a), n) for n, a in self.held.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


_OWN = frozenset(
    {"MatMulIntegerToFloat", "QGemm", "QLinearAdd", "QLinearGlobalAveragePool", "QLinearMul",
     "QuickGelu"}
)  # fmt: skip


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _TYPES[array.dtype], array.shape)


def qdq(net: Net) -> onnx.ModelProto:
    """A product in QDQ format."""
    net.rounded(net.add("MatMul", net.widened(), "m"), "y", net.reach, 131)
    return net.model()


def qdq_sums(net: Net) -> onnx.ModelProto:
    """A bias and a residual, each rounded, as onnxruntime.quantization writes them."""
    net.rounded(net.add("MatMul", net.widened(), "m"), "y", net.reach, 131)
    net.held |= {"bq": net.random.integers(0, 256, net.columns, dtype=np.uint8)}
    net.grid("b", 0.031 * net.reach, 99)
    total = net.add("Add", [net.again("y"), net.again("b")], "t")
    net.rounded(total, "u", 0.9 * net.reach, 120)
    shape = net.rows, net.columns
    net.feeds["rq"] = net.random.integers(0, 256, shape, dtype=np.uint8)
    net.grid("r", 0.7 * net.reach, 100)
    total = net.add("Add", [net.again("r"), net.again("u")], "v")
    net.rounded(total, "o", 1.3 * net.reach, 128)
    return net.model()


def qdq_gemm(net: Net) -> onnx.ModelProto:
    """A Gemm with a transposed weight and a bias in int32."""
    net.held["w"] = np.ascontiguousarray(net.held["w"].T)
    net.held["c"] = net.random.integers(-9000, 9000, net.columns, dtype=np.int32)
    net.held["cs"] = np.broadcast_to(STEP * net.held["ws"], (net.columns,)).copy()
    net.held["cz"] = np.zeros(net.columns, np.int32)
    axis = {} if net.per_tensor else {"axis": 0}
    x = net.add("DequantizeLinear", ["x", "xs", "xz"], "xf")
    w = net.add("DequantizeLinear", ["w", "ws", "wz"], "wf", **axis)
    c = net.add("DequantizeLinear", ["c", "cs", "cz"], "cf", axis=0)
    net.rounded(net.add("Gemm", [x, w, c], "m", transB=1), "y", net.reach, 131)
    return net.model()


def operators(net: Net) -> onnx.ModelProto:
    """QLinearMatMul and QLinearAdd, in QOperator format."""
    grid = net.grid("y", net.reach, 131)
    product = net.add("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", *grid], "yq")
    net.held |= {"bq": net.random.integers(0, 256, net.columns, dtype=np.uint8)}
    other = "bq", *net.grid("b", 0.031 * net.reach, 99)
    result = net.grid("o", 0.9 * net.reach, 120)
    net.add("QLinearAdd", [*other, product, *grid, *result], "o")
    return net.model()


def operator_gemm(net: Net) -> onnx.ModelProto:
    """QGemm, in QOperator format."""
    net.held["c"] = net.random.integers(-9000, 9000, net.columns, dtype=np.int32)
    grid = net.grid("y", net.reach, 131)
    net.add("QGemm", ["x", "xs", "xz", "w", "ws", "wz", "c", *grid], "o", alpha=1.0)
    return net.model()


def dynamic(net: Net) -> onnx.ModelProto:
    """MatMulInteger, Cast and Mul, as quantize_dynamic writes them."""
    net.feeds["fs"], net.feeds["fz"] = net.held.pop("xs").reshape(1), net.held.pop("xz")
    net.held["b"] = net.random.standard_normal(net.columns).astype(np.float32)
    scale = net.add("Mul", ["fs", "ws"], "s")
    whole = net.add("MatMulInteger", ["x", "w", "fz", "wz"], "i")
    scaled = net.add("Mul", [net.add("Cast", [whole], "c", to=1), scale], "m")
    net.add("Add", [scaled, "b"], "o")
    return net.model()


def to_float(net: Net) -> onnx.ModelProto:
    """MatMulIntegerToFloat with a bias and a residual."""
    net.feeds["fs"], net.feeds["fz"] = net.held.pop("xs"), net.held.pop("xz")
    net.feeds["r"] = net.random.standard_normal((net.rows, net.columns)).astype(np.float32)
    net.held["b"] = net.random.standard_normal(net.columns).astype(np.float32)
    net.held["ws"] = np.atleast_1d(net.held["ws"])
    net.held.pop("wz")
    made = net.add("MatMulIntegerToFloat", ["x", "w", "fs", "ws", "fz", "", "b"], "m")
    net.add("Add", [net.add("Relu", [made], "p"), "r"], "o")
    return net.model()


def rescaled(net: Net) -> onnx.ModelProto:
    """A product, scaled as by LayerScale, and a residual: each of them rounds."""
    net.feeds["r"] = net.random.standard_normal((net.rows, net.columns)).astype(np.float32)
    net.held["g"] = net.random.standard_normal(net.columns).astype(np.float32)
    net.held["ws"] = np.atleast_1d(net.held["ws"])
    made = net.add("MatMulIntegerToFloat", ["x", "w", "xs", "ws", "xz"], "m")
    net.add("Add", [net.add("Mul", [made, "g"], "p"), "r"], "o")
    return net.model()


def middle_of_bytes(net: Net) -> onnx.ModelProto:
    """A weight in uint8 around 128, which is one in int8."""
    net.held["w"] = (net.held["w"].astype(np.int16) + 128).astype(np.uint8)
    net.held["wz"] = np.full(net.held["wz"].shape, 128, np.uint8)
    return qdq(net)


MODELS = {
    item.__name__: item
    for item in (
        qdq, qdq_sums, qdq_gemm, operators, operator_gemm, dynamic, to_float, rescaled,
        middle_of_bytes,
    )
}  # fmt: skip

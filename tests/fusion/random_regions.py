"""Random graphs of what regions are made of, with what ends them in between."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

UNARY = ("Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Identity", "Gelu", "Softplus")
BINARY = ("Add", "Mul", "Sub", "Max")
WIDTH, HEADS = 8, 2
Shape = tuple[int | str, ...]


class RandomGraph:
    """Grows a graph node by node over the shapes [s, 8], [s, 1], [8, s] and [2, s, 8]."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {"x": ("s", WIDTH), "y": ("s", WIDTH)}
        self.heads: dict[str, Shape] = {"h": (HEADS, "s", WIDTH)}
        self.shapes.update(self.heads)
        while len(self.nodes) < nodes:
            self._grow()

    def model(self) -> onnx.ModelProto:
        made = [name for node in self.nodes for name in node.output]
        read = {name for node in self.nodes for name in node.input}
        also = self.random.choice(made, size=min(3, len(made)), replace=False).tolist()
        outputs = dict.fromkeys([*(name for name in made if name not in read), *also])
        inputs = {name: self.shapes[name] for name in ("x", "y", "h")}
        graph = helper.make_graph(
            self.nodes,
            "g",
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in inputs.items()
            ],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])
                for name in outputs
            ],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 23)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _pick(self, *shapes: Shape) -> str | None:
        fitting = [name for name, shape in self.shapes.items() if shape in shapes]
        # Mostly the newest, so that chains get long.
        if not fitting:
            return None
        newest = fitting[-4:] if self.random.random() < 0.7 else fitting
        return str(self.random.choice(newest))

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def _floats(self, *shape: int) -> str:
        return self._constant(self.random.uniform(0.5, 1.5, shape).astype(np.float32))

    def _op(self, op_type: str, inputs: list[str], shape: Shape, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        self.shapes[name] = shape

    def _grow(self) -> None:
        rows, row, turned = ("s", WIDTH), ("s", 1), (WIDTH, "s")
        heads = (HEADS, "s", WIDTH)
        kind = self.random.choice(
            ["unary", "unary", "binary", "binary", "bias", "row", "reduce", "norm", "softmax",
             "turn", "product", "head", "split", "join"]
        )  # fmt: skip
        x = self._pick(rows) or "x"
        match kind:
            case "unary":
                name = self._pick(rows, row, turned, heads) or x
                self._op(str(self.random.choice(UNARY)), [name], self.shapes[name])
            case "binary":
                other = self._pick(rows, row) or x
                self._op(str(self.random.choice(BINARY)), [x, other], rows)
            case "bias":
                self._op("Add", [x, self._floats(WIDTH)], rows)
            case "row":
                name = self._pick(row)
                if name is not None:
                    self._op("Mul", [name, self._floats(1)], row)
            case "reduce":
                axes = self._constant(np.array([-1]))
                op_type = str(self.random.choice(["ReduceMean", "ReduceMax", "ReduceSum"]))
                self._op(op_type, [x, axes], row, keepdims=1)
            case "norm":
                inputs = [x, self._floats(WIDTH), self._floats(WIDTH)]
                self._op("LayerNormalization", inputs, rows, axis=-1)
            case "softmax":
                self._op("Softmax", [x], rows, axis=-1)
            case "turn":
                name = self._pick(turned, rows) or x
                shape = self.shapes[name]
                self._op("Transpose", [name], (shape[1], shape[0]), perm=[1, 0])
            case "product":
                self._op("MatMul", [x, self._floats(WIDTH, WIDTH)], rows)
            case "head":
                self._op("Add", [self._pick(heads) or "h", x], heads)
            case "split":
                half = WIDTH // 2
                bounds = [self._constant(np.array([n])) for n in (half, WIDTH, -1)]
                self._op("Slice", [x, *bounds], ("s", half))
            case "join":
                half = self._pick(("s", WIDTH // 2))
                if half is not None:
                    self._op("Concat", [half, half], rows, axis=-1)

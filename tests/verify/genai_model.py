"""A small decoder as the builder of onnxruntime-genai writes it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, GROUPS, HEAD, WORDS, BLOCK = 32, 2, 1, 16, 48, 16


def genai_model(
    *,
    layers: int = 2,
    total: str = "total_sequence_length",
    packed: bool = True,
    window: int = 0,
    width: int = WIDTH,
    level: int = 0,
) -> onnx.ModelProto:
    """Build it: int4 weights, GroupQueryAttention, caches whose last axis has a name.

    Args:
        layers: Number of layers.
        total: Name of the mask's length.
        packed: Whether queries, keys and values are one input of the attention.
        window: Tokens that the first layer sees and keeps, if any; its cache has a fixed size.
        width: Elements of a token between layers.
        level: Accuracy level of the products; with 4 rows may be rounded to int8.
    """
    return _Builder(total, packed, window, width, level).model(layers)


class _Builder:
    def __init__(self, total: str, packed: bool, window: int, width: int, level: int) -> None:
        self.total, self.packed, self.window = total, packed, window
        self.width, self.level = width, level
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {
            "one": np.array([1]), "scalar_one": np.array(1),
            "cos": self.wave(0.0), "sin": self.wave(np.pi / 2),
        }  # fmt: skip

    @staticmethod
    def wave(shift: float) -> np.ndarray:
        angles = np.outer(np.arange(256), 0.3 ** np.arange(HEAD // 2))
        return np.cos(angles - shift).astype(np.float32)

    def op(self, kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> None:
        standard = kind in {"ReduceSum", "Sub", "Cast", "Shape", "Gather", "Identity", "Reshape"}
        standard |= kind == "SimplifiedLayerNormalization"
        domain = "" if standard else "com.microsoft"
        node = helper.make_node(kind, inputs, outputs, outputs[0], domain=domain, **attributes)
        self.nodes.append(node)

    def product(self, x: str, name: str, columns: int, depth: int = 0) -> str:
        depth = depth or self.width
        blocks = depth // BLOCK
        self.weights[f"{name}.q"] = self.random.integers(
            0, 256, (columns, blocks, BLOCK // 2)
        ).astype(np.uint8)
        self.weights[f"{name}.s"] = self.random.uniform(0.02, 0.05, (columns, blocks)).astype(
            np.float32
        )
        level = {"accuracy_level": self.level} if self.level else {}
        self.op("MatMulNBits", [x, f"{name}.q", f"{name}.s"], [name], K=depth, N=columns, bits=4,
                block_size=BLOCK, **level)  # fmt: skip
        return name

    def model(self, layers: int) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        self.op("ReduceSum", ["attention_mask", "one"], ["counts"], keepdims=1)
        self.op("Sub", ["counts", "one"], ["lasts"])
        self.op("Cast", ["lasts"], ["seqlens_k"], to=TensorProto.INT32)
        self.op("Shape", ["attention_mask"], ["mask_shape"])
        self.op("Gather", ["mask_shape", "scalar_one"], ["length"], axis=0)
        self.op("Cast", ["length"], ["total_seq_len"], to=TensorProto.INT32)
        self.weights["table.q"] = self.random.integers(0, 256, (WORDS, self.width // 2)).astype(
            np.uint8
        )
        self.weights["table.s"] = np.full((WORDS, self.width // BLOCK), 0.1, np.float32)
        self.op("GatherBlockQuantized", ["table.q", "input_ids", "table.s"], ["x"], bits=4,
                block_size=BLOCK, quantize_axis=1, gather_axis=0)  # fmt: skip
        inputs = [
            value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
            value("attention_mask", TensorProto.INT64, ["batch_size", self.total]),
        ]
        outputs = [
            value("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", WORDS]),
        ]
        x, skip = "x", ""
        for i in range(layers):
            x, skip = self.layer(i, x, skip)
            slides = self.window > 0 and i == 0
            for part in ("key", "value"):
                past = "past_sliding_length" if slides else "past_sequence_length"
                dims = ["batch_size", GROUPS, past, "kv_cache_dim"]
                inputs.append(value(f"past_key_values.{i}.{part}", TensorProto.FLOAT, dims))
                dims[2] = past if slides else self.total
                outputs.append(value(f"present.{i}.{part}", TensorProto.FLOAT, dims))
        self.weights["last"] = np.ones(self.width, np.float32)
        self.op("SkipSimplifiedLayerNormalization", [x, skip, "last"], ["end"], epsilon=1e-6)
        self.op("Identity", [self.product("end", "head", WORDS)], ["logits"])
        constants = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, ir_version=10, opset_imports=opsets)

    def layer(self, i: int, x: str, skip: str) -> tuple[str, str]:
        self.weights[f"norm{i}"] = np.ones(self.width, np.float32)
        if skip:
            self.op("SkipSimplifiedLayerNormalization", [x, skip, f"norm{i}"],
                    [f"in{i}", "", "", f"sum{i}"], epsilon=1e-6)  # fmt: skip
            x = f"sum{i}"
        else:
            self.op("SimplifiedLayerNormalization", [x, f"norm{i}"], [f"in{i}"], axis=-1,
                    epsilon=1e-6)  # fmt: skip
        columns = {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD}
        if self.packed:
            parts = [self.product(f"in{i}", f"qkv{i}", sum(columns.values())), "", ""]
        else:
            parts = [self.product(f"in{i}", f"{n}{i}", width) for n, width in columns.items()]
        names = [f"{i}.{part}" for part in ("key", "value")]
        slides = {"local_window_size": self.window, "sliding_window_cache": 1}
        self.op("GroupQueryAttention",
                [*parts, *(f"past_key_values.{n}" for n in names), "seqlens_k", "total_seq_len",
                 "cos", "sin"],
                [f"attention{i}", *(f"present.{n}" for n in names)],
                num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
                **(slides if self.window and i == 0 else {}))  # fmt: skip
        return x, self.product(f"attention{i}", f"out{i}", self.width, HEADS * HEAD)

"""Attention graphs composed at random from the ways in which their parts are written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LOWEST = -3.4028234663852886e38
#: What scores that are left out are set to, or get added.
FILLS = (-np.inf, LOWEST, LOWEST, -1e30)
Size = int | str


@dataclass
class AttentionGraph:
    """One model; everything is drawn from `random`."""

    random: np.random.Generator
    opset: int = 20
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, tuple[tuple[Size, ...], int]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def data(self, array: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def number(self, number: float) -> str:
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1, 1, 1))
        return self.data(np.full(shapes[self.random.integers(3)], number))

    def ints(self, *numbers: int) -> str:
        return self.data(numbers, np.int64)

    def input(self, name: str, *shape: Size, kind: int = TensorProto.FLOAT) -> str:
        self.inputs[name] = shape, kind
        return name

    def scaled(self, value: str, share: float = 0.25) -> str:
        if not self.chance(share):
            return value
        factor = self.data([0.5, 2.0, 0.7, 0.35][self.random.integers(4)])
        kind = ("Mul", "Div")[self.random.integers(2)]
        swaps = kind == "Mul" and self.chance(0.5)
        return self.op(kind, *((factor, value) if swaps else (value, factor)))

    def model(self) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (shape, kind) in self.inputs.items()
        ]
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in dict.fromkeys(self.outputs)
        ]
        graph = helper.make_graph(self.nodes, "g", infos, results, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def attention_graph(seed: int) -> AttentionGraph:
    """Return a graph with inputs of the sizes b, s, t and p (of a cache), u = p + s."""
    random = np.random.default_rng(seed)
    graph = AttentionGraph(random, int(random.choice([13, 17, 20, 22])))
    batch: Size = (1, 2, "b")[random.integers(3)]
    queries: Size = ("s", "s", 4, 1)[random.integers(4)]
    keys: Size = queries if graph.chance(0.6) else "t"
    heads = int(random.choice([1, 2, 4]))
    shared = int(random.choice([each for each in (1, 2, 4) if heads % each == 0]))
    size, value_size = (int(random.choice([4, 8])) for _ in range(2))
    is_flat, has_cache = graph.chance(0.7), graph.chance(0.25)
    keys = queries if has_cache else keys
    parts = []
    wanted = (("q", queries, heads, size), ("k", keys, shared, size))
    for name, length, count, channels in (*wanted, ("v", keys, shared, value_size)):
        if is_flat:
            value = graph.input(name, batch, length, count * channels)
            value = graph.op("Reshape", value, graph.ints(0, -1, count, channels))
            value = graph.op("Transpose", value, perm=[0, 2, 1, 3])
        else:
            value = graph.input(name, batch, count, length, channels)
        parts.append(graph.scaled(value) if name != "v" else value)
    query, key, value = parts
    if has_cache:
        past = graph.input("pk", batch, shared, "p", size)
        key = graph.op("Concat", past, key, axis=2)
        past = graph.input("pv", batch, shared, "p", value_size)
        value = graph.op("Concat", past, value, axis=2)
        graph.outputs += [key, value]
    if shared not in (heads, 1):
        key, value = (
            _repeated(graph, each, heads, shared, channels)
            for each, channels in ((key, size), (value, value_size))
        )
    key = graph.op("Transpose", key, perm=[0, 1, 3, 2])
    scores = graph.scaled(graph.op("MatMul", query, key), 0.5)
    if graph.chance(0.1):
        scores = graph.op("Mul", scores, graph.input("gain", heads, 1, 1))
    if graph.chance(0.15):
        cap = (5.0, -5.0)[random.integers(2)]
        scores = graph.op("Mul", graph.op("Div", scores, graph.number(cap)), graph.data(1.0))
        scores = graph.op("Mul", graph.op("Tanh", scores), graph.number(cap))
    for index in range(int(random.choice([0, 1, 1, 2, 3]))):
        scores = _masked(graph, scores, index, (batch, heads, queries, keys), has_cache)
    weights = graph.op("Softmax", scores, axis=-1)
    if graph.chance(0.35):
        test = graph.op("IsNaN", weights)
        weights = graph.op("Where", test, graph.data(0.0), weights)
    result = graph.op("MatMul", weights, value)
    if is_flat:
        result = graph.op("Transpose", result, perm=[0, 2, 1, 3])
        result = graph.op("Reshape", result, graph.ints(0, 0, heads * value_size))
    graph.outputs.append(result)
    return graph


def _repeated(graph: AttentionGraph, value: str, heads: int, shared: int, channels: int) -> str:
    shape = graph.op("Shape", value)
    batch, length = (graph.op("Gather", shape, graph.ints(axis)) for axis in (0, 2))
    wide = [batch, graph.ints(shared, heads // shared), length, graph.ints(channels)]
    joined = [batch, graph.ints(heads), length, graph.ints(channels)]
    value = graph.op("Unsqueeze", value, graph.ints(2))
    value = graph.op("Expand", value, graph.op("Concat", *wide, axis=0))
    return graph.op("Reshape", value, graph.op("Concat", *joined, axis=0))


def _masked(
    graph: AttentionGraph, scores: str, index: int, sizes: tuple[Size, ...], has_cache: bool
) -> str:
    batch, heads, queries, keys = sizes
    keys = "u" if has_cache else keys
    kind = graph.random.choice(["add", "sub", "log", "bias", "choose", "leave", "raise"])
    fill = float(graph.random.choice(FILLS))
    if kind == "raise":
        return graph.op("Max", scores, graph.number(LOWEST))
    if kind == "bias":
        axes = [size if graph.chance(0.5) else 1 for size in (batch, heads, queries)]
        return graph.op("Add", graph.input(f"bias{index}", *axes, keys), scores)
    kept = _kept(graph, scores, index, batch, keys, has_cache)
    if kind == "choose":
        return graph.op("Where", kept, scores, graph.number(fill))
    if kind == "leave":
        return graph.op("Where", graph.op("Not", kept), graph.number(fill), scores)
    if kind == "add":
        mask = graph.op("Where", kept, graph.number(0.0), graph.number(fill))
        return graph.op("Add", scores, mask)
    if kind == "log":
        mask = graph.op("Cast", kept, to=TensorProto.FLOAT)
        return graph.op("Add", graph.op("Log", mask), scores)
    flags = graph.op("Cast", graph.op("Not", kept), to=TensorProto.FLOAT)
    mask = graph.op("Mul", flags, graph.number(-LOWEST if fill == -np.inf else -fill))
    return graph.op("Sub", scores, mask)


def _kept(
    graph: AttentionGraph, scores: str, index: int, batch: Size, keys: Size, has_cache: bool
) -> str:
    kind = graph.random.choice(["padding", "padding", "causal", "strict", "window"])
    if kind == "padding":
        keep = graph.input(f"keep{index}", batch, keys, kind=TensorProto.BOOL)
        return graph.op("Unsqueeze", keep, graph.ints(1, 2))
    shape = graph.op("Shape", scores)
    zero, one = graph.data(0, np.int64), graph.data(1, np.int64)
    counts = [graph.op("Gather", shape, graph.data(axis, np.int64)) for axis in (2, 3)]
    rows, columns = (graph.op("Range", zero, count, one) for count in counts)
    if has_cache or graph.chance(0.3):
        rows = graph.op("Add", rows, graph.op("Sub", counts[1], counts[0]))
    rows = graph.op("Unsqueeze", rows, graph.ints(1))
    kept = graph.op("Not", graph.op("Greater", columns, rows))
    if kind == "strict":
        return graph.op("Less", columns, rows)
    if kind == "causal":
        return kept
    width = graph.data(int(graph.random.choice([1, 2, 20])), np.int64)
    return graph.op("And", kept, graph.op("Less", graph.op("Sub", rows, columns), width))


def feeds_of(graph: AttentionGraph, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Return inputs; some queries see no key, and biases are -inf here and there."""
    random, made = np.random.default_rng(seed), {}
    for name, (shape, kind) in graph.inputs.items():
        known = [sizes[size] if isinstance(size, str) else size for size in shape]
        if kind == TensorProto.BOOL:
            keep = random.random(known) < 0.6
            keep[-1] = False
            made[name] = keep
            continue
        array = random.standard_normal(known).astype(np.float32)
        if name.startswith("bias"):
            array[random.random(known) < 0.3] = LOWEST
            array[..., 0, :] = LOWEST
            array[..., 1:2, :] = -np.inf
        made[name] = array
    return made

"""Random valid models for property tests: many small ops, odd sharing, outputs in the middle."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.contract.random_builder import Builder, Draw, Shape
from tests.contract.random_layers import LAYERS

FLOAT = TensorProto.FLOAT


def unary(b: Builder) -> None:
    x = b.pick()
    op = b.draw(st.sampled_from(["Identity", "Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Dropout"]))
    b.op(op, [x], *b.values[x])


def cast(b: Builder) -> None:
    x = b.pick()
    _, shape = b.values[x]
    middle = b.draw(st.sampled_from([FLOAT, TensorProto.DOUBLE]))
    t = b.op("Cast", [x], middle, shape, to=middle)
    b.op("Cast", [t], FLOAT, shape, to=FLOAT)


def arithmetic(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    number = b.draw(st.sampled_from([0.0, 1.0, 0.5, 3.0]))
    form = b.draw(st.sampled_from([(), (1,), shape[-1:]]))
    c = b.const(np.full(form, number, np.float32))
    op = b.draw(st.sampled_from(["Add", "Mul", "Sub", "Div"]))
    if op == "Div" and number == 0.0:
        op = "Mul"
    left_first = op in ("Sub", "Div") or b.draw(st.booleans())
    b.op(op, [x, c] if left_first else [c, x], dtype, shape)


def add_two(b: Builder) -> None:
    x = b.pick()
    same = [name for name, value in b.values.items() if value == b.values[x]]
    b.op("Add", [x, str(b.draw(st.sampled_from(same)))], *b.values[x])


def transpose(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    perm = b.draw(st.permutations(range(len(shape))))
    b.op("Transpose", [x], dtype, tuple(shape[i] for i in perm), perm=list(perm))


def reshape(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    size = int(np.prod(shape))
    targets: list[tuple[list[int], Shape]] = [([-1], (size,))]
    targets.append(([0, -1], (shape[0], size // shape[0])))
    targets.append((list(shape), shape))
    if size % 2 == 0:
        targets.append(([2, -1], (2, size // 2)))
    target, result = b.draw(st.sampled_from(targets))
    b.op("Reshape", [x, b.ints(*target)], dtype, result)


def computed_reshape(b: Builder) -> None:
    """Reshape to a target computed from the shape, as TorchScript exports write it."""
    x = b.pick()
    dtype, shape = b.values[x]
    s = b.op("Shape", [x], TensorProto.INT64, (len(shape),))
    parts = []
    for axis in range(len(shape)):
        index = b.const(np.array(axis, np.int64))
        size = b.op("Gather", [s, index], TensorProto.INT64, (), axis=0)
        parts.append(b.op("Unsqueeze", [size, b.ints(0)], TensorProto.INT64, (1,)))
    if b.draw(st.booleans()):
        parts.append(b.ints(1))
        shape = (*shape, 1)
    target = b.op("Concat", parts, TensorProto.INT64, (len(parts),), axis=0)
    b.op("Reshape", [x, target], dtype, shape)


def squeeze_pair(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    axis = b.draw(st.integers(0, len(shape)))
    wide = (*shape[:axis], 1, *shape[axis:])
    t = b.op("Unsqueeze", [x, b.ints(axis)], dtype, wide)
    if b.draw(st.booleans()):
        b.op("Squeeze", [t, b.ints(axis)], dtype, shape)


def slice_(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    end = b.draw(st.sampled_from([shape[axis], 2**63 - 1, 1]))
    result = (*shape[:axis], min(end, shape[axis]), *shape[axis + 1 :])
    b.op("Slice", [x, b.ints(0), b.ints(end), b.ints(axis)], dtype, result)


def concat(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    count = b.draw(st.integers(1, 3))
    b.op("Concat", [x] * count, dtype, (shape[0] * count, *shape[1:]), axis=0)


def expand(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    b.op("Expand", [x, b.ints(*(1 for _ in shape))], dtype, shape)


def fold_me(b: Builder) -> None:
    """A subgraph of constants only, used on a value."""
    x = b.pick()
    dtype, shape = b.values[x]
    c = b.const(np.linspace(-1, 1, shape[-1], dtype=np.float32))
    t = b.op("Tanh", [c], FLOAT, shape[-1:])
    t = b.op("Add", [t, b.const(np.array(2, np.float32))], FLOAT, shape[-1:])
    del b.values[t]
    b.op("Mul", [x, t], dtype, shape)


def matmul(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    if len(shape) < 2:
        return
    n = b.draw(st.integers(1, 4))
    w = b.const(np.sin(np.arange(shape[-1] * n, dtype=np.float32)).reshape(shape[-1], n))
    y = b.op("MatMul", [x, w], dtype, (*shape[:-1], n))
    if b.draw(st.booleans()):
        bias = b.const(np.cos(np.arange(n, dtype=np.float32)))
        operands = [y, bias] if b.draw(st.booleans()) else [bias, y]
        b.op("Add", operands, dtype, (*shape[:-1], n))


def gelu(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    scaled = b.op("Div", [x, b.const(np.array(np.sqrt(2), np.float32))], dtype, shape)
    one = b.const(np.array(1, np.float32))
    t = b.op("Add", [b.op("Erf", [scaled], dtype, shape), one], dtype, shape)
    half = b.const(np.array(0.5, np.float32))
    if b.draw(st.booleans()):
        b.op("Mul", [b.op("Mul", [x, t], dtype, shape), half], dtype, shape)
    else:
        b.op("Mul", [b.op("Mul", [half, x], dtype, shape), t], dtype, shape)


def conv_norm(b: Builder) -> None:
    x = b.pick(rank=4)
    if x is None:
        return
    dtype, shape = b.values[x]
    channels = shape[1]
    rng = np.random.default_rng(b.draw(st.integers(0, 99)))
    w = b.const(rng.standard_normal((3, channels, 1, 1), np.float32))
    inputs = [x, w]
    if b.draw(st.booleans()):
        inputs.append(b.const(rng.standard_normal(3, np.float32)))
    result = (shape[0], 3, *shape[2:])
    y = b.op("Conv", inputs, dtype, result)
    norm = [b.const(rng.uniform(0.5, 2, 3).astype(np.float32)) for _ in range(4)]
    b.op("BatchNormalization", [y, *norm], dtype, result)


def branch(b: Builder) -> None:
    """An If whose branches capture an outer value, one of them by Identity."""
    x = b.pick()
    dtype, shape = b.values[x]
    name = b.fresh()
    info = [helper.make_tensor_value_info(f"{name}_t", dtype, None)]
    then = helper.make_graph([helper.make_node("Identity", [x], [f"{name}_t"])], "then", [], info)
    info = [helper.make_tensor_value_info(f"{name}_e", dtype, None)]
    inner = [
        helper.make_node("Identity", [x], [f"{name}_i"]),
        helper.make_node("Relu", [f"{name}_i"], [f"{name}_e"]),
    ]
    other = helper.make_graph(inner, "else", [], info)
    condition = "flag" if b.draw(st.booleans()) else b.const(np.array(True))
    node = helper.make_node(
        "If", [condition], [name], f"n_{name}", then_branch=then, else_branch=other
    )
    b.nodes.append(node)
    b.values[name] = (dtype, shape)


def dead(b: Builder) -> None:
    x = b.pick()
    b.nodes.append(helper.make_node("Exp", [x], [b.fresh()]))


STEPS = (
    unary, cast, arithmetic, add_two, transpose, reshape, computed_reshape, squeeze_pair, slice_,
    concat, expand, fold_me, matmul, gelu, conv_norm, branch, dead,
    *LAYERS,
)  # fmt: skip


@st.composite
def models(draw: Draw) -> onnx.ModelProto:
    """Make a model with inputs x: [batch, 3, 4], img: [2, 3, 2, 2] and flag: bool."""
    b = Builder(draw)
    b.values["x"] = (FLOAT, (2, 3, 4))
    b.values["img"] = (FLOAT, (2, 3, 2, 2))
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=12)):
        step(b)
    made = [name for name in b.values if name not in ("x", "img")]
    candidates = made or [b.op("Identity", ["x"], *b.values["x"])]
    outputs = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3, unique=True))
    graph = helper.make_graph(
        b.nodes,
        "random",
        [
            helper.make_tensor_value_info("x", FLOAT, ["batch", 3, 4]),
            helper.make_tensor_value_info("img", FLOAT, [2, 3, 2, 2]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, b.values[name][0], None) for name in outputs],
        b.initializers,
    )
    opset = draw(st.sampled_from([17, 20]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds(seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs for any of these models."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((2, 3, 4), np.float32),
        "img": rng.standard_normal((2, 3, 2, 2), np.float32),
        "flag": np.array(bool(seed % 2)),
    }

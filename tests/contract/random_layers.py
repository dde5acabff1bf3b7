"""Larger steps for random models: what whole layers of exported models are made of."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.contract.random_builder import Builder

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def _weights(b: Builder, *shape: int) -> np.ndarray:
    seed = b.draw(st.integers(0, 99))
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def gemm_of_rows(b: Builder) -> None:
    x = b.pick(rank=3)
    if x is None:
        return
    dtype, (batch, sequence, k) = b.values[x]
    n, transposed = b.draw(st.integers(1, 3)), b.draw(st.booleans())
    rows = b.op("Reshape", [x, b.ints(-1, k)], dtype, (batch * sequence, k))
    w = b.const(_weights(b, n, k) if transposed else _weights(b, k, n))
    inputs = [rows, w, b.const(_weights(b, n))] if b.draw(st.booleans()) else [rows, w]
    alpha = b.draw(st.sampled_from([1.0, 0.5]))
    y = b.op("Gemm", inputs, dtype, (batch * sequence, n), transB=int(transposed), alpha=alpha)
    b.op("Reshape", [y, b.ints(-1, sequence, n)], dtype, (batch, sequence, n))


def parallel_matmuls(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    if len(shape) < 2:
        return
    is_biased = b.draw(st.booleans())
    for _ in range(b.draw(st.integers(2, 4))):
        n = b.draw(st.integers(1, 3))
        y = b.op("MatMul", [x, b.const(_weights(b, shape[-1], n))], dtype, (*shape[:-1], n))
        if is_biased:
            b.op("Add", [y, b.const(_weights(b, n))], dtype, (*shape[:-1], n))


def two_matmuls(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    if len(shape) < 2:
        return
    wide = b.draw(st.integers(1, 9))
    t = b.op("MatMul", [x, b.const(_weights(b, shape[-1], wide))], dtype, (*shape[:-1], wide))
    b.op("MatMul", [t, b.const(_weights(b, wide, 2))], dtype, (*shape[:-1], 2))


def padded_conv(b: Builder) -> None:
    x = b.pick(rank=4)
    if x is None:
        return
    dtype, (n, c, h, w) = b.values[x]
    value = b.draw(
        st.sampled_from(
            [[], [b.const(np.array(0, np.float32))], [b.const(np.array(2, np.float32))]]
        )
    )
    padded = b.op("Pad", [x, b.ints(0, 0, 1, 0, 0, 0, 0, 1), *value], dtype, (n, c, h + 1, w + 1))
    if b.draw(st.booleans()):
        weight = b.const(_weights(b, 2, c, 1, 1))
        y = b.op("Conv", [padded, weight], dtype, (n, 2, h + 1, w + 1))
        activation = b.draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "LeakyRelu"]))
        b.op(activation, [y], dtype, (n, 2, h + 1, w + 1))
    else:
        pool = b.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        b.op(pool, [padded], dtype, (n, c, h, w), kernel_shape=[2, 2])


def scaled_conv(b: Builder) -> None:
    x = b.pick(rank=4)
    if x is None:
        return
    dtype, (n, c, h, w) = b.values[x]
    pads = b.draw(st.sampled_from([0, 1]))
    before = b.draw(st.sampled_from(["Add", "Mul"]))
    t = b.op(before, [x, b.const(_weights(b, c, 1, 1))], dtype, (n, c, h, w))
    result = (n, 3, h + 2 * pads, w + 2 * pads)
    y = b.op("Conv", [t, b.const(_weights(b, 3, c, 1, 1))], dtype, result, pads=[pads] * 4)
    after = b.draw(st.sampled_from(["Add", "Mul", "Sub"]))
    b.op(after, [y, b.const(_weights(b, 3, 1, 1))], dtype, result)


def channels_last(b: Builder) -> None:
    """Work between two Transposes, as exporters from other layouts write it."""
    x = b.pick(rank=4)
    if x is None:
        return
    dtype, (n, c, h, w) = b.values[x]
    last = (n, h, w, c)
    t = b.op("Transpose", [x], dtype, last, perm=[0, 2, 3, 1])
    for _ in range(b.draw(st.integers(0, 3))):
        match b.draw(st.sampled_from(["Relu", "Mul", "Concat", "ReduceMax", "Softmax"])):
            case "Mul":
                t = b.op("Mul", [t, b.const(_weights(b, last[-1]))], dtype, last)
            case "Concat":
                last = (*last[:-1], 2 * last[-1])
                t = b.op("Concat", [t, t], dtype, last, axis=-1)
            case "ReduceMax":
                # From opset 18 on its axes are an input; as it keeps all axes, none are given.
                wide = b.op("ReduceMax", [t], dtype, (1, 1, 1, 1))
                t = b.op("Sub", [t, wide], dtype, last)
            case "Softmax":
                t = b.op("Softmax", [t], dtype, last, axis=-1)
            case _:
                t = b.op("Relu", [t], dtype, last)
    b.op("Transpose", [t], dtype, (n, last[-1], h, w), perm=[0, 3, 1, 2])


def heads(b: Builder) -> None:
    """Part the last axis and swap it forward, and back."""
    x = b.pick(rank=3)
    if x is None or b.values[x][1][2] % 2:
        return
    dtype, (n, s, d) = b.values[x]
    t = b.op("Reshape", [x, b.ints(0, 0, 2, d // 2)], dtype, (n, s, 2, d // 2))
    t = b.op("Transpose", [t], dtype, (n, 2, s, d // 2), perm=[0, 2, 1, 3])
    t = b.op("Softmax", [t], dtype, (n, 2, s, d // 2), axis=-1)
    t = b.op("Transpose", [t], dtype, (n, s, 2, d // 2), perm=[0, 2, 1, 3])
    b.op("Reshape", [t, b.ints(0, 0, d)], dtype, (n, s, d))


def split_and_join(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    if shape[-1] < 2:
        return
    first = b.draw(st.integers(1, shape[-1] - 1))
    sizes = (first, shape[-1] - first)
    names = [b.fresh(), b.fresh()]
    b.nodes.append(
        helper.make_node("Split", [x, b.ints(*sizes)], names, f"n_{names[0]}", axis=len(shape) - 1)
    )
    for name, size in zip(names, sizes, strict=True):
        b.values[name] = (dtype, (*shape[:-1], size))
    if b.draw(st.booleans()):
        b.op("Concat", names, dtype, shape, axis=-1)


def rounded_input(b: Builder) -> None:
    """Integers and quantization, of an input only: elsewhere one rounding more would show."""
    if b.draw(st.booleans()):
        t = b.op("Cast", ["x"], INT32, (2, 3, 4), to=INT32)
        t = b.op("Cast", [t], INT64, (2, 3, 4), to=INT64)
        b.op("Cast", [t], FLOAT, (2, 3, 4), to=FLOAT)
        return
    scale, zero = b.const(np.array(0.1, np.float32)), b.const(np.array(3, np.int8))
    t = b.op("QuantizeLinear", ["x", scale, zero], TensorProto.INT8, (2, 3, 4))
    b.op("DequantizeLinear", [t, scale, zero], FLOAT, (2, 3, 4))


def certain_branch(b: Builder) -> None:
    """An If whose condition is constant; both branches use the same names inside."""
    x = b.pick()
    dtype, shape = b.values[x]
    name = b.fresh()
    bodies = []
    for op in ("Relu", "Neg"):
        nodes = [
            helper.make_node(op, [x], [f"{name}_t"]),
            helper.make_node("Abs", [f"{name}_t"], [f"{name}_r"]),
        ]
        info = [helper.make_tensor_value_info(f"{name}_r", dtype, None)]
        bodies.append(helper.make_graph(nodes, f"{name}_{op}", [], info))
    node = helper.make_node(
        "If",
        [b.const(np.array(b.draw(st.booleans())))],
        [name],
        f"n_{name}",
        then_branch=bodies[0],
        else_branch=bodies[1],
    )
    b.nodes.append(node)
    b.values[name] = (dtype, shape)


def loop(b: Builder) -> None:
    """A Loop over a state, that reads an outer value in its body."""
    x = b.pick()
    dtype, shape = b.values[x]
    name = b.fresh()
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", [f"{name}_c"], [f"{name}_d"]),
        helper.make_node("Neg", [x], [f"{name}_n"]),
        helper.make_node("Neg", [f"{name}_n"], [f"{name}_m"]),
        helper.make_node("Add", [f"{name}_s", f"{name}_m"], [f"{name}_t"]),
    ]
    body = helper.make_graph(
        nodes,
        f"{name}_body",
        [
            info(f"{name}_i", INT64, []),
            info(f"{name}_c", TensorProto.BOOL, []),
            info(f"{name}_s", dtype, None),
        ],
        [info(f"{name}_d", TensorProto.BOOL, []), info(f"{name}_t", dtype, None)],
    )
    trips = b.const(np.array(b.draw(st.integers(0, 2)), np.int64))
    b.nodes.append(helper.make_node("Loop", [trips, "", x], [name], f"n_{name}", body=body))
    b.values[name] = (dtype, shape)


def recurrent(b: Builder) -> None:
    x = b.pick(rank=3)
    if x is None:
        return
    dtype, (s, n, d) = b.values[x]
    state = np.full((1, n, 2), b.draw(st.sampled_from([0, 1])), np.float32)
    weights = [b.const(_weights(b, 1, 2, d)), b.const(_weights(b, 1, 2, 2))]
    inputs = [x, *weights, "", "", b.const(state)]
    b.op("RNN", inputs, dtype, (s, 1, n, 2), hidden_size=2)


def select(b: Builder) -> None:
    x = b.pick()
    dtype, shape = b.values[x]
    b.op("Where", ["flag", x, b.const(np.zeros(shape[-1:], np.float32))], dtype, shape)


LAYERS = (
    gemm_of_rows, parallel_matmuls, two_matmuls, padded_conv, scaled_conv, channels_last, heads,
    split_and_join, rounded_input, certain_branch, loop, recurrent, select,
)  # fmt: skip

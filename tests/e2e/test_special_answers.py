"""Infinities and NaN through whole models: rewritten, with kernels, with products before them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

from ortkit import OptimizeOptions, optimize

ort = pytest.importorskip("onnxruntime")
VALUES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3, -3, 6, 100, -100, 1e-40, -1e-40], np.float32
)
#: Nodes from `x` to `y`; `K<number>` is a constant.
BODIES = {
    "prelu": "t = Neg(x)  u = PRelu(t, K0)  y = Abs(u)",
    "prelu_alone": "y = PRelu(x, K0)",
    "leaky": "t = Neg(x)  u = LeakyRelu<alpha = 0.0>(t)  y = Abs(u)",
    "leaky_alone": "y = LeakyRelu<alpha = 0.0>(x)",
    "times_0": "t = Neg(x)  y = Mul(t, K0)",
    "gelu": "t = Neg(x)  u = Gelu(t)  y = Abs(u)",
    "gelu_written": "a = Div(x, K1.4142135)  b = Erf(a)  c = Add(b, K1)  d = Mul(x, c)"
    "  y = Mul(d, K0.5)",
    "gelu_tanh": 't = Neg(x)  y = Gelu<approximate = "tanh">(t)',
    "silu": "t = Sigmoid(x)  y = Mul(x, t)",
    "silu_divided": "n = Neg(x)  t = Exp(n)  u = Add(t, K1)  y = Div(x, u)",
    "hard_swish": "t = Add(x, K3)  u = Clip(t, K0, K6)  v = Mul(x, u)  y = Div(v, K6)",
    "mish": "t = Softplus(x)  u = Tanh(t)  y = Mul(x, u)",
    "softsign": "t = Abs(x)  u = Add(t, K1)  y = Div(x, u)",
    "elu": "t = Exp(x)  u = Sub(t, K1)  v = Less(x, K0)  y = Where(v, u, x)",
    "celu": "y = Celu<alpha = 0.5>(x)",
    "relu_where": "t = Greater(x, K0)  y = Where(t, x, K0)",
    "relu_where_less": "t = Less(x, K0)  y = Where(t, K0, x)",
    "relu_squared": "t = Relu(x)  y = Mul(t, t)",
    "relu_gate": "t = Relu(x)  y = Mul(x, t)",
    "clips": "t = Clip(x, K-1, K2)  y = Clip(t, K0, K5)",
    "limits": "t = Max(x, K0)  y = Min(t, K6)",
    "root": "t = Neg(x)  u = Pow(t, K0.5)  y = Neg(u)",
    "inverse": "t = Pow(x, K-1)  y = Neg(t)",
    "by_denormal": "y = Div(x, K1e-40)",
    "by_0": "y = Div(x, K0)",
    "to_0": "y = Pow(x, K0)",
    "not_less": "t = Less(x, K0)  u = Not(t)  y = Cast<to = 1>(u)",
    "is_nan": "t = IsNaN(x)  y = Where(t, K0, x)",
    "difference": "y = Sub(x, x)",
    "quotient": "y = Div(x, x)",
    "signs": "t = Neg(x)  u = Sign(t)  y = Abs(u)",
    "rounded": "t = Neg(x)  u = Round(t)  y = Abs(u)",
    "remainder": "y = Mod<fmod = 1>(x, K3)",
    "to_int": "t = Cast<to = 6>(x)  y = Cast<to = 1>(t)",
    "to_bool": "t = Cast<to = 9>(x)  y = Cast<to = 1>(t)",
    "two_factors": "t = Mul(x, K1e30)  y = Mul(t, K1e-30)",
}
#: Formulas of arithmetic that are NaN at an infinity, and become the activation that they are.
FORMULAS = {
    "Relu": ("t = Greater(x, K0)  u = Cast<to = 1>(t)  y = Mul(x, u)", {-np.inf: 0.0}),
    "LeakyRelu": (
        "a = Abs(x)  b = Mul(a, K0.45)  c = Mul(x, K0.55)  y = Add(c, b)",
        {-np.inf: -np.inf},
    ),
}


TAILS = {
    "relu": "y = Relu(x)",
    "times_0": "t = Relu(x)  y = Mul(t, K0)",
    "clip": "y = Clip(x, K-1, K2)",
    "leaky": "y = LeakyRelu<alpha = 0.0>(x)",
    "gelu": "y = Gelu(x)",
    "sigmoid": "y = Sigmoid(x)",
    "silu": "t = Sigmoid(x)  y = Mul(x, t)",
    "tanh": "y = Tanh(x)",
    "hard_swish": "y = HardSwish(x)",
    "mish": "y = Mish(x)",
    "softplus": "y = Softplus(x)",
    "elu": "y = Elu(x)",
}

_NUMBER = re.compile(r"K(-?\d[\d.]*(?:e-?\d+)?)")


def nodes_of(body: str, x: str, y: str) -> list[onnx.NodeProto]:
    """Return the nodes of a body on the value `x`, inner ones named after `y`."""
    numbers = dict.fromkeys(_NUMBER.findall(body))
    names = {number: f"k{place}" for place, number in enumerate(numbers)}
    text = _NUMBER.sub(lambda found: names[found[1]], body)
    head = f'<opset_import: ["" : 20], domain: "d"> f ({", ".join(["x", *names.values()])}) => (y)'
    function = onnx.parser.parse_function(f"{head} {{ {text} }}")
    nodes = [
        helper.make_node("Constant", [], [f"{y}_{name}"], value_float=float(number))
        for number, name in names.items()
    ]
    own = {"x": x, "y": y}
    for node in function.node:
        for values in (node.input, node.output):
            renamed = [own.get(name, f"{y}_{name}") for name in values]
            del values[:]
            values.extend(renamed)
        nodes.append(node)
    return nodes


def model(
    nodes: list[onnx.NodeProto], outputs: Iterable[str], shape: list[int | str],
    weights: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model that makes `outputs` of x0."""
    graph = helper.make_graph(
        nodes, "special", [helper.make_tensor_value_info("x0", 1, shape)],
        [helper.make_tensor_value_info(name, 1, None) for name in outputs], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def results(
    given: onnx.ModelProto, x: np.ndarray, library: Path | None = None, *, plain: bool = True
) -> dict[str, np.ndarray]:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if plain:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library is not None:
        settings.register_custom_ops_library(str(library))
    session = ort.InferenceSession(
        given.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in given.graph.output]
    return dict(zip(names, session.run(names, {"x0": x}), strict=True))


def faults(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], x: np.ndarray
) -> list[str]:
    """Name the outputs whose non-finite values, or numbers, are others."""
    found = []
    for name, expected in before.items():
        got = after[name]
        with np.errstate(all="ignore"):
            close = np.abs(got - expected) <= 1e-3 * np.maximum(1, np.abs(expected))
        good = (np.isnan(got) & np.isnan(expected)) | (got == expected)
        good |= np.isfinite(got) & np.isfinite(expected) & close
        if not good.all():
            at = tuple(np.argwhere(~good)[0])
            found.append(f"{name} of {x[at]}: {got[at]}, not {expected[at]}")
    return found


def check(given: onnx.ModelProto, x: np.ndarray, options: OptimizeOptions) -> set[str]:
    """Optimize; the results are those of the model as it came. Returns the op types there are."""
    made = optimize(given, options)
    after = ir.to_proto(made.model)
    assert isinstance(after, onnx.ModelProto)
    found = results(after, x, made.library, plain=False)
    assert faults(results(given, x), found, x) == []
    return {node.op_type.rpartition("_")[0] or node.op_type for node in after.graph.node}


@pytest.mark.parametrize(
    "options",
    [
        OptimizeOptions(level=3, kernels="off", verify=False),
        OptimizeOptions(level=2, verify=False),
    ],
    ids=["rewritten", "with kernels"],
)
def test_optimized_models_answer_as_they_came(options: OptimizeOptions) -> None:
    nodes = [node for name, body in BODIES.items() for node in nodes_of(body, "x0", name)]
    x = np.resize(VALUES, (5, 64)).astype(np.float32)
    check(model(nodes, BODIES, ["n", 64]), x, options)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_what_a_formula_loses_at_infinities_the_activation_has(name: str) -> None:
    """inf * 0 and inf - inf in arithmetic are taken for overflow: documented, not as it came."""
    body, expected = FORMULAS[name]
    given = model(nodes_of(body, "x0", "y"), ["y"], ["n"])
    x = np.array([*expected, np.inf, np.nan, 2.0], np.float32)
    made = optimize(given, OptimizeOptions(level=3, kernels="off", verify=False))
    assert [node.op_type for node in made.model.graph] == [name]
    after = ir.to_proto(made.model)
    assert isinstance(after, onnx.ModelProto)
    (found,) = results(after, x).values()
    assert np.isnan(results(given, x)["y"][0])
    np.testing.assert_array_equal(found, [*expected.values(), np.inf, np.nan, 2.0])


@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
def test_what_follows_a_product_in_its_kernel(kind: str) -> None:
    """Whole rows become infinite of either sign, or NaN, before the activation."""
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 64)).astype(np.float32)
    x[3, 5], x[7, 2], x[9, 1], x[11], x[12] = np.inf, -np.inf, np.nan, 1e30, -100.0
    shape: list[int | str] = ["n", 64]
    filters = (64, 64)
    if kind == "Conv":
        x, shape, filters = x.T.reshape(1, 64, 8, 8).copy(), [1, 64, 8, 8], (64, 64, 1, 1)
    nodes, weights = [], []
    for name, body in TAILS.items():
        matrix = random.standard_normal(filters).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(matrix, f"{name}_w"))
        nodes.append(helper.make_node(kind, ["x0", f"{name}_w"], [f"{name}_p"]))
        nodes += nodes_of(body, f"{name}_p", name)
    given = model(nodes, TAILS, shape, weights)
    check(given, x, OptimizeOptions(level=2, verify=False))

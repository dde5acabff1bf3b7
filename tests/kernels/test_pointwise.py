"""Each operator in a kernel against the same node in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, random_input, session, tensor, unary

from ortkit.kernels import LibraryBuild, RegionSignature, Target, build_library
from ortkit.kernels.cache import KernelCache
from ortkit.kernels.tvm.ops import POINTWISE_OPS

Build = Callable[..., LibraryBuild]
HEAD = '<opset_import: ["" : 20]>'

UNARY = [
    "Abs", "Ceil", "Erf", "Exp", "Floor", "Gelu", 'Gelu<approximate="tanh">', "HardSigmoid",
    "HardSigmoid<alpha: float = 0.3, beta: float = 0.4>", "HardSwish", "Identity", "LeakyRelu",
    "LeakyRelu<alpha: float = 0.2>", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid",
    "Sign", "Sqrt", "Tanh",
]  # fmt: skip
# Edges, then values of every size; erf and friends change formula within [0.6, 4].
EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-40,
    1e-30,
    3e38,
    -3e38,
    0.5,
    -0.5,
    1.5,
    2.5,
]


def values(count: int = 2003) -> np.ndarray:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)
    return np.concatenate([np.float32(EDGES), wide.astype(np.float32)]).astype(np.float32)


def test_every_operator_of_the_table_is_tested() -> None:
    tested = {op.partition("<")[0] for op in UNARY} | {
        word
        for body in [*BODIES.values(), BOOLEAN, INTEGER, SWISH]
        for word in body.replace("(", " ").split()
    }
    assert set(POINTWISE_OPS) <= tested


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Within 8 float32 epsilons of the larger of the value and 1; NaN and infinities alike."""
    # ONNX Runtime's own erf, exp and tanh are off by up to 4 epsilons of 1.
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=8 * 2**-23, atol=8 * 2**-23)


@pytest.fixture(scope="module")
def unary_library(tmp_path_factory: pytest.TempPathFactory, cache: KernelCache) -> Path:
    path = tmp_path_factory.mktemp("unary") / "unary.so"
    made = build_library([unary(op) for op in UNARY], Target(), path, cache=cache)
    assert made.refused == ()
    return path


@pytest.mark.parametrize("op", UNARY)
def test_unary_operators(op: str, unary_library: Path) -> None:
    signature = unary(op)
    x = values()
    if op.startswith("Gelu"):
        x = x[~np.isneginf(x)]  # the written form is -inf * 0 there, by either side's rounding
    if op == "Erf":
        x = x[~np.isnan(x)]  # ONNX Runtime 1.24 gives a number for it
    model = fused_model(signature)
    (expected,) = session(model).run(None, {"X": x})
    (found,) = session(model, unary_library).run(None, {"X": x})
    assert_close(found, expected)


# Y of each over X [n, 37], Z [n, 37], S [n, 1], B [37].
BODIES = {
    "arithmetic": "P = Add (X, B)  Q = Sub (P, Z)  R = Mul (Q, S)  Y = Div (R, B)",
    "min_max": "P = Max (X, Z, B)  Y = Min (P, S)",
    "sum": "Y = Sum (X, B, S)",
    "clip": "L = Constant <value = float {-1.0}> ()  H = Constant <value = float {1.5}> ()"
    "  P = Clip (X, L, H)  Q = Clip (Z, , H)  R = Clip (B, L)  T = Add (P, Q)  Y = Add (T, R)",
    "where": "C = Greater (X, B)  D = Where (C, X, S)  E = LessOrEqual (D, Z)"
    "  Y = Where (E, D, B)",
    "compare": "C = Less (X, S)  D = GreaterOrEqual (Z, B)  E = Equal (C0, Z)  F = Xor (C, D)"
    "  G = Or (E, F)  H = Not (G)  I = And (H, D)  Y = Cast <to: int = 1> (I)",
    "pow": "P2 = Constant <value = float {2.0}> ()  P3 = Constant <value_float: float = 3.0> ()"
    "  H = Constant <value = float {0.5}> ()  A = Pow (X, P2)  C = Pow (Z, P3)  D = Pow (A, H)"
    "  E = Add (C, D)  Y = Add (E, B)",
    "row_only": "P = Exp (S)  Q = Add (P, S)  R = Tanh (B)  T = Mul (R, Q)  Y = Add (X, T)",
    "casts": "A = Cast <to: int = 7> (X)  C = Cast <to: int = 1> (A)  D = Cast <to: int = 9> (Z)"
    "  E = Cast <to: int = 6> (D)  F = Cast <to: int = 1> (E)  G = Add (C, F)  Y = Add (G, B)",
    "nan": "Q = Div (X, X)  P = IsNaN (Q)  Y = Where (P, B, X)",
}


@pytest.mark.parametrize("name", sorted(BODIES))
def test_bodies_of_several_operators(name: str, build: Build) -> None:
    body = f"{HEAD} f (X, Z, S, B) => (Y) {{ {BODIES[name].replace('C0', 'X')} }}"
    inputs = (tensor("X", "n", 37), tensor("Z", "n", 37), tensor("S", "n", 1), tensor("B", 37))
    signature = RegionSignature(name, body, inputs, (tensor("Y", "n", 37),))
    library = build(signature).library
    assert library is not None
    feeds = {spec.name: random_input(spec, {"n": 11}) for spec in inputs}
    feeds["Z"][0, :20] = feeds["X"][0, :20]
    feeds["X"][1, :5] = 0.0
    model = fused_model(signature)
    (expected,) = session(model).run(None, feeds)
    (found,) = session(model, library.path).run(None, feeds)
    assert_close(found, expected)


BOOLEAN = "P = Not (M)  Q = And (P, K)  Y = Where (Q, A, B)  Z = Or (M, Q)"
INTEGER = (
    "P = Add (X, B)  Q = Mul (P, X)  R = Sub (Q, B)  S = Max (R, X)  T = Abs (S)  Y = Neg (T)"
)
SWISH = "Y = Swish <alpha: float = 1.5> (X)"


def test_boolean_tensors_in_and_out(build: Build) -> None:
    body = f"{HEAD} f (M, K, A, B) => (Y, Z) {{ {BOOLEAN} }}"
    inputs = (
        tensor("M", "n", 19, dtype="bool"), tensor("K", 19, dtype="bool"),
        tensor("A", "n", 19), tensor("B"),
    )  # fmt: skip
    outputs = (tensor("Y", "n", 19), tensor("Z", "n", 19, dtype="bool"))
    signature = RegionSignature("mask", body, inputs, outputs)
    library = build(signature).library
    assert library is not None
    feeds = {spec.name: random_input(spec, {"n": 7}) for spec in inputs}
    model = fused_model(signature)
    expected = session(model).run(None, feeds)
    found = session(model, library.path).run(None, feeds)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_exact(dtype: str, build: Build) -> None:
    body = f"{HEAD} f (X, B) => (Y) {{ {INTEGER} }}"
    inputs = (tensor("X", "n", 21, dtype=dtype), tensor("B", 21, dtype=dtype))
    signature = RegionSignature("ints", body, inputs, (tensor("Y", "n", 21, dtype=dtype),))
    library = build(signature).library
    assert library is not None
    feeds = {spec.name: random_input(spec, {"n": 5}) for spec in inputs}
    model = fused_model(signature)
    expected = session(model).run(None, feeds)
    np.testing.assert_array_equal(session(model, library.path).run(None, feeds), expected)


def test_swish_of_opset_24(build: Build) -> None:
    signature = unary("Swish<alpha: float = 1.5>", opset=24)
    library = build(signature).library
    assert library is not None
    x = values()[14:]
    (found,) = session(fused_model(signature), library.path).run(None, {"X": x})
    with np.errstate(over="ignore"):
        exact = x / (1 + np.exp(-1.5 * x.astype(np.float64)))
    assert_close(found, exact)

"""Each operator of the table in each type against ONNX Runtime, then in whole kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from elementwise import Array, Elementwise, Library, emit, numpy_dtype
from fused_model import fused_model, random_input, session, tensor
from single_node import (
    TYPE_NUMBERS,
    Node,
    as_array,
    as_value,
    run_by_onnxruntime,
    run_by_reference,
)

from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.region.dtypes import DTYPES, INTEGERS, SIGNED, bits_of
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.region.ops_activations import ACTIVATIONS
from ortkit.kernels.region.ops_functions import FUNCTIONS
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.build import assembly
from ortkit.refusal import Refused
from ortkit.targets.cpu import native_level

Build = Callable[..., LibraryBuild]
HEAD = '<opset_import: ["" : 20]>'

# Not ONNX operators; test_vectormath.py has the first.
OURS = {"exp_nonpositive"}
VARIANTS: Mapping[str, list[dict[str, float | int | str]]] = {
    "BitCast": [{"to": number} for number in TYPE_NUMBERS.values()],
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "Cast": [{"to": number} for number in TYPE_NUMBERS.values()],
    "Celu": [{}, {"alpha": 0.6}],
    "Elu": [{}, {"alpha": 0.7}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "HardSigmoid": [{}, {"alpha": 0.3, "beta": 0.4}, {"alpha": 0.0}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
    "LeakyRelu": [{}, {"alpha": 0.2}, {"alpha": 0.0}],
    "Mod": [{"fmod": 0}, {"fmod": 1}],
    "Selu": [{}, {"alpha": 1.5, "gamma": 1.1}, {"gamma": 0.0}],
    "Shrink": [{}, {"bias": 0.25, "lambd": 1.5}],
    "Swish": [{}, {"alpha": 1.5}, {"alpha": -0.5}, {"alpha": 0.0}],
    "ThresholdedRelu": [{}, {"alpha": -0.5}],
}
# Here ONNX Runtime 1.31.1 is further from the exact result than the tolerance.
INEXACT_IN_RUNTIME = {
    ("Mean", "float32"): "the sum times 1/n",
    ("Mod", "int64"): "by way of float64",
    ("Mod", "uint64"): "by way of float64",
    ("Shrink", "float64"): "its bias in float32",
    ("Sign", "float16"): "0 for NaN",
    ("Sign", "bfloat16"): "0 for NaN",
    ("Swish", "float32"): "its sigmoid far below 0",
}
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 1e-4, -1e-4,
]  # fmt: skip


def nodes(op_type: str) -> Iterator[Node]:
    """The operator on every combination of types that the table allows."""
    for attributes in VARIANTS.get(op_type, [{}]):
        for dtype in DTYPES:
            shapes = [(dtype,) * count for count in (1, 2, 3)]
            if op_type == "Where":
                shapes = [("bool", dtype, dtype)]
            if op_type == "CastLike":
                shapes = [(dtype, like) for like in DTYPES]
            if op_type == "Pow":
                shapes = [(dtype, exponent) for exponent in (dtype, "int32", "int64")]
            for inputs in dict.fromkeys(shapes):
                node = Node(op_type, inputs, attributes)
                if not isinstance(node.output, Refused):
                    yield node


def values(dtype: str, rng: np.random.Generator) -> Array:
    """500 to 600 values: those at the edges of the type, small ones, any."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.random(517) < 0.5
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        edges = [0, 1, 2, 3, limits.min, limits.max, limits.max - 1, limits.min + 1]
        edges += [-1, -2, -7] if limits.min else []
        small = rng.integers(-50 if limits.min else 0, 100, 250)
        anything = rng.integers(limits.min, limits.max, 250, dtype=kind)
        return np.concatenate([np.array(edges, kind), small.astype(kind), anything])
    from ml_dtypes import finfo

    limits = finfo(kind)
    sizes = [limits.smallest_subnormal, limits.tiny, limits.max]
    edges = [*SPECIAL, *(sign * float(size) for size in sizes for sign in (-1, 1))]
    wide = rng.standard_normal(300) * 10.0 ** rng.integers(-3, 3, 300)
    with np.errstate(over="ignore"):
        return np.concatenate([edges, wide, rng.uniform(-1, 1, 200)]).astype(kind)


def feeds(node: Node) -> list[Array]:
    """Inputs for a node, such that ONNX Runtime can take them."""
    rng = np.random.default_rng(0)
    arrays = [values(dtype, rng) for dtype in node.inputs]
    size = min(array.size for array in arrays)
    arrays = [np.tile(array[:size], 4 if len(arrays) > 1 else 1) for array in arrays]
    for array in arrays[1:]:
        rng.shuffle(array)
    first, second = arrays[0], arrays[-1]
    if node.op_type in ("Div", "Mod") and node.inputs[0] in INTEGERS:
        second[second == 0] = 1  # ONNX Runtime crashes
        if node.inputs[0] in SIGNED:
            first[(first == np.iinfo(first.dtype).min) & (second == -1)] = 5
    if node.op_type == "BitShift":
        second %= bits_of(node.inputs[0])
    if node.op_type == "Clip":  # bounds are single numbers
        for array, bound in zip(arrays[1:], (2, 50), strict=False):
            array[:] = bound
    if node.op_type == "Clip" and len(arrays) < 3 and node.inputs[0] == "float16":
        first[np.isinf(first)] = 1  # the operator's own comment says why
    is_short = node.inputs[0] in ("float16", "bfloat16")
    if node.op_type in ("Cast", "CastLike") and is_short and node.output == "uint32":
        first[~(first > -np.inf)] = 0  # depends on the place in ONNX Runtime
    return arrays


def assert_equal(node: Node, found: Array, expected: Array) -> None:
    """Alike to the bit, but for functions: within 8 float32 epsilons, or 1 of a shorter type.

    Of the larger of the value and 1, as ONNX Runtime's own erf, exp and tanh are off by up to 4.
    """
    if expected.dtype.kind not in "fV":
        np.testing.assert_array_equal(found, expected, err_msg=node.name)
        return
    from ml_dtypes import finfo

    epsilon = float(finfo(expected.dtype).eps)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    tolerance = 0.0
    if node.op_type in {**FUNCTIONS, **ACTIVATIONS}:
        tolerance = max(8 * 2**-23, 1.01 * epsilon if epsilon > 2**-23 else 0.0)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=node.name)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("op_type", sorted(set(POINTWISE_OPS) - OURS))
def test_operator_in_every_type(op_type: str, tmp_path: Path) -> None:
    found = list(nodes(op_type))
    assert found
    library = Library([node.kernel() for node in found], tmp_path)
    for node in found:
        arrays = feeds(node)
        expected = None
        if (op_type, node.inputs[0]) not in INEXACT_IN_RUNTIME:
            expected = run_by_onnxruntime(node, arrays)
        if expected is None:
            expected = run_by_reference(node, arrays)
        assert_equal(node, library(node.name, *arrays), expected)


def assert_close(found: Array, expected: Array) -> None:
    """Within 8 float32 epsilons of the larger of the value and 1; NaN and infinities alike."""
    np.testing.assert_allclose(found, expected, rtol=8 * 2**-23, atol=8 * 2**-23)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fence_keeps_the_rounding_of_a_product(dtype: str, tmp_path: Path) -> None:
    plain = Elementwise("plain", (dtype,) * 3, dtype, lambda _, x: x[0] * x[1] - x[2])
    fenced = Elementwise("fenced", (dtype,) * 3, dtype, lambda e, x: e.fence(x[0] * x[1]) - x[2])
    library = Library([plain, fenced], tmp_path)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(1003).astype(dtype) for _ in range(2))
    assert not library("fenced", a, b, a * b).any()
    # Else there would be nothing to keep apart; processors without FMA round products anyway.
    has_fma = native_level() not in ("x86-64", "x86-64-v2")
    assert library("plain", a, b, a * b).any() == has_fma
    for level in ("x86-64", "x86-64-v3", "x86-64-v4", "aarch64"):
        lines = [line.split() for line in assembly(emit(fenced), level).splitlines()]
        names = {words[0] for words in lines if words}
        assert not names & {"bl", "fmls", "fmla", "fnmsub"}
        assert not {name for name in names if name.startswith(("call", "vfm"))}


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


@pytest.mark.sampled(3)
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


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around_within_a_kernel(dtype: str, build: Build) -> None:
    """The compiler may not conclude from x > 0 that -x < 0."""
    body = (
        f"{HEAD} f (X, B) => (Y, Z, W) {{ N = Neg (X)  Y = Sign (N)  P = Add (X, B)"
        "  Z = Greater (P, X)  A = Abs (X)  M = Mul (A, B)  W = Max (M, P) }"
    )
    inputs = (tensor("X", "n", 32, dtype=dtype), tensor("B", 32, dtype=dtype))
    outputs = (
        tensor("Y", "n", 32, dtype=dtype), tensor("Z", "n", 32, dtype="bool"),
        tensor("W", "n", 32, dtype=dtype),
    )  # fmt: skip
    signature = RegionSignature("wrap", body, inputs, outputs)
    library = build(signature).library
    assert library is not None
    limits = np.iinfo(dtype)
    x = np.full((3, 32), limits.min, dtype)
    x[1] = limits.max
    feeds = {"X": x, "B": np.arange(1, 33).astype(dtype)}
    model = fused_model(signature)
    expected = session(model).run(None, feeds)
    for ours, theirs in zip(session(model, library.path).run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_in_and_out(dtype: str, build: Build) -> None:
    number = TYPE_NUMBERS[dtype]
    body = (
        f"{HEAD} f (X, B, S) => (Y, Z) {{ P = Add (X, B)  Q = Relu (P)  R = Mul (Q, Q)"
        f"  W = Cast <to: int = 1> (R)  V = Mul (W, S)  Y = Cast <to: int = {number}> (V)"
        "  Z = Less (X, B) }"
    )
    inputs = (tensor("X", "n", 37, dtype=dtype), tensor("B", 37, dtype=dtype), tensor("S", 37))
    outputs = (tensor("Y", "n", 37, dtype=dtype), tensor("Z", "n", 37, dtype="bool"))
    signature = RegionSignature("floats", body, inputs, outputs)
    made = build(signature)
    assert made.library is not None, made.refused
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    # Halves and quarters: every step is exact in each of the types, and rounding no question.
    x, b = (rng.integers(-8, 8, shape).astype(kind) / kind.type(4) for shape in ((5, 37), 37))
    scale = (2.0 ** rng.integers(-3, 3, 37)).astype(np.float32)
    arrays = [as_value(array) for array in (x, b, scale)]
    run = session(fused_model(signature), made.library.path)
    y, z = run.run_with_ort_values(["Y", "Z"], dict(zip("XBS", arrays, strict=True)))
    wide = np.maximum(x.astype(np.float64) + b.astype(np.float64), 0)
    expected = (wide * wide * scale).astype(kind)
    np.testing.assert_array_equal(as_array(y, dtype, 5 * 37).reshape(5, 37), expected)
    np.testing.assert_array_equal(z.numpy(), x < b)

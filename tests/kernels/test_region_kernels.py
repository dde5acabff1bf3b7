"""Kernels of whole regions, views and rows included, against ONNX Runtime's own operators."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session

from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import extent_of
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
Dims = tuple[int | str, ...]
HALVES = """I0 = Constant <value_ints: ints = [0]> ()  I1 = Constant <value_ints: ints = [32]> ()
    I2 = Constant <value_ints: ints = [64]> ()  A = Constant <value_ints: ints = [-1]> ()
    L = Slice (X, I0, I1, A)  H = Slice (X, I1, I2, A)  """


@dataclass(frozen=True)
class Case:
    """A region; its outputs' types are float32 unless the name of the output says otherwise."""

    body: str
    inputs: dict[str, Dims]
    outputs: dict[str, Dims]
    sizes: tuple[dict[str, int], ...] = ({},)
    epsilons: float = 16


def axes(name: str, *values: int) -> str:
    return f"{name} = Constant <value_ints: ints = [{', '.join(map(str, values))}]> ()  "


S = ({"b": 1, "s": 1}, {"b": 2, "s": 7}, {"b": 1, "s": 33}, {"b": 0, "s": 5})
ROWS = ({"n": 1}, {"n": 15}, {"n": 16}, {"n": 17}, {"n": 197}, {"n": 5000}, {"n": 0})
CASES = {
    "residual layer norm": Case(
        "S = Add (X, R)  Y = LayerNormalization <axis = -1> (S, G, B)",
        {"X": ("b", "s", 72), "R": ("b", "s", 72), "G": (72,), "B": (72,)},
        {"Y": ("b", "s", 72), "S": ("b", "s", 72)}, S,
    ),
    "layer norm of an unknown width": Case(
        "Y = LayerNormalization <axis = -1> (X, G)", {"X": (3, "n"), "G": ("n",)}, {"Y": (3, "n")},
        ROWS[:-1],
    ),
    "layer norm of two dims": Case(
        "Y = LayerNormalization <axis = 1> (X, G, B)",
        {"X": ("b", 6, 20), "G": (6, 20), "B": (6, 20)}, {"Y": ("b", 6, 20)}, S,
    ),
    "rms norm": Case(
        "Y = RMSNormalization (X, G)", {"X": ("b", "s", 64), "G": (64,)}, {"Y": ("b", "s", 64)}, S,
    ),
    "masked softmax": Case(
        "Z = Add (X, M)  Y = Softmax <axis = -1> (Z)",
        {"X": ("b", 3, "n", "n"), "M": ("b", 1, 1, "n")}, {"Y": ("b", 3, "n", "n")},
        tuple({"b": 2} | row for row in ROWS if row["n"] < 300),
    ),
    "softmax of long rows": Case(
        "Y = Softmax <axis = -1> (X)", {"X": (2, "n")}, {"Y": (2, "n")}, ROWS, epsilons=32,
    ),
    "softmax of short rows": Case(
        "Y = Softmax <axis = -1> (X)", {"X": (50, 5)}, {"Y": (50, 5)},
    ),
    "softmax along an outer dim": Case(
        "Y = Softmax <axis = 1> (X)", {"X": ("b", "s", 21)}, {"Y": ("b", "s", 21)}, S,
    ),
    "log softmax": Case(
        "Y = LogSoftmax <axis = -1> (X)", {"X": ("b", 100)}, {"Y": ("b", 100)}, S, epsilons=40,
    ),
    "instance norm": Case(
        "Y = InstanceNormalization (X, G, B)", {"X": ("b", 5, 9, 7), "G": (5,), "B": (5,)},
        {"Y": ("b", 5, 9, 7)}, S, epsilons=64,
    ),
    "group norm": Case(
        "Y = GroupNormalization <num_groups = 2> (X, G, B)",
        {"X": ("b", 6, 5, 4), "G": (6,), "B": (6,)}, {"Y": ("b", 6, 5, 4)}, S[:-1], epsilons=64,
    ),
    "means over pixels": Case(
        axes("A", 2, 3) + "M = ReduceMean (X, A)  D = Sub (X, M)  Y = Relu (D)",
        {"X": ("b", 4, 6, 6)}, {"Y": ("b", 4, 6, 6), "M": ("b", 4, 1, 1)}, S,
    ),
    "logarithms of sums": Case(
        axes("A", -1) + "Y = ReduceLogSumExp <keepdims = 0> (X, A)",
        {"X": ("s", 30)}, {"Y": ("s",)}, S,
    ),
    "sums across rows": Case(
        axes("A", 1) + "Y = ReduceSum <keepdims = 0> (X, A)",
        {"X": ("b", "s", 40)}, {"Y": ("b", 40)}, S[:-1], epsilons=64,
    ),
    "everything": Case(
        "Y = ReduceMax <keepdims = 0> (X)", {"X": ("s", 10)}, {"Y": ()}, S[:-1],
    ),
    "norms of rows": Case(
        axes("A", -1) + "Q = ReduceL2 (X, A)  Y = Div (X, Q)  P = ReduceL1 (X, A)",
        {"X": ("s", 30)}, {"Y": ("s", 30), "P": ("s", 1)}, S, epsilons=32,
    ),
    "heads": Case(
        axes("SH", 0, 0, 4, 16) +
        "R = Reshape (X, SH)  T = Transpose <perm = [0, 2, 1, 3]> (R)  Y = Mul (T, B)",
        {"X": ("b", "s", 64), "B": (16,)}, {"Y": ("b", 4, "s", 16)}, S,
    ),
    "heads joined": Case(
        axes("SH", 0, 0, 64) +
        "T = Transpose <perm = [0, 2, 1, 3]> (X)  R = Reshape (T, SH)  Y = Add (R, B)",
        {"X": ("b", 4, "s", 16), "B": (64,)}, {"Y": ("b", "s", 64)}, S,
    ),
    "rotary written out": Case(
        HALVES + "N = Neg (H)  R = Concat <axis = -1> (N, L)  P = Mul (X, C)  Q = Mul (R, D)  "
        "Y = Add (P, Q)",
        {"X": ("b", 3, "s", 64), "C": ("b", 1, "s", 64), "D": ("b", 1, "s", 64)},
        {"Y": ("b", 3, "s", 64)}, S,
    ),
    "rotary": Case(
        "Y = RotaryEmbedding (X, C, D)",
        {"X": ("b", 3, "s", 64), "C": ("b", "s", 32), "D": ("b", "s", 32)},
        {"Y": ("b", 3, "s", 64)}, S[:-1],
    ),
    "rotary of part": Case(
        "Y = RotaryEmbedding <num_heads = 3, rotary_embedding_dim = 16> (X, C, D)",
        {"X": ("b", "s", 72), "C": ("b", "s", 8), "D": ("b", "s", 8)}, {"Y": ("b", "s", 72)},
        S[:-1],
    ),
    "rotary of neighbours": Case(
        "Y = RotaryEmbedding <interleaved = 1> (X, C, D)",
        {"X": ("b", 2, "s", 12), "C": ("b", "s", 6), "D": ("b", "s", 6)}, {"Y": ("b", 2, "s", 12)},
        S[:-1],
    ),
    "split": Case(
        axes("P", 16, 16, 16) + "Z = Add (X, B)  Q, K, V = Split <axis = -1> (Z, P)",
        {"X": ("b", "s", 48), "B": (48,)},
        {"Q": ("b", "s", 16), "K": ("b", "s", 16), "V": ("b", "s", 16)}, S,
    ),
    "gated": Case(
        axes("P", 24, 24) + "G, U = Split <axis = -1> (X, P)  E = Sigmoid (G)  F = Mul (G, E)  "
        "Y = Mul (F, U)", {"X": ("b", "s", 48)}, {"Y": ("b", "s", 24)}, S,
    ),
    "every second": Case(
        axes("I", 1) + axes("J", 40) + axes("A", -1) + axes("T", 2) + "Z = Slice (X, I, J, A, T)  "
        "Y = Exp (Z)", {"X": ("s", 40)}, {"Y": ("s", 20)}, S,
    ),
    "padded": Case(
        axes("P", 0, 1, 2, 0, 3, 1) + "V = Constant <value_float: float = 7.0> ()  "
        "Z = Pad (X, P, V)  Y = Mul (Z, Z)", {"X": ("b", 4, 17)}, {"Y": ("b", 8, 20)}, S,
    ),
    "one of a dim": Case(
        "I = Constant <value_int: int = -1> ()  Z = Gather <axis = 1> (X, I)  Y = Tanh (Z)",
        {"X": ("b", 3, 20)}, {"Y": ("b", 20)}, S,
    ),
    "expanded": Case(
        axes("E", 2, 3, 20) + "Z = Expand (X, E)  Y = Sigmoid (Z)", {"X": (3, 1)},
        {"Y": (2, 3, 20)},
    ),
    "largest": Case(
        "I = ArgMax <axis = -1, keepdims = 0> (X)  J = ArgMin <axis = -1> (X)",
        {"X": ("s", 50)}, {"I": ("s",), "J": ("s", 1)}, S,
    ),
    "mean over parts": Case(
        axes("A", 0, 1) + "Z = Concat <axis = -1> (X, X)  M = ReduceMean (Z, A)  Y = Mul (Z, M)",
        {"X": ("s", 7)}, {"Y": ("s", 14)}, S[:-1],
    ),
    "norm of a product": Case(
        "Z = Mul (X, R)  Y = LayerNormalization <axis = -1, epsilon = 1e-6> (Z, G)",
        {"X": (9, "s"), "R": (9, "s"), "G": ("s",)}, {"Y": (9, "s")}, S[:-1],
    ),
    "the last of unequal parts": Case(
        "Z = Mul (X, B)  A, C, Y = Split <axis = 1, num_outputs = 3> (Z)",
        {"X": ("s", 7, 16), "B": (7, 16)}, {"Y": ("s", 1, 16)}, S[:-1],
    ),
    "nothing": Case(
        axes("P", 8, 8) + "Z = Mul (X, B)  A, Y = Split <axis = 2> (Z, P)",
        {"X": ("s", 0, 16, "n"), "B": (0, 16, "n")}, {"Y": ("s", 0, 8, "n")},
        ({"s": 2, "n": 3},),
    ),
    "transposed": Case(
        "Y = Transpose (X)", {"X": ("n", "s")}, {"Y": ("s", "n")},
        tuple({"n": n, "s": s} for n in (1, 15, 16, 33) for s in (1, 16, 100)),
    ),
    "channels last": Case(
        "T = Transpose <perm = [0, 2, 3, 1]> (X)  Z = Add (T, B)  Y = Relu (Z)",
        {"X": ("b", 24, "s", 9), "B": (24,)}, {"Y": ("b", "s", 9, 24)}, S,
    ),
    "channels": Case(
        "Y = Mul (X, G)", {"X": ("b", 6, 9, 9), "G": ("b", 6, 1, 1)}, {"Y": ("b", 6, 9, 9)}, S,
    ),
}  # fmt: skip
INT64 = {"I", "J"}


def signature_of(name: str, case: Case) -> RegionSignature:
    names = f"({', '.join(case.inputs)}) => ({', '.join(case.outputs)})"
    body = f'<opset_import: ["" : 23]> f {names} {{ {case.body} }}'
    inputs = tuple(TensorSpec(n, "float32", shape) for n, shape in case.inputs.items())
    outputs = tuple(
        TensorSpec(n, "int64" if n in INT64 else "float32", shape)
        for n, shape in case.outputs.items()
    )
    return RegionSignature(name.replace(" ", "_"), body, inputs, outputs)


def feeds_of(signature: RegionSignature, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in signature.inputs:
        extents = [extent_of(dim) for dim in spec.shape]
        shape = [e.factor * int(np.prod([sizes[s] for s in e.symbols])) for e in extents]
        feeds[spec.name] = (rng.standard_normal(shape) * 2).astype(np.float32)
    return feeds


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_region_computes_what_its_function_does(name: str, build: Build) -> None:
    case = CASES[name]
    signature = signature_of(name, case)
    built = build(signature)
    assert built.refused == ()
    assert built.library is not None
    model = fused_model(signature)
    plain = session(model)
    one, four = (session(model, built.library.path, threads=count) for count in (1, 4))
    for sizes in case.sizes:
        feeds = feeds_of(signature, sizes)
        expected, found, parallel = (each.run(None, feeds) for each in (plain, one, four))
        for want, got, again in zip(expected, found, parallel, strict=True):
            assert got.shape == want.shape
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(
                got, want, rtol=0, atol=case.epsilons * 2**-23 * scale, err_msg=str(sizes)
            )
            np.testing.assert_array_equal(got, again, err_msg="depends on the threads")


def test_a_matrix_is_transposed_in_parts(tmp_path: Path) -> None:
    """Each call writes its own rows: what lies behind them, also beyond the last, stays."""
    text = '<opset_import: ["" : 20]> f (X) => (Y) { Y = Transpose (X) }'
    specs = TensorSpec("X", "float32", ("n", 64)), TensorSpec("Y", "float32", (64, "n"))
    signature = RegionSignature("parts", text, specs[:1], specs[1:])
    kernel = TvmBackend().compile(signature, Target("cpu", "native"), tmp_path)
    assert math.prod(extent.factor for extent in kernel.launch.units) == 64
    path = tmp_path / "kernel.so"
    subprocess.run([*find_linker(), "-shared", "-o", path, kernel.artifact, "-lm"], check=True)
    run = ctypes.CDLL(str(path))[kernel.symbol]
    x, y = np.arange(100 * 64, dtype=np.float32).reshape(100, 64), np.full((160, 100), -1.0, "f")
    for begin, end in ((0, 16), (16, 20), (40, 64)):
        before = y.copy()
        run(*(ctypes.c_void_p(each.ctypes.data) for each in (x, y)),
            *map(ctypes.c_int64, (100, begin, end)))  # fmt: skip
        np.testing.assert_array_equal(y[begin:end], x.T[begin:end])
        np.testing.assert_array_equal(y[:begin], before[:begin])
        np.testing.assert_array_equal(y[end:], before[end:])


def test_a_sum_of_one_element_is_that_element(build: Build) -> None:
    body = axes("A", 1) + "S = ReduceSum (X, A)  Y = Neg (S)"
    column = TensorSpec("X", "float32", ("n", 1)), TensorSpec("Y", "float32", ("n", 1))
    text = f'<opset_import: ["" : 20]> f (X) => (Y) {{ {body} }}'
    signature = RegionSignature("one", text, column[:1], column[1:])
    library = build(signature).library
    assert library is not None
    x = np.arange(5, dtype=np.float32)[:, None]
    (found,) = session(fused_model(signature), library.path).run(None, {"X": x})
    np.testing.assert_array_equal(found, -x)


def test_a_narrow_type_on_the_way_rounds_in_vectors_and_after_them(build: Build) -> None:
    body = """<opset_import: ["" : 20]> f (X) => (Y) {
        I = Cast <to = 7> (X)  H = Cast <to = 10> (I)  Y = Cast <to = 1> (H) }"""
    x, y = TensorSpec("X", "float32", ("n",)), TensorSpec("Y", "float32", ("n",))
    signature = RegionSignature("narrow", body, (x,), (y,))
    library = build(signature).library
    assert library is not None
    (found,) = session(fused_model(signature), library.path).run(
        None, {"X": np.full(35, 70_001.0, np.float32)}
    )
    np.testing.assert_array_equal(found, np.full(35, np.inf, np.float32))


@pytest.mark.parametrize("name", ["masked softmax", "residual layer norm", "everything"])
def test_a_nan_spoils_its_own_row_only(name: str, build: Build) -> None:
    case = CASES[name]
    signature = signature_of(name, case)
    library = build(signature).library
    assert library is not None
    feeds = feeds_of(signature, {"b": 2, "s": 4, "n": 40})
    feeds["X"].reshape(-1)[3] = np.nan
    (found, *_) = session(fused_model(signature), library.path).run(None, feeds)
    rows = found.reshape(-1, found.shape[-1]) if found.ndim else found.reshape(1, 1)
    assert np.isnan(rows[0]).all()
    assert not np.isnan(rows[1:]).any()

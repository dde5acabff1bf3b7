"""Infinities, NaN, zeros and the edges of types: kernels answer as ONNX Runtime's own nodes do.

What differs, or has no one answer in ONNX Runtime, is listed here and in docs/concepts/kernels.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from elementwise import Array
from fused_model import fused_model, session, tensor
from onnx import helper
from single_node import TYPE_NUMBERS, as_array, as_value
from special_cases import (
    CONSTANTS,
    FEW_CONSTANTS,
    Answers,
    Case,
    Cases,
    agree,
    answers,
    regions,
    special_values,
)

from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.signature import DOMAIN, RegionSignature

Build = Callable[..., LibraryBuild]

#: What is no uint32 and no negative int32: the processor's answer, lowest of int32.
_LOWEST = 0x80000000


def pinned(case: Case, dtype: str, x: Array) -> tuple[Array, Array] | None:
    """Return where ONNX Runtime answers otherwise, or in several ways, and what kernels give."""
    wide = x.astype(np.float64)
    if case.name == "Cast<to: int = 12>/1":
        return ~(wide >= -(2.0**31)), np.full(x.shape, _LOWEST, np.uint32)
    if case.name == "Sign/1" and dtype in ("float16", "bfloat16"):
        return np.isnan(wide), x
    if case.name.startswith("Shrink") and dtype == "float64":
        return np.isfinite(wide) & (np.abs(wide) > 1e15), x
    return None


def check_pointwise(cases: Cases, build: Build) -> None:
    """Compare a library of all cases with ONNX Runtime, element by element."""
    dtype, values = cases.dtype, special_values(cases.dtype)
    # First each value beside some other, then all pairs.
    x, y = (np.ravel(part) for part in np.meshgrid(values, values, indexing="ij"))
    feeds = {
        "X": np.concatenate([values, x]),
        "Y": np.concatenate([np.roll(values, 5), y]),
    }
    expected = answers(cases.found, dtype, feeds)
    assert len(expected) > 10
    parts = list(regions(cases.found, dtype, expected))
    built = build(*(signature for signature, _ in parts))
    assert built.library is not None
    refused = {signature.key for signature, _ in built.refused}
    faults, compared = [], 0
    for signature, part in parts:
        if signature.key in refused:
            continue
        run = session(_model(signature, dtype), built.library.path)
        names = [spec.name for spec in signature.inputs]
        results = run.run_with_ort_values(
            [case.output for case in part], {name: as_value(feeds[name]) for name in names}
        )
        for case, result, spec in zip(part, results, signature.outputs, strict=True):
            found = as_array(result, spec.dtype, feeds["X"].size)
            compared += 1
            faults += _faults(case, dtype, feeds, found, expected[case.output], spec.dtype)
    assert not faults, "\n".join(faults[:40])
    assert compared > len(expected) / 2


def _faults(
    case: Case, dtype: str, feeds: dict[str, Array], found: Array, expected: Answers, kind: str
) -> list[str]:
    together, alone = expected.together, expected.alone
    good = agree(found, together, kind)
    good[: len(alone)] &= agree(found[: len(alone)], alone, kind)
    if (known := pinned(case, dtype, feeds["X"])) is not None:
        where, values = known
        good = np.where(where, agree(found, values, kind), good)
    return [
        f"{case.name} of {dtype} at x = {feeds['X'][at]}, y = {feeds['Y'][at]}: {found[at]}, "
        f"not {together[at]}"
        for at in np.flatnonzero(~good)[:3]
    ]


def _model(signature: RegionSignature, dtype: str) -> bytes:
    """A model of one fused node; outputs of any type."""
    function = signature.function()
    function.domain, function.name = DOMAIN, signature.op_type
    inputs = [spec.name for spec in signature.inputs]
    outputs = [spec.name for spec in signature.outputs]
    graph = helper.make_graph(
        [helper.make_node(signature.op_type, inputs, outputs, domain=DOMAIN)],
        "special",
        [helper.make_tensor_value_info(name, TYPE_NUMBERS[dtype], ["n"]) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", function.opset_import[0].version)]
    opsets.append(helper.make_opsetid(DOMAIN, 1))
    return helper.make_model(
        graph, opset_imports=opsets, functions=[function], ir_version=10
    ).SerializeToString()


def test_operators_and_chains_of_float32(build: Build) -> None:
    cases = Cases("float32")
    cases.operators()
    cases.with_constants(FEW_CONSTANTS)
    cases.chains()
    check_pointwise(cases, build)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_depends_on_short_types(dtype: str, build: Build) -> None:
    """Limits, roundings and conversions; the rest is computed in float32."""
    cases = Cases(dtype)
    cases.operators()
    cases.with_constants((0.0, 0.5))
    words = ("Cast<", "Clip", "Sign/", "Pow", "IsInf", "Round", "Neg", "Mul(", "Max", "Relu")
    cases.found = [case for case in cases.found if case.name.startswith(words)]
    cases.chains()
    check_pointwise(cases, build)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_everything_with_every_constant(dtype: str, build: Build) -> None:
    cases = Cases(dtype)
    cases.operators()
    cases.with_constants(CONSTANTS)
    cases.chains()
    check_pointwise(cases, build)


# ---- rows ------------------------------------------------------------------------------------

WIDTH = 37
AXES = "AX = Constant <value = int64[1] {-1}> ()"
ROWS = {
    **{
        op_type: f"{AXES} Y = {op_type} <keepdims: int = 1> (X, AX)"
        for op_type in (
            "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
            "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum",
        )
    },
    **{
        f"{op_type}{last}": f"Y = {op_type} <axis: int = 1, select_last_index: int = {last}> (X)"
        for op_type in ("ArgMax", "ArgMin")
        for last in (0, 1)
    },
    "Softmax": "Y = Softmax <axis: int = 1> (X)",
    "LogSoftmax": "Y = LogSoftmax <axis: int = 1> (X)",
    "LayerNormalization": "Y = LayerNormalization <axis: int = -1> (X, G)",
    "softmax_written": f"{AXES} M = ReduceMax (X, AX) S = Sub (X, M) E = Exp (S)"
    " T = ReduceSum (E, AX) Y = Div (E, T)",
    "rms_written": f"{AXES} T = Mul (X, X) M = ReduceMean (T, AX)"
    " E = Constant <value_float: float = 0.00001> () A = Add (M, E) R = Sqrt (A) D = Div (X, R)"
    " Y = Mul (D, G)",
}  # fmt: skip
#: The largest and smallest of a row with a NaN: in ONNX Runtime it depends on where the NaN is.
EXTREMES = ("ReduceMax", "ReduceMin", "softmax_written")


def rows(dtype: str) -> tuple[list[str], Array]:
    """Rows with special values in several places, and what each is called."""
    infinity, largest = np.inf, float(np.finfo(dtype).max)
    made = {
        "normal": {}, "inf": {3: infinity}, "-inf": {3: -infinity}, "nan first": {0: np.nan},
        "nan": {3: np.nan}, "nan last": {-1: np.nan}, "both": {3: infinity, 5: -infinity},
        "two": {3: infinity, 20: infinity}, "nan, inf": {2: np.nan, 9: infinity},
        "large": {4: largest}, "-large": {4: -largest}, "masked": {0: -infinity, 1: -infinity},
    }  # fmt: skip
    whole = {
        "all inf": infinity, "all -inf": -infinity, "all nan": np.nan, "zeros": 0.0,
        "hundreds": 100.0, "denormal": float(np.finfo(dtype).smallest_subnormal),
        "squares overflow": 1e4 if dtype == "float16" else 1e19,
    }  # fmt: skip
    random = np.random.default_rng(0)
    table = np.stack([random.standard_normal(WIDTH) for _ in range(len(made) + len(whole))])
    for row, places in zip(table, made.values(), strict=False):
        for place, value in places.items():
            row[place] = value
    for row, value in zip(table[len(made) :], whole.values(), strict=True):
        row[:] = value
    return [*made, *whole], table.astype(dtype)


def check_rows(dtype: str, build: Build) -> None:
    """Compare reductions, norms and softmax with ONNX Runtime, row by row."""
    names, x = rows(dtype)
    gain = np.ones(WIDTH, dtype)
    signatures = {}
    for name, body in ROWS.items():
        inputs = [tensor("X", "n", WIDTH, dtype=dtype)]
        inputs += [tensor("G", WIDTH, dtype=dtype)] if "G)" in body else []
        is_one = name.startswith(("Reduce", "Arg"))
        result = tensor(
            "Y", "n", 1 if is_one else WIDTH, dtype="int64" if name.startswith("Arg") else dtype
        )
        head = f'<opset_import: ["" : 20]> f ({", ".join(item.name for item in inputs)}) => (Y)'
        signatures[name] = RegionSignature("row", f"{head} {{ {body} }}", tuple(inputs), (result,))
    built = build(*signatures.values())
    assert built.library is not None, built.refused
    refused = {signature.key for signature, _ in built.refused}
    faults, compared = [], 0
    for name, signature in signatures.items():
        feeds = {"X": x, "G": gain} if len(signature.inputs) == 2 else {"X": x}
        if signature.key in refused:
            continue
        model = fused_model(signature)
        try:
            (expected,) = session(model).run(None, feeds)
        except Exception as error:  # noqa: BLE001 - onnxruntime's own exceptions have no common class
            assert "NOT_IMPLEMENTED" in str(error)
            continue
        (found,) = session(model, built.library.path).run(None, feeds)
        if name in EXTREMES:
            expected = np.where(np.isnan(x).any(axis=1, keepdims=True), np.nan, expected)
        compared += 1
        good = agree(found, expected, dtype).all(axis=1)
        faults += [
            f"{name} of {dtype}, row {names[at]!r}: {found[at][:4]}, not {expected[at][:4]}"
            for at in np.flatnonzero(~good)
        ]
    assert not faults, "\n".join(faults)
    assert compared > 10


def test_rows_of_float32(build: Build) -> None:
    check_rows("float32", build)


@pytest.mark.slow
def test_rows_of_float16(build: Build) -> None:
    check_rows("float16", build)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_a_nan_anywhere_makes_the_extreme_nan(op_type: str, build: Build) -> None:
    """ONNX Runtime 1.31.1 keeps a NaN at the front, and may pass over any other."""
    body = f'<opset_import: ["" : 20]> f (X) => (Y) {{ {ROWS[op_type]} }}'
    signature = RegionSignature("row", body, (tensor("X", "n", WIDTH),), (tensor("Y", "n", 1),))
    built = build(signature)
    assert built.library is not None
    x = np.tile(np.arange(WIDTH, dtype=np.float32), (WIDTH, 1))
    np.fill_diagonal(x, np.nan)
    (found,) = session(fused_model(signature), built.library.path).run(None, {"X": x})
    assert np.isnan(found).all()


def test_a_variance_beyond_the_type_makes_a_norm_nan(build: Build) -> None:
    """Sums of finite numbers that overflow: 0 in ONNX Runtime 1.31.1, NaN here."""
    body = f'<opset_import: ["" : 20]> f (X, G) => (Y) {{ {ROWS["LayerNormalization"]} }}'
    inputs = (tensor("X", "n", WIDTH), tensor("G", WIDTH))
    signature = RegionSignature("row", body, inputs, (tensor("Y", "n", WIDTH),))
    built = build(signature)
    assert built.library is not None
    feeds = {"X": np.full((2, WIDTH), 3e38, np.float32), "G": np.ones(WIDTH, np.float32)}
    (found,) = session(fused_model(signature), built.library.path).run(None, feeds)
    assert np.isnan(found).all()

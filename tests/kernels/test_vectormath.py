"""The functions' stated errors, in units in the last place of float32, against float64."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from elementwise import Array, Elementwise, Function, Library, emit, unary_kernel

from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.region import powers, trigonometry, vectormath
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.tvm.build import assembly

INFINITY = float("inf")


@dataclass(frozen=True)
class Bound:
    """The largest error for low <= x <= high: in ulp, or absolute."""

    error: float
    low: float = -INFINITY
    high: float = INFINITY
    is_absolute: bool = False
    with_nan: bool = True


@dataclass(frozen=True)
class Case:
    function: Function
    bounds: tuple[Bound, ...]
    reference: str = ""


def _case(function: Function, error: float, reference: str = "") -> Case:
    return Case(function, (Bound(error),), reference)


def _case_without_denormals(function: Function, error: float) -> Case:
    below = Bound(2.0**-126, high=-87.3, is_absolute=True, with_nan=False)
    return Case(function, (Bound(error, low=-87.3), below))


# The bounds are those that the functions' docstrings state. Each is somewhat above what was found
# over all float32 on AVX-512, as another compiler may order additions differently.
CASES: dict[str, Case] = {
    "exp": _case(vectormath.exp, 1.1),
    "exp_nonpositive": Case(
        vectormath.exp_nonpositive,
        (Bound(1.1, -87.3, 0.0), Bound(2.0**-126, high=-87.3, is_absolute=True, with_nan=False)),
        "exp",
    ),
    "exp2_rough": Case(
        vectormath.exp2_rough,
        (
            Bound(2048, -126.0, 64.0),
            Bound(2.0**-125, high=-126.0, is_absolute=True, with_nan=False),
        ),
        "exp2",
    ),
    "exp_within": Case(vectormath.exp_within, (Bound(1.1, -87.0, 88.0),), "exp"),
    "expm1": _case(vectormath.expm1, 1.6),
    "log": _case(vectormath.log, 1.0),
    "erf": _case(vectormath.erf, 1.8),
    "tanh": _case(vectormath.tanh, 2.7),
    "sigmoid": _case_without_denormals(vectormath.sigmoid, 2.7),
    "softplus": _case_without_denormals(vectormath.softplus, 2.0),
    "silu": Case(
        vectormath.silu,
        (Bound(2.8, -88.3), Bound(2.0**-120, -3.0e38, -88.3, is_absolute=True, with_nan=False)),
    ),
    "mish": Case(
        vectormath.mish,
        (Bound(5.0, -87.3), Bound(2.0**-119, -3.0e38, -87.3, is_absolute=True, with_nan=False)),
    ),
    "gelu": Case(
        vectormath.gelu,
        (Bound(3.0, 0.0), Bound(2.0**-24.3, -3.0e38, 0.0, is_absolute=True, with_nan=False)),
    ),
    "gelu_tanh": Case(
        vectormath.gelu_tanh,
        (Bound(2.2, 0.0), Bound(2.0**-24, -3.0e38, 0.0, is_absolute=True, with_nan=False)),
    ),
    "sin": _case(trigonometry.sin, 1.7),
    "cos": _case(trigonometry.cos, 1.7),
    "tan": _case(trigonometry.tan, 2.7),
    "asin": _case(trigonometry.asin, 2.5),
    "acos": _case(trigonometry.acos, 1.5),
    "atan": _case(trigonometry.atan, 2.0),
    "sinh": _case(powers.sinh, 1.8),
    "cosh": _case(powers.cosh, 1.6),
    "asinh": _case(powers.asinh, 1.0),
    "acosh": _case(powers.acosh, 1.0),
    "atanh": _case(powers.atanh, 1.0),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    kernels = [unary_kernel(name, case.function) for name, case in CASES.items()]
    kernels.append(
        Elementwise("power", ("float32",) * 2, "float32", lambda e, x: powers.power(e, *x))
    )
    return Library(kernels, tmp_path_factory.mktemp("vectormath"))


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("checker") / "ulps.so"
    source = Path(__file__).with_name("ulps.c")
    command = [*find_linker(), "-O2", "-shared", "-fPIC", "-o", str(path), str(source), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(path))


def _largest_error(
    library: Library, checker: ctypes.CDLL, name: str, bound: Bound, step: int
) -> tuple[float, float]:
    """The largest error of function `name` and where it is, over every `step`-th float32."""
    reference = getattr(checker, f"ref_{CASES[name].reference or name}")
    parts = os.cpu_count() or 1
    edges = [2**32 * part // parts for part in range(parts + 1)]

    def part(first: int, last: int) -> tuple[float, float]:
        worst, where = ctypes.c_double(), ctypes.c_float()
        checker.largest_error(
            library.function(name), reference, ctypes.c_uint64(first), ctypes.c_uint64(last),
            ctypes.c_uint64(step), ctypes.c_float(bound.low), ctypes.c_float(bound.high),
            ctypes.c_int32(bound.is_absolute), ctypes.c_int32(bound.with_nan),
            ctypes.byref(worst), ctypes.byref(where),
        )  # fmt: skip
        return worst.value, where.value

    with ThreadPoolExecutor(parts) as pool:
        return max(pool.map(part, edges[:-1], edges[1:]))


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4093])
def test_errors_stay_within_the_stated_bounds(
    name: str, step: int, library: Library, checker: ctypes.CDLL
) -> None:
    for bound in CASES[name].bounds:
        error, where = _largest_error(library, checker, name, bound, step)
        assert error <= bound.error, f"{name}({where!r}) is off by {error}, bound {bound}"


def test_the_check_sees_an_error(checker: ctypes.CDLL, tmp_path: Path) -> None:
    off = unary_kernel("exp", lambda e, x: vectormath.exp(e, x) * e.f32(1 + 2.0**-22))
    error, _ = _largest_error(Library([off], tmp_path), checker, "exp", Bound(1.1), 4093)
    assert 2.0 < error < 10.0


@pytest.mark.parametrize("name", sorted(CASES))
def test_single_floats(name: str, library: Library, checker: ctypes.CDLL) -> None:
    """Every float32 beside 0, 1, the largest and NaN, infinities: within the same bounds."""
    values = [0x0, 0x1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    for bound in CASES[name].bounds:
        for start in (first + sign for first in values for sign in (0, 2**31)):
            first, last = max(start - 40, 0), min(start + 40, 2**32)
            worst, where = ctypes.c_double(), ctypes.c_float()
            checker.largest_error(
                library.function(name), getattr(checker, f"ref_{CASES[name].reference or name}"),
                ctypes.c_uint64(first), ctypes.c_uint64(last), ctypes.c_uint64(1),
                ctypes.c_float(bound.low), ctypes.c_float(bound.high),
                ctypes.c_int32(bound.is_absolute), ctypes.c_int32(bound.with_nan),
                ctypes.byref(worst), ctypes.byref(where),
            )  # fmt: skip
            assert worst.value <= bound.error, f"{name}({where.value!r}) is off by {worst.value}"


def test_gelu_at_minus_infinity(library: Library) -> None:
    assert np.isnan(library("gelu", np.float32([-np.inf] * 17))).all()  # as it is written


def test_exp_nonpositive_is_exactly_0_far_down(library: Library) -> None:
    x = np.float32([-88.0, -103.0, -104.0, -1e4, -3.4e38, -np.inf] * 3)
    assert library("exp_nonpositive", x).tolist() == [0.0] * 18
    assert library("exp2_rough", np.minimum(x, -127.0)).tolist() == [0.0] * 18


def test_exact_values(library: Library) -> None:
    """A Softmax of one element is 1, and a LogSoftmax 0."""
    zeros, ones = np.zeros(17, np.float32), np.ones(17, np.float32)
    for name in ("exp", "exp_nonpositive", "exp_within"):
        np.testing.assert_array_equal(library(name, zeros), ones)
    np.testing.assert_array_equal(library("log", ones), zeros)


def _ulps(found: Array, exact: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        error = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(rounded))
    is_finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~is_finite], rounded[~is_finite])
    return float(error[is_finite].max())


def test_powers(library: Library) -> None:
    rng = np.random.default_rng(0)
    count = 500_000
    x = np.exp(rng.uniform(-87, 88, count)).astype(np.float32)
    y = (rng.uniform(-1, 1, count) * np.exp(rng.uniform(-6, 5, count))).astype(np.float32)
    near = slice(0, count // 2)  # bases near 1, large exponents
    x[near], y[near] = rng.uniform(0.5, 2, count // 2), rng.uniform(-120, 120, count // 2)
    x[::3], y[::3] = -x[::3], np.round(y[::3])
    with np.errstate(over="ignore", under="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert _ulps(library("power", x, y), exact) <= 1.1


def test_powers_at_the_edges(library: Library) -> None:
    """C's special cases (C17, F.10.4.4), signs of zeros too."""
    special = np.float32([
        0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 2.5, -2.5, np.inf, -np.inf, np.nan,
        1e-40, -1e-40, 3e38, -3e38, 1.0000001, 0.99999994, 16777217.0, -16777215.0,
    ])  # fmt: skip
    x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    found = library("power", x, y)
    np.testing.assert_allclose(found, expected, rtol=2**-22)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


HOT = ["Exp", "Erf", "Gelu", "Log", "Sigmoid", "Swish", "Tanh", "exp_nonpositive"]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", HOT)
def test_no_call_in_the_assembly(name: str, dtype: str, level: str) -> None:
    op = POINTWISE_OPS[name]
    kernel = Elementwise("k", (dtype,), dtype, lambda e, x: op.write(e, op.attributes, x))
    instructions = [line.split() for line in assembly(emit(kernel), level).splitlines()]
    names = {words[0] for words in instructions if words}
    assert not {name for name in names if name.startswith("call")}
    registers = "zmm" if level.endswith("v4") else "ymm"
    assert any(registers in word for words in instructions for word in words)
    if dtype == "float16":
        assert {"vcvtph2ps", "vcvtps2ph"} <= names


def test_the_tail_of_gelu_for_results_in_half_precision() -> None:
    """Where a float16 has the product; further out there is next to nothing."""
    t = np.linspace(0, 5.8, 4001)
    exact = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in t])
    found = 2.0 ** np.polyval(vectormath._NORMAL_TAIL_ROUGH[::-1], t)
    is_normal = t * exact >= 2.0**-14
    assert np.abs(found / exact - 1)[is_normal | (t < 1)].max() < 2.0**-17
    assert (t * np.abs(found - exact)).max() < 2.0**-17 * 0.17
    far = np.polyval(vectormath._NORMAL_TAIL_ROUGH[::-1], np.linspace(5.8, 10.3166, 999))
    assert (np.diff(far) < 0).all()
    assert far[-1] < -75

"""Kernels of one region that differ in their choices compute the same, and are kept apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_regions import Case
from conv_regions import depthwise, pointwise
from fused_model import fused_model, random_input, session

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.tunable import Tunable, symbol_of
from ortkit.kernels.tvm.backend import TvmBackend, _lowered
from ortkit.kernels.tvm.choices import DEFAULTS, VALUES, read_choices
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.timing import Effort, time_choices

Dims = tuple[int | str, ...]


def region(body: str, inputs: dict[str, Dims], output: Dims) -> RegionSignature:
    text = f'<opset_import: ["" : 20]> f ({", ".join(inputs)}) => (Y) {{ {body} }}'
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in inputs.items())
    return RegionSignature("chosen", text, specs, (TensorSpec("Y", "float32", output),))


SOFTMAX = "Y = Softmax <axis = -1> (X)"
MEAN = "A = Constant <value_ints = [1]> ()  Y = ReduceMean <keepdims = 0> (X, A)"
TURNED = "T = Transpose <perm = [1, 0]> (X)  Y = Add (T, B)"
#: What the generator has different loops for.
REGIONS = {
    "flat": region("S = Sigmoid (X)  Y = Mul (X, S)", {"X": ("n",)}, ("n",)),
    "flat of known size": region("Y = Tanh (X)", {"X": (3, 7, 29)}, (3, 7, 29)),
    "rows": region(SOFTMAX, {"X": ("n", 150)}, ("n", 150)),
    "rows of unknown size": region(SOFTMAX, {"X": (6, "m")}, (6, "m")),
    "rows side by side": region(MEAN, {"X": (3, 17, 40)}, (3, 40)),
    "broadcast": region("Y = Add (X, B)", {"X": ("n", 53), "B": (53,)}, ("n", 53)),
    "tiles": region(TURNED, {"X": ("n", 37), "B": (37, "n")}, (37, "n")),
    "divided by a constant": region(
        "C = Constant <value_float = 3.7> ()  Y = Div (X, C)", {"X": ("n", 53)}, ("n", 53)
    ),
    "divided by what a row has": region(
        "A = Constant <value_ints = [1]> ()  Q = Mul (X, X)  S = ReduceSum <keepdims = 1> (Q, A)"
        "  R = Sqrt (S)  Y = Div (X, R)",
        {"X": ("n", 150)},
        ("n", 150),
    ),
    "divided by what a column has": region(
        "Y = Div (X, B)", {"X": ("n", 53), "B": (53,)}, ("n", 53)
    ),
    "parts": region("Y = Concat <axis = 1> (X, B)", {"X": (9, 21), "B": (9, 35)}, (9, 56)),
}
SIZES = {"n": 67, "m": 83}


#: Kernels by hand, of sizes that their tiles do not divide.
SHAPED = {
    "depthwise": (depthwise(("b", 9, 37), 40, kernel=3, stride=1, pads=(1, 1, 1, 1)), (2,)),
    "1x1 convolution": (pointwise(("b", 5, 7), (33, 70), gate=True), (2,)),
    "1x1 convolution of unknown size": (pointwise(("b", "h", "w"), (24, 40)), (2, 6, 19)),
    "attention": (Case(queries=83, keys=150).signature, (2,)),
    "attention of unknown length": (Case(mask=("float32", ("s", "t"))).signature, (2, 19, 140)),
    "causal attention": (Case(queries="s", keys="s", causal=True).signature, (1, 70)),
}


def alternatives(signature: RegionSignature) -> list[str]:
    """Each parameter at each value, alone, and all of them at their last values."""
    found = TvmBackend().parameters(signature, Target().resolved())
    single = [f"{name}={value}" for name, values in found.items() for value in values[1:]]
    together = ",".join(f"{n}={values[-1]}" for n, values in found.items() if len(values) > 1)
    return [*single, together]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REGIONS)
def test_all_choices_compute_the_same(name: str, tmp_path: Path, cache: KernelCache) -> None:
    signature = REGIONS[name]
    model = fused_model(signature)
    feeds = {spec.name: random_input(spec, SIZES) for spec in signature.inputs}
    (expected,) = session(model).run(None, feeds)
    chosen = alternatives(signature)
    assert len(chosen) > 2
    for number, each in enumerate(chosen):
        library = tmp_path / f"{number}.so"
        built = build_library(
            [signature], Target(), library, cache=cache, chooser=lambda *_, each=each: each
        )
        assert built.library is not None, built.refused
        (found,) = session(model, library).run(None, feeds)
        np.testing.assert_allclose(found, expected, 2e-5, 1e-6, err_msg=each)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "native") for name in SHAPED),
        *((name, "x86-64-v3") for name in ("depthwise", "1x1 convolution", "attention")),
    ],
)
def test_all_tiles_of_kernels_by_hand_compute_the_same(name: str, level: str) -> None:
    """The smallest and largest of each parameter together, and alone where that is quick."""
    signature, sizes = SHAPED[name]
    target, backend = Target("cpu", level).resolved(), TvmBackend()
    found = backend.parameters(signature, target)
    assert all(values[0] == 0 < len(values) - 1 for values in found.values())
    assert backend.kind(signature, target)
    alone = [f"{name}={values[place]}" for name, values in found.items() for place in (1, -1)]
    together = [",".join(f"{name}={v[place]}" for name, v in found.items()) for place in (1, -1)]
    is_slow = "attention" in name
    chosen = list(dict.fromkeys(["", *together, *([] if is_slow else alone)]))
    case, effort = TuneCase(signature, sizes), Effort(rounds=1, seconds=1e-6)
    times = time_choices(case, target, "tvm", chosen, effort)
    assert len(times) >= 3
    assert {time.choices: time.problem for time in times if time.problem} == {}


@pytest.mark.parametrize("name", ["depthwise", "1x1 convolution", "attention"])
def test_each_tile_of_a_kernel_by_hand_is_as_chosen(name: str) -> None:
    """It makes other code; those below and above what the rule says do."""
    pytest.importorskip("tvm")
    (signature, _), target = SHAPED[name], Target("cpu", "x86-64-v4")

    def code(choices: str) -> str:
        return str(_lowered(signature, target, choices)[1].script()).replace(
            symbol_of(signature, choices), ""
        )

    default = code("")
    for parameter, values in TvmBackend().parameters(signature, target).items():
        assert code(f"{parameter}={values[1]}") != default, parameter


def test_choices_are_part_of_what_is_kept(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    signature = REGIONS["rows"]

    def compiled(choices: str) -> int:
        return build_library(
            [signature], Target(), tmp_path / "k.so", cache=cache, chooser=lambda *_: choices
        ).compiled

    assert [compiled(""), compiled("keep=0"), compiled("keep=0"), compiled("")] == [1, 1, 0, 0]


def test_choices_that_are_none_are_left_out(tmp_path: Path, cache: KernelCache) -> None:
    signature = REGIONS["flat"]
    built = build_library(
        [signature], Target(), tmp_path / "k.so", cache=cache, chooser=lambda *_: "wings=2"
    )
    assert built.library is not None
    assert built.kernels[0].symbol == f"ortkit_{signature.key}"  # type: ignore[union-attr]


def test_choices_are_read_as_they_are_written() -> None:
    found = replace(DEFAULTS, vector=32, keep=0)
    assert str(found) == "vector=32,keep=0"
    assert read_choices(str(found)) == found
    assert read_choices("") == DEFAULTS
    assert str(DEFAULTS) == ""


@pytest.mark.parametrize(
    "text", ["vector", "vector=", "vector=3", "vector=16,vector=16", "wings=2", "vector=-16", ","]
)
def test_text_that_names_no_choices(text: str) -> None:
    assert read_choices(text) is None


def test_values_hold_the_defaults() -> None:
    assert all(getattr(DEFAULTS, name) in values for name, values in VALUES.items())
    assert isinstance(TvmBackend(), Tunable)


def test_a_row_of_unknown_size_is_not_taken_for_long() -> None:
    """One that is shorter than a vector goes point by point."""
    found = TvmBackend().parameters(REGIONS["rows of unknown size"], Target().resolved())
    assert max(found["vector"]) == DEFAULTS.vector


def test_inverses_answer_as_divisions_at_the_far_ends(tmp_path: Path, cache: KernelCache) -> None:
    """Zeros, infinities, NaN, and numbers whose inverse is no float32 or a denormal one."""
    signature = region("Y = Div (X, D)", {"X": ("n", 40), "D": ("n", 1)}, ("n", 40))
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e-45, 1e-20, 2e38, -3e38, 1e20, 3.0]
    divisors = np.array(ends, np.float32).reshape(-1, 1)
    numbers = np.array([*ends, 1.0, -7.5, 1e30, 1e-30, 5.0, 0.1, 100.0, 1e10], np.float32)
    x = np.tile(numbers, (len(ends), 2))
    with np.errstate(all="ignore"):
        expected = x / divisors
    library = tmp_path / "k.so"
    chosen = "reciprocal=1"
    assert "reciprocal" in TvmBackend().parameters(signature, Target().resolved())
    build_library([signature], Target(), library, cache=cache, chooser=lambda *_: chosen)
    (found,) = session(fused_model(signature), library).run(None, {"X": x, "D": divisors})
    assert (np.isnan(found) == np.isnan(expected)).all()
    normal = np.isfinite(expected) & (abs(expected) > 2.0**-126)
    np.testing.assert_allclose(found[normal], expected[normal], rtol=3e-7)
    others = ~normal & ~np.isnan(expected)
    np.testing.assert_allclose(found[others], expected[others], rtol=0, atol=2.0**-126)
    assert (found.view(np.int32) != expected.view(np.int32))[normal].any()


def test_powers_of_two_need_no_inverse() -> None:
    """LLVM multiplies by itself there, and rounds nothing."""
    for value, is_free in ((8.0, False), (0.25, False), (3.0, True), (0.1, True)):
        body = f"C = Constant <value_float = {value}> ()  Y = Div (X, C)"
        found = TvmBackend().parameters(region(body, {"X": (64,)}, (64,)), Target().resolved())
        assert ("reciprocal" in found) == is_free

"""Faults that show on unusual inputs only: long ones, negative indices, NaN, large means."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.long import length_tests, long_plan
from ortkit.verify.inputs.single_pixels import single_pixel_plans
from ortkit.verify.pair import verify_models

Weights = Mapping[str, np.ndarray]

WINDOWED = """g (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {
    shape = Shape(x) length = Gather(shape, one) places = Range(zero, length, one)
    rows = Unsqueeze(places, last) columns = Unsqueeze(places, first)
    away = Sub(rows, columns) near = Less(away, window)
    turned = Transpose <perm = [0, 2, 1]> (x) scores = MatMul(x, turned)
    kept = Where(near, scores, low) part = Softmax <axis = -1> (kept) y = MatMul(part, x)
}"""


def windowed(window: int) -> ir.Model:
    numbers = {"zero": 0, "one": 1, "window": window}
    weights = {name: np.array(number) for name, number in numbers.items()}
    axes = {"first": np.array([0]), "last": np.array([1]), "low": np.array(-1e9, np.float32)}
    return model(WINDOWED, {**weights, **axes})


@pytest.mark.parametrize("wrong", [199, 201, 1 << 40])
def test_a_window_beyond_the_usual_lengths_is_met(wrong: int) -> None:
    found = verify_models(windowed(200), windowed(wrong))
    assert found.verdict == "no"
    assert verify_models(windowed(200), windowed(200)).verdict == "yes"


def test_a_window_that_costs_too_much_is_listed() -> None:
    wide = windowed(1 << 20)
    assert list(length_tests(wide).values()) == [1 << 20]
    assert long_plan(FeedMaker.of(wide, {}), wide, 0) is None
    found = verify_models(wide, wide)
    assert found.verdict == "yes"
    assert found.values.guards is not None
    assert [each.met for each in found.values.guards.missed] == ["true"]


def table(rows: np.ndarray) -> ir.Model:
    text = """g (int64[batch, seq] ids) => (float[batch, seq, 8] y) {
        shape = Shape(ids) length = Gather(shape, one) places = Range(zero, length, one)
        there = Gather(positions, places) row = Gather(table, ids) y = Add(there, row)
    }"""
    weights = {"zero": np.array(0), "one": np.array(1), "table": random_weights(50, 8)}
    return model(text, {**weights, "positions": rows})


def test_the_end_of_a_table_of_positions_is_read() -> None:
    rows, wrong = random_weights(400, 8), random_weights(400, 8)
    wrong[300:] *= 1.1
    assert verify_models(table(rows), table(wrong)).verdict == "no"


PAIRS: dict[str, tuple[str, str, Weights]] = {
    "negative indices": (
        "g (int64[batch, seq] ids) => (float[batch, seq, 8] y) { y = Gather(table, ids) }",
        """g (int64[batch, seq] ids) => (float[batch, seq, 8] y) {
            least = Max(ids, zero) y = Gather(table, least)
        }""",
        {"table": random_weights(50, 8), "zero": np.array(0)},
    ),
    "NaN": (
        """g (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {
            is_nan = IsNaN(x) good = Where(is_nan, zero, x) y = MatMul(good, w)
        }""",
        """g (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {
            is_nan = IsNaN(x) good = Where(is_nan, one, x) y = MatMul(good, w)
        }""",
        {"w": random_weights(8, 8), "zero": np.float32(0), "one": np.float32(1)},
    ),
    "a variance that cancels": (
        """g (float[batch, seq, 64] x) => (float[batch, seq, 64] y) {
            mean = ReduceMean(x, axis) away = Sub(x, mean) squares = Mul(away, away)
            variance = ReduceMean(squares, axis) more = Add(variance, least)
            root = Sqrt(more) y = Div(away, root)
        }""",
        """g (float[batch, seq, 64] x) => (float[batch, seq, 64] y) {
            mean = ReduceMean(x, axis) away = Sub(x, mean) squared = Mul(x, x)
            all = ReduceMean(squared, axis) of_mean = Mul(mean, mean)
            variance = Sub(all, of_mean) more = Add(variance, least)
            root = Sqrt(more) y = Div(away, root)
        }""",
        {"axis": np.array([-1]), "least": np.float32(1e-5)},
    ),
    "negative integers": (
        "g (int64[batch, seq] n) => (int64[batch, seq] y) { y = Abs(n) }",
        "g (int64[batch, seq] n) => (int64[batch, seq] y) { y = Identity(n) }",
        {},
    ),
    "products beyond 32 bits": (
        "g (int64[batch, seq] n) => (int64[batch, seq] y) { y = Mul(n, large) }",
        """g (int64[batch, seq] n) => (int64[batch, seq] y) {
            a = Cast <to = 6> (n) b = Cast <to = 6> (large) c = Mul(a, b) y = Cast <to = 7> (c)
        }""",
        {"large": np.array(100_003)},
    ),
    "positions that are given": (
        """g (int64[batch, seq] position_ids) => (float[batch, seq, 8] y) {
            y = Gather(table, position_ids)
        }""",
        """g (int64[batch, seq] position_ids) => (float[batch, seq, 8] y) {
            shape = Shape(position_ids) length = Gather(shape, one)
            places = Range(zero, length, one) all = Expand(places, shape) y = Gather(table, all)
        }""",
        {"table": random_weights(256, 8), "zero": np.array(0), "one": np.array(1)},
    ),
    "trips": (
        """g (float[batch, 8] x, int64 n) => (float[batch, 8] y) {
            y = Loop (n, , x) <body = b (int64 i, bool g, float[batch, 8] s)
                => (bool k, float[batch, 8] t) { k = Identity(g) t = Sin(s) }>
        }""",
        """g (float[batch, 8] x, int64 n) => (float[batch, 8] y) {
            most = Min(n, eight)
            y = Loop (most, , x) <body = b (int64 i, bool g, float[batch, 8] s)
                => (bool k, float[batch, 8] t) { k = Identity(g) t = Sin(s) }>
        }""",
        {"eight": np.array(8)},
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_on_unusual_inputs_is_found(name: str) -> None:
    original, candidate, weights = PAIRS[name]
    good = model(original, weights)
    assert verify_models(good, good).verdict == "yes"
    assert verify_models(good, model(candidate, weights)).verdict == "no"


DRAWN = "g (float[batch, 8] x) => (float[batch, 8] y) {{ {drawn} y = Add(x, r) }}"
NORMAL = DRAWN.format(drawn="r = RandomNormalLike <scale = 1.0> (x)")


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        ("r = RandomNormalLike <scale = 2.0> (x)", "scale=2"),
        ("r = RandomUniformLike (x)", "RandomUniform"),
        ("r = Identity(x)", "no random numbers are drawn"),
    ],
)
def test_other_random_numbers_are_wrong(drawn: str, reason: str) -> None:
    found = verify_models(model(NORMAL), model(DRAWN.format(drawn=drawn)))
    assert found.verdict == "no"
    assert reason in found.reason


def test_random_outputs_under_other_names_are_not_compared() -> None:
    text = "g (float[batch, 8] x) => (float[batch, 8] y) { q = RandomNormalLike(x) y = Add(x, q) }"
    found = verify_models(model(NORMAL), model(text))
    assert found.verdict == "not possible"
    assert "output 'y' (it depends on random numbers)" in found.reason


ROUNDED = {
    "an input": "r = Round(x) y = Mul(r, step)",
    "a moved input": "t = Transpose <perm = [0, 2, 1]> (x) r = Round(t) y = Mul(r, step)",
}


@pytest.mark.parametrize("name", ROUNDED)
def test_halves_are_rounded_to_even_numbers(name: str) -> None:
    text = "g (float[n, 4, 4] x) => (float[n, 4, 4] y) { NODES }"
    weights = {"half": np.float32(0.5), "step": np.float32(0.1)}
    weights = {key: np.array(each) for key, each in weights.items()}
    even, nodes = model(text.replace("NODES", ROUNDED[name]), weights), ROUNDED[name]
    for value in "xt":
        nodes = nodes.replace(f"r = Round({value})", f"a = Add({value}, half) r = Floor(a)")
    assert verify_models(even, even).verdict == "yes"
    assert verify_models(even, model(text.replace("NODES", nodes), weights)).verdict == "no"


RESIZED = """g (float[batch, 3, h, w] x) => (float[batch, 3, a, b] y) {{
    half = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    y = Resize <mode = "linear", coordinate_transformation_mode = "{mode}"> (half, , scales)
}}"""


@pytest.mark.parametrize("scale", [0.5, 0.3])
@pytest.mark.parametrize("wrong", ["pytorch_half_pixel", "half_pixel_symmetric"])
def test_single_pixels_are_compared(scale: float, wrong: str) -> None:
    """Some ways to place pixels differ where one pixel is left of more, and nowhere else."""
    scales = {"scales": np.array([1, 1, scale, scale], np.float32)}
    right = model(RESIZED.format(mode="half_pixel"), scales)
    found = verify_models(right, right)
    assert found.verdict == "yes"
    pixels = {0.5: 4, 0.3: 8}[scale]
    assert any(f"h {pixels}, w {pixels}" in each for each in found.input_sets)
    assert verify_models(right, model(RESIZED.format(mode=wrong), scales)).verdict == "no"


def test_sizes_that_are_fixed_have_no_single_pixels() -> None:
    text = RESIZED.format(mode="half_pixel").replace("h, w] x", "8, 8] x")
    fixed = model(text, {"scales": np.array([1, 1, 0.5, 0.5], np.float32)})
    assert single_pixel_plans(FeedMaker.of(fixed, {}), fixed, 0) == ()

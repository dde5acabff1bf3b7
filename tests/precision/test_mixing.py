"""Products in bfloat16 beside those in int8: what the budget keeps out, and what is faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ortkit
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision import lowering, whole_model
from ortkit.precision.budget import Trial, choose, without_next
from ortkit.precision.candidates import Measured
from ortkit.precision.forms import DynamicInt8, RoundedBf16
from ortkit.precision.gains import Gain
from ortkit.precision.harms import groups_of, shared
from ortkit.precision.mixing import mixed_order, slower_in_int8
from ortkit.precision.trials import FLAGS, switched_model
from ortkit.runtime.timing.variants import Variant
from ortkit.targets.cpu import has_bf16, native_level
from tests.precision.helpers import floats, model_of, off_by, products_of, run

needs_bf16 = pytest.mark.skipif(
    not has_bf16(native_level()), reason="the processor has no products of bfloat16"
)
SIZE, COARSE = 256, np.float32(40)
#: `q` multiplies a column that is small with a row that is large: eight bits round it coarsely.
NET = f"""g (float[n, {SIZE}] x) => (float[n, {SIZE}] y, float[n, {SIZE}] q) {{
  a = MatMul(x, w)  r = Tanh(a)  h = Mul(r, by)
  q = MatMul(h, u)  k = MatMul(h, v)  s = Add(q, k)  y = MatMul(s, w)
}}"""


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""

    def gains(_switched: Path, chained: Sequence[bool], *_: object) -> list[Gain]:
        return [Gain(10.0, 4.0)] * len(chained)

    monkeypatch.setattr("ortkit.precision.choosing.measure_gains", gains)
    monkeypatch.setattr("ortkit.precision.choosing.slower_in_int8", lambda *_: frozenset())
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))
    choose_fastest(monkeypatch, 0)


def choose_fastest(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    found = whole_model.Fastest(index, (1.0, 0.5, 1.5))
    monkeypatch.setattr(lowering, "fastest", lambda *_: found)


def net(**weights: np.ndarray) -> ir.Model:
    """Return the net; `w` is shared by two products, and `q` is an output."""
    by = np.ones(SIZE, np.float32)
    by[0] = 1 / COARSE
    coarse = floats(SIZE, SIZE, seed=2, scale=SIZE**-0.5)
    coarse[0] *= COARSE
    given = {
        "w": floats(SIZE, SIZE, seed=1, scale=SIZE**-0.5), "u": coarse,
        "v": floats(SIZE, SIZE, seed=3, scale=SIZE**-0.5), "by": by,
    }  # fmt: skip
    return model_of(NET, **{**given, **weights})


def lowered(model: ir.Model, **options: object) -> ortkit.Optimized:
    return ortkit.optimize(
        model,
        ortkit.OptimizeOptions(precision="int8", **options),  # type: ignore[arg-type]
    )


def forms(found: ortkit.Optimized) -> dict[str, str]:
    result = found.report.precision
    assert result is not None
    return {node.name: node.form if node.lowered else "float32" for node in result.nodes}


@needs_bf16
def test_what_the_budget_keeps_out_of_int8_is_in_bfloat16(tmp_path: Path) -> None:
    found = lowered(net())
    assert forms(found) == {"a": "int8", "q": "bf16", "k": "int8", "y": "int8"}
    result = found.report.precision
    assert result is not None
    assert (result.lowered, result.error is not None) == (4, True)
    assert (result.error or 1) <= result.max_error
    (node,) = (node for node in result.nodes if node.name == "q")
    assert node.reason == "in bfloat16: as int8 outputs would be off by more than 0.05"
    assert result.to_json()["taken"] == result.taken == 7
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
    kinds = [region.kind for region in found.report.regions if region.emitted_as]
    assert any("bf16_product" in kind for kind in kinds)
    assert any("int8_product" in kind for kind in kinds)
    path = tmp_path / "m.onnx"
    found.save(path)
    for rows in (1, 7, 64):
        x = floats(rows, SIZE, seed=rows)
        got = ortkit.Session(path).run({"x": x})
        for name, wanted in zip(("y", "q"), run(net(), x=x), strict=True):
            assert 0 < off_by(wanted, got[name]) < 0.05
    empty = ortkit.Session(path).run({"x": floats(0, SIZE)})
    assert [value.shape for value in empty.values()] == [(0, SIZE)] * 2


@needs_bf16
def test_the_budget_is_of_the_whole_model() -> None:
    full = lowered(net()).report.precision
    assert full is not None
    budget = 0.3 * (full.error or 0)
    found = lowered(net(), max_error=budget)
    assert (found.report.precision.error or 1) <= budget  # type: ignore[union-attr]
    assert "int8" not in [*forms(found).values()][:3]
    none = lowered(net(), max_error=1e-6)
    assert {*forms(none).values()} == {"float32"}


@needs_bf16
def test_without_kernels_products_stay_in_float32() -> None:
    found = lowered(net(), kernels="off")
    assert forms(found) == {"a": "int8", "q": "float32", "k": "int8", "y": "int8"}
    assert found.report.after.ops["MatMul"] == 1


def test_processors_without_bfloat16_leave_products_in_float32() -> None:
    found = lowered(net(), cpu="x86-64-v3")
    assert "bf16" not in forms(found).values()
    assert forms(found)["q"] == "float32"


@needs_bf16
def test_products_without_kernels_become_what_they_are_without_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[frozenset[str]] = []

    def left(_model: ir.Model, keys: frozenset[str]) -> frozenset[str]:
        asked.append(frozenset(keys))
        return frozenset(keys)

    monkeypatch.setattr("ortkit.precision.choosing.slower_in_int8", lambda *_: frozenset("ak"))
    monkeypatch.setattr(lowering, "left_over", left)
    found = lowered(net())
    assert asked[0] == {"a", "q", "k"}
    assert forms(found) == {"a": "int8", "q": "float32", "k": "int8", "y": "int8"}


@needs_bf16
def test_a_model_that_is_faster_in_bfloat16_is_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_fastest(monkeypatch, 1)
    found = lowered(net())
    assert {*forms(found).values()} == {"bf16"}
    result = found.report.precision
    assert result is not None
    reasons = {node.reason for node in result.nodes}
    assert reasons == {"in bfloat16: the whole model takes 0.50 of the time so"}
    assert (result.error or 1) < 0.01
    assert result.taken == 4 < max(point.lowered for point in result.curve)
    assert "DynamicQuantizeLinear" not in found.report.after.ops


@needs_bf16
def test_a_product_that_is_predicted_to_be_slower_is_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ortkit.precision.choosing.slower_in_int8", lambda *_: frozenset("y"))
    found = lowered(net())
    assert forms(found) == {"a": "int8", "q": "bf16", "k": "int8", "y": "bf16"}
    reasons = {node.name: node.reason for node in found.report.precision.nodes}  # type: ignore[union-attr]
    assert reasons["y"] == "in bfloat16: 8 bits are predicted to be no faster"


@needs_bf16
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_stay(value: float) -> None:
    weight = floats(SIZE, SIZE, scale=SIZE**-0.5)
    weight[3, 5] = value
    found = lowered(net(v=weight))
    assert "k" not in forms(found)


@needs_bf16
def test_a_denied_product_stays_in_float32() -> None:
    found = lowered(net(), denied=frozenset({"lower-precision:int8:q"}))
    assert forms(found)["q"] == "float32"


@needs_bf16
def test_convolutions_without_ranges_are_in_bfloat16() -> None:
    text = """g (float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
      a = Conv<pads = [1, 1, 1, 1]>(x, w)  r = Relu(a)  y = Conv<pads = [1, 1, 1, 1]>(r, v)
    }"""
    found = lowered(
        model_of(
            text, w=floats(32, 32, 3, 3, scale=0.06), v=floats(32, 32, 3, 3, seed=1, scale=0.06)
        )
    )
    assert {*forms(found).values()} == {"bf16"}
    reasons = {node.reason for node in found.report.precision.nodes}  # type: ignore[union-attr]
    assert reasons == {"in bfloat16: convolutions on 8-bit integers need --calibrate or --inputs"}
    assert not [miss for miss in found.report.misses if "--calibrate" in miss.reason]


# ---- the parts ---------------------------------------------------------------------------


def test_steps_replace_forms_and_go_back_in_reverse() -> None:
    harms = {0: 0.03, 1: 0.04, 2: 0.001, 3: 0.002}

    def measured(choices: Sequence[Sequence[bool]]) -> list[float]:
        return [
            math.hypot(*(harms[index] for index, flag in enumerate(flags) if flag))
            for flags in choices
        ]

    trials = [Trial(harm, 10.0) for harm in harms.values()]
    order, replaces = (2, 3, 0, 1), {0: 2, 1: 3}
    found = choose(trials, 0.045, measured, order, replaces)
    assert found.flags == (True, False, False, True)
    assert (found.taken, found.error) == (3, pytest.approx(math.hypot(0.03, 0.002)))
    assert without_next(found, 1).flags == (False, False, True, True)
    assert without_next(found, 2).flags == (False, False, True, False)
    assert not any(without_next(found, 9).flags)
    full = choose(trials, 1.0, measured, order, replaces)
    assert (full.flags, full.taken) == ((True, True, False, False), 4)


def test_bfloat16_comes_first_and_8_bits_take_its_place() -> None:
    products = {product.key: product for product in products_of(net())}
    measured = [
        Measured(DynamicInt8(products["a"]), 0.01, 0.02, Gain(10.0, 4.0)),
        Measured(DynamicInt8(products["k"]), 0.01, 0.01, Gain(10.0, 4.0)),
        Measured(DynamicInt8(products["y"]), 0.01, 0.01, Gain(10.0, 12.0)),
        Measured(RoundedBf16(products["a"]), 0.01, 0.003, None),
        Measured(RoundedBf16(products["y"]), 0.01, 0.002, None),
    ]
    assert mixed_order(measured, ()) == ((4, 3, 1, 0), {0: 3, 2: 4})
    assert mixed_order(measured, {"a"})[0] == (4, 3, 1)


def test_each_form_of_a_product_has_a_flag() -> None:
    model = net()
    products = products_of(model)
    forms = [*map(DynamicInt8, products), *map(RoundedBf16, products)]
    switched, x = switched_model(model, forms), floats(5, SIZE)
    plain = run(model, x=x)

    def error(*taken: int) -> float:
        flags = np.isin(np.arange(len(forms)), taken)
        return off_by(plain[0], run(switched, x=x, **{FLAGS: flags})[0])

    assert error() < 1e-5
    each = [error(index) for index in range(len(forms))]
    assert min(each[:4]) > max(each[4:]) > 1e-4
    # The first one counts.
    assert error(0, 4) == each[0]


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "threads", "is_slower"),
    [
        (128, 768, 768, 1, False),
        (1500, 384, 384, 1, False),
        (1500, 384, 384, 2, True),  # quantizing is not shared by threads
        (1, 768, 768, 1, False),  # weights decide
        (128, 768, 64, 1, True),
        (128, 16, 128, 1, True),
        ("n", 768, 768, 2, False),
    ],
)
def test_few_columns_are_no_faster_in_8_bits(
    rows: int | str, depth: int, columns: int, threads: int, is_slower: bool
) -> None:
    text = f"g (float[{rows}, {depth}] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"
    model = model_of(text, w=floats(depth, columns))
    found = slower_in_int8(products_of(model), Shapes.infer(model), threads)
    assert bool(found) is is_slower


def test_products_of_one_tensor_are_quantized_once() -> None:
    text = "g (float[128, 768] x) => (float[128, 256] y, float[128, 64] z) {" + (
        " y = MatMul(x, w)  z = MatMul(x, v) }"
    )
    model = model_of(text, w=floats(768, 512), v=floats(768, 64))
    assert not slower_in_int8(products_of(model), Shapes.infer(model), 1)


@pytest.mark.parametrize(
    ("seconds", "index"),
    [
        # The machine was slow for some turns.
        (((1.0, 3.0, 1.0, 3.0), (0.9, 2.7, 0.9, 2.8)), 1),
        (((1.0, 3.0, 1.0, 3.0), (0.99, 3.1, 0.98, 2.98)), 0),
        (((1.0, 1.0), (0.9, 0.9), (0.8, 0.8)), 2),
        (((1.0, 1.0), (1.4, 1.4), (1.2, 1.2)), 0),
    ],
)
def test_the_fastest_is_the_one_of_most_turns(
    seconds: tuple[tuple[float, ...], ...],
    index: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = whole_model._Timed(seconds)
    monkeypatch.setattr(whole_model, "_timed", lambda *_: timed)
    variants = [Variant(tmp_path / f"{number}.onnx") for number in range(len(seconds))]
    found = whole_model.fastest(variants, tmp_path, tmp_path, 1)
    assert isinstance(found, whole_model.Fastest)
    assert found.index == index


def test_products_that_are_alike_share_their_harm() -> None:
    other = model_of("g (float[n, 8] x) => (float[n, 4] z) { z = MatMul(x, w) }", w=floats(8, 4))
    first, *others = products_of(net())
    forms = [DynamicInt8(product) for product in (first, *products_of(other), *others)]
    groups = groups_of(forms, 2)
    assert sorted(index for group in groups for index in group) == [0, 1, 2, 3, 4]
    assert (0, 2) in groups
    found = shared([(0, 1), (2,)], [0.5, 0.1], [0.03, 0.04, 0.0])
    assert found == [pytest.approx(0.3), pytest.approx(0.4), pytest.approx(0.1)]
    assert shared([(0, 1)], [math.inf], [0.0, 0.0]) == [math.inf, math.inf]

"""The covering design: sizes and values that conditional faults show at."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify import child, sessions
from ortkit.verify.inputs.covering import QUICK_SETS, covering
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.pair import verify_models
from ortkit.verify.reference import Reference
from ortkit.verify.verifier import Verifier

SIZES = {"batch": (2, 3, 1, 3, 5), "seq": (7, 33, 131, 1, 16, 2)}


def test_quick_sets_are_the_first_of_full_and_meet_every_kind_of_size() -> None:
    quick, full = covering(SIZES, "quick"), covering(SIZES, "full")
    assert len(quick) == QUICK_SETS
    assert full[:QUICK_SETS] == quick
    assert {each["batch"] for each in quick} == {1, 2, 3}
    assert {1, 7, 33, 131} == {each["seq"] for each in quick}


def test_full_sets_meet_every_value_and_differ() -> None:
    full = covering(SIZES, "full")
    for name, values in SIZES.items():
        assert {each[name] for each in full} == set(values)
    pairs = [tuple(each.items()) for each in full]
    assert len(set(pairs)) == len(pairs)


def test_pairs_of_few_values_are_all_met() -> None:
    values = dict.fromkeys("abcd", (1, 2))
    met = {
        frozenset(pair)
        for each in covering(values, "full")
        for pair in combinations(each.items(), 2)
    }
    assert len(met) == 6 * 4


def test_a_model_without_sizes_is_tried_on_several_kinds_of_values() -> None:
    maker = FeedMaker.of(model("g (float[4, 8] x) => (float[] y) { y = MatMul(x, w) }"), {})
    quick, full = maker.covering("quick", 0), maker.covering("full", 0)
    assert (len(quick), len(full)) == (4, 8)
    assert {plan.floats for plan in quick} == {"normal", "large", "sparse"}
    assert {plan.floats for plan in full} == {"normal", "large", "sparse", "zeros"}


# ---- faults that show at some sizes or values only --------------------------------------------

BODY = """
g (float[batch, seq, 8] x, int64[batch, seq] ids, int64[batch, seq] mask)
=> (float[batch, seq, 8] y) {{
    rows = Gather(table, ids)
    sum = Add(x, rows)
    product = MatMul(sum, w)
    bools = Cast <to = 9> (mask)
    wide = Unsqueeze(bools, last)
    good = Where(wide, product, zero)
    {fault}
}}
"""
WEIGHTS: Mapping[str, np.ndarray] = {
    "table": random_weights(50, 8), "w": random_weights(8, 8, seed=1),
    "last": np.array([2]), "zero": np.array(0, np.float32), "i": np.array(0), "j": np.array(1),
    "one": np.array(1.0, np.float32), "n": np.array(0),
    "ten": np.array(10.0, np.float32),
}  # fmt: skip
SOUND = BODY.format(fault="y = Identity(good)")
BY_SIZE = """
    shape = Shape(ids) size = Gather(shape, {axis}) is_bad = {test}
    wrong = Add(good, one) y = Where(is_bad, wrong, good)"""
BY_VALUE = "is_bad = {test} wrong = Add(good, one) y = Where(is_bad, wrong, good)"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (BY_SIZE.format(axis="i", test="Equal(size, n)"), 3),
        (BY_SIZE.format(axis="i", test="Equal(size, n)"), 1),
        (BY_SIZE.format(axis="j", test="Equal(size, n)"), 1),
        (BY_SIZE.format(axis="j", test="Greater(size, n)"), 16),
        (BY_SIZE.format(axis="j", test="Greater(size, n)"), 128),
        (BY_VALUE.format(test="Greater(x, f)"), 60),
        (BY_VALUE.format(test="Less(x, f)"), -60),
        ("size = Abs(x) most = ReduceMax<keepdims = 0>(size) limit = Div(one, ten)"
         " is_bad = Less(most, limit) wrong = Add(good, one) y = Where(is_bad, wrong, good)", 0),
        ("seen = Equal(ids, n) is_bad = Unsqueeze(seen, last) wrong = Add(good, one)"
         " y = Where(is_bad, wrong, good)", 49),
        ("seen = Equal(ids, n) is_bad = Unsqueeze(seen, last) wrong = Add(good, one)"
         " y = Where(is_bad, wrong, good)", 0),
    ],
)  # fmt: skip
def test_a_fault_at_some_sizes_or_values_is_found(fault: str, number: int) -> None:
    weights = {**WEIGHTS, "n": np.array(number), "f": np.array(number, np.float32)}
    candidate = model(BODY.format(fault=fault), weights)
    assert conditional().check(candidate).verdict == "no"


VERIFIER: list[Verifier] = []


def conditional() -> Verifier:
    """Return the verifier of the sound model, made once."""
    if not VERIFIER:
        VERIFIER.append(Verifier(model(SOUND, WEIGHTS)).__enter__())
    return VERIFIER[0]


def teardown_module() -> None:
    """Remove the verifier's folder."""
    for each in VERIFIER:
        each.__exit__(None, None, None)


def test_the_sound_model_is_good_and_its_sets_are_described() -> None:
    verifier = conditional()
    assert verifier.check(model(SOUND, WEIGHTS)).verdict == "yes"
    assert isinstance(verifier._state, Reference)
    assert verifier._state.about == (
        "batch 3, seq 1; small values and zero rows; masks padded on the left",
        "batch 2, seq 7",
        "batch 3, seq 33; large values; masks of all kinds",
        "batch 1, seq 131; masks with holes",
    )
    assert verifier._state.dropped == ()


def test_large_numbers_that_outputs_are_not_compared_on_are_for_single_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if ONNX Runtime's own optimizations changed the results on them."""
    monkeypatch.setattr(
        "ortkit.verify.reference._Runner._is_stable",
        lambda self, name, values: self.sets[int(name)].plan.floats != "large",
    )
    weights = {**WEIGHTS, "f": np.array(60, np.float32)}
    faulty = model(BODY.format(fault=BY_VALUE.format(test="Greater(x, f)")), weights)
    with Verifier(model(SOUND, weights)) as verifier:
        found = verifier.check(faulty)
        assert isinstance(verifier._state, Reference)
        assert not any("large" in each for each in verifier._state.about)
        assert verifier.check(model(SOUND, weights)).verdict == "yes"
    assert found.verdict == "no"
    assert [each.name for each in found.values.wrong] == ["y"]


def test_masks_of_all_kinds_are_made() -> None:
    maker = FeedMaker.of(model(SOUND, WEIGHTS), {})
    right, mixed, holes, left = (maker.make(plan)["mask"] for plan in maker.covering("quick", 0))
    rows = np.asarray(mixed)
    assert rows.shape == (3, 33)
    assert not rows[1].any()
    assert (np.diff(rows[0]) >= 0).all()
    assert 0 in np.asarray(holes)[:, 1:-1]
    assert (np.asarray(holes)[:, 0] == 1).all()
    assert (np.diff(np.asarray(right), axis=1) <= 0).all()
    assert np.asarray(left).shape == (3, 1)


# ---- models that refuse some sets -------------------------------------------------------------


def used(built: ir.Model) -> Reference:
    with Verifier(built) as verifier:
        assert isinstance(verifier._state, Reference), verifier.refusal
        return verifier._state


def test_a_set_that_the_model_refuses_is_replaced_and_named() -> None:
    """A table of 100 positions is read at places that are computed, so that no size tells."""
    built = model(
        """g (int64[batch, seq] ids) => (float[batch, seq, 8] y) {
            shape = Shape(ids) length = Gather(shape, j) places = Range(i, length, j)
            rows = Gather(table, ids) added = Gather(positions, places) y = Add(rows, added)
        }""",
        {**WEIGHTS, "positions": random_weights(100, 8)},
    )
    found = used(built)
    assert set(found.about) == {
        "batch 2, seq 7", "batch 3, seq 33", "batch 3, seq 1", "batch 1, seq 61",
    }  # fmt: skip
    assert any(text.startswith("batch 1, seq 131: ") for text in found.dropped)


LOOP = """g (float[batch, seq] x) => (float[batch, seq] y) {
    shape = Shape(x) size = Gather(shape, j) is_long = Greater(size, limit)
    trips = Where(is_long, many, few)
    y = Loop (trips, , x) <
        body = b (int64 i, bool go, float[batch, seq] a) => (bool k, float[batch, seq] c) {
            k = Identity(go) c = Neg(a)
        }
    >
}"""


def test_a_set_that_does_not_end_costs_only_itself() -> None:
    weights = {"limit": np.array(128), "many": np.array(1 << 40), "few": np.array(3)}
    looped = model(LOOP, {**WEIGHTS, **weights})
    with Verifier(looped, seconds=8) as verifier:
        assert isinstance(verifier._state, Reference), verifier.refusal
        found, verification = verifier._state, verifier.check(looped)
    assert [text.partition(";")[0] for text in found.about] == [
        "batch 3, seq 1", "batch 2, seq 7", "batch 3, seq 33",
    ]  # fmt: skip
    (dropped,) = found.dropped
    assert dropped.startswith("batch 1, seq 131")
    assert re.search(r"the original did not finish within \d+ seconds$", dropped)
    assert verification.verdict == "partly"
    (gap,) = verification.not_compared
    assert gap.what.startswith("input set batch 1, seq 131")
    assert "--verify-seconds" in gap.fix


def test_a_set_on_which_the_original_crashes_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process crashes where a length is 33."""
    body = inspect.getsource(child._run_once).replace(
        "    results.mkdir(parents=True)\n",
        "    results.mkdir(parents=True)\n"
        "    if 33 in read_manifest(feeds)[0]['items'][0]['shape']:\n"
        "        import os\n"
        "        os.abort()\n",
    )
    source = inspect.getsource(child).replace(inspect.getsource(child._run_once), body)
    (tmp_path / "crashing_child.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "crashing_child", raising=False)
    crashing = import_module("crashing_child")
    monkeypatch.setattr(sessions, "run_settings", crashing.run_settings)
    text = "g (float[batch, seq] x) => (float[batch, seq] y) { y = Softmax(x) }"
    found = used(model(text))
    assert [text.partition(";")[0] for text in found.about] == [
        "batch 3, seq 1", "batch 2, seq 7", "batch 1, seq 131",
    ]  # fmt: skip
    assert "crashed with signal 6" in found.dropped[0]


def test_windows_get_sizes_that_they_divide() -> None:
    text = "g (float[batch, seq, 4] x) => (float[m, 128] y) { y = Reshape(x, windows) }"
    found = used(model(text, {"windows": np.array([-1, 128])}))
    assert {each.partition(";")[0] for each in found.about} >= {
        "batch 3, seq 32", "batch 1, seq 128",
    }  # fmt: skip


def test_extreme_sets_are_left_out_where_the_original_is_ill_conditioned() -> None:
    """Sine of large arguments: ONNX Runtime's optimizations add in another order."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        a = MatMul(x, w) b = Mul(a, large) y = Sin(b)
    }"""
    built = model(text, {"w": random_weights(64, 64), "large": np.array(1e9, np.float32)})
    assert verify_models(built, built).verdict == "yes"


def test_infinities_and_nan_are_tried_on_elementwise_models() -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y) {{ {body} }}"
    zero = {"zero": np.array(0, np.float32)}
    original = model(text.format(body="y = Mul(x, zero)"), zero)
    wrong = model(
        "g (float[n, 8] x) => (float[n, 8] y) { s = Shape(x) y = Expand(zero, s) }", zero
    )
    assert verify_models(original, original).verdict == "yes"
    assert verify_models(original, wrong).verdict == "no"

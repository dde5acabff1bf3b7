"""Models with a fixed batch are verified on a few rows, or on fewer input sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

import ortkit
from ortkit import OptimizeOptions, optimize
from ortkit.graph.batch.cut import Cut, cut_batch, row_axes
from ortkit.graph.batch.row_order import row_order
from ortkit.verify.exchange import read_values
from ortkit.verify.fixed_batch import BatchVerifier, verifier_of
from ortkit.verify.inputs import batch_rows
from ortkit.verify.pair import verify_models
from ortkit.verify.repeated import RepeatedVerifier
from ortkit.verify.verifier import Verifier

WEIGHTS = {"w": random_weights(16, 16), "s": np.array([32 * 4, 16]), "t": np.array([32, 4, 16])}
TEXT = """g (float[32, 4, 16] x) => (float[32, 4, 16] y) {{
    flat = Reshape(x, s) product = MatMul(flat, w) p = {softmax}(product) y = Reshape(p, t)
}}"""
BY_ROWS, MIXED = (
    TEXT.format(softmax=f"Softmax<axis = {axis}>") for axis in (1, 0)
)  # fmt: skip


def test_rows_on_their_own_are_compared_on_three_of_them() -> None:
    original = model(BY_ROWS, WEIGHTS)
    found = verify_models(original, original)
    assert found.verdict == "yes", found.reason
    assert found.batch == "32 rows as 3: each is computed on its own"
    assert found.batch in found.reason
    assert not found.has_run
    assert found.samples >= 3
    assert {"flat", "product", "p", "y"} == set(found.values.compared)
    assert found.to_json()["batch"] == found.batch


def test_a_wrong_candidate_is_found_on_few_rows() -> None:
    weights = {**WEIGHTS, "w": WEIGHTS["w"] * np.float32(1.001)}
    found = verify_models(model(BY_ROWS, WEIGHTS), model(BY_ROWS, weights))
    assert found.verdict == "no"
    assert "value 'product'" in found.reason


def test_a_candidate_that_mixes_rows_is_compared_on_all_of_them() -> None:
    found = verify_models(model(BY_ROWS, WEIGHTS), model(MIXED, WEIGHTS))
    assert found.verdict == "no"
    assert "all 32 rows: the candidate: Softmax 'p': it mixes the rows" in found.reason


def test_a_model_that_mixes_rows_is_run_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    original = model(MIXED, WEIGHTS)
    found = verify_models(original, original)
    assert (found.verdict, found.samples) == ("yes", 4)
    assert found.batch == "all 32 rows: Softmax 'p': it mixes the rows of the batch"
    monkeypatch.setattr(batch_rows, "_MOST_OPERATIONS", 0)
    found = verify_models(original, original)
    assert (found.verdict, found.samples) == ("yes", 2)
    assert found.batch.startswith("all 32 rows, 2 input sets only: ")
    assert verify_models(original, original, coverage="full").samples > 2


def test_fewer_rows_on_fewer_sets_stand_for_others_where_they_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = model(BY_ROWS, WEIGHTS)
    monkeypatch.setattr(batch_rows, "_MOST_OPERATIONS", 0)
    found = verify_models(original, original)
    assert (found.verdict, found.samples) == ("yes", 1)
    assert found.batch == "32 rows as 2: each is computed on its own"
    with verifier_of(original) as verifier:
        assert isinstance(verifier, BatchVerifier)
        assert verifier._rows is not None
        assert verifier._rows.reference is not None
        (feeds,) = verifier._rows.reference.feeds
        usual, large = np.abs(read_values(feeds)["x"]).max(axis=(1, 2))
    assert usual < 10 < large  # each row is of another set
    text = """g (float[32, 16] x, float[16] t) => (float[32, 16] y) { y = Add(x, t) }"""
    shared = model(text)
    assert verify_models(shared, shared).samples == 2
    assert verify_models(original, original, coverage="full").batch.startswith("32 rows as 3")


def test_a_batch_that_is_too_large_to_be_made_up_is_compared_on_few_rows() -> None:
    text = f"g (float[{2**31}, 1024] x) => (float[{2**31}, 1024] y) {{ y = OP(x) }}"
    original, wrong = (model(text.replace("OP", op)) for op in ("Relu", "Abs"))
    assert verify_models(original, original).verdict == "yes"
    assert verify_models(original, wrong).verdict == "no"


def test_given_inputs_and_open_or_small_batches_are_taken_as_they_are(tmp_path: Path) -> None:
    original = model(BY_ROWS, WEIGHTS)
    assert isinstance(verifier_of(original), BatchVerifier)
    np.savez(tmp_path / "in.npz", x=np.ones((32, 4, 16), np.float32))
    assert isinstance(verifier_of(original, inputs=tmp_path / "in.npz"), Verifier)
    small = {**WEIGHTS, "s": np.array([8, 16]), "t": np.array([2, 4, 16])}
    assert isinstance(verifier_of(model(BY_ROWS.replace("32", "2"), small)), Verifier)
    text = "g (float[batch, 8] x) => (float[batch, 8] y) { y = Relu(x) }"
    assert isinstance(verifier_of(model(text)), Verifier)


def test_kernels_run_with_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    from ortkit.fusion.regions import cost_model

    for name in ("MINIMUM_GAIN", "MINIMUM_SAVED_NS"):
        monkeypatch.setattr(cost_model, name, -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)
    text = """g (float[32, 64] x) => (float[32, 64] y) {
        a = Tanh(x) b = Exp(a) c = Erf(b) y = Mul(c, a)
    }"""
    # The original is run with few rows only.
    monkeypatch.setattr(BatchVerifier, "_verifier", None)
    report = optimize(model(text), OptimizeOptions(level=2)).report
    assert any(region.emitted_as for region in report.regions)
    found = report.verification
    assert found is not None
    assert found.verdict == "yes", found.reason
    assert found.has_run
    assert found.batch.endswith("and kernels with all of them on 1 input set")
    assert found.values.compared


def test_results_of_few_rows_are_repeated_to_all_of_them(tmp_path: Path) -> None:
    original = model(BY_ROWS, WEIGHTS)
    with verifier_of(original) as verifier:
        assert isinstance(verifier, BatchVerifier)
        made = verifier._all_rows(verifier._rows)
        assert isinstance(made, RepeatedVerifier)
        state = made.reference
        assert state is not None
        feeds = read_values(state.feeds[0])
        want = state.expected(state.feeds[0])
        runs = [item["y"] for item in state.runs(state.feeds[0])]
    (got,) = ortkit.Session(original).run(feeds["x"]).values()
    assert np.shape(feeds["x"]) == np.shape(want["y"]) == (32, 4, 16)
    np.testing.assert_allclose(got, want["y"], rtol=1e-5)
    assert runs
    for run in runs:
        np.testing.assert_allclose(run, want["y"], rtol=1e-3)


def test_rows_that_are_not_a_whole_axis_are_not_repeated() -> None:
    text = """g (float[32, 8] x) => (float[256] y) { y = Reshape(x, s) }"""
    original = model(text, {"s": np.array([256])})
    found = cut_batch(original, 3)
    assert not isinstance(found, Cut) or row_axes(original, found) is None


def test_what_a_batch_computes_does_not_depend_on_its_size() -> None:
    """The number of elements that sessions get is the same for each size of the batch."""
    elements = []
    for batch in (16, 256):
        text = BY_ROWS.replace("32", str(batch))
        weights = {**WEIGHTS, "s": np.array([batch * 4, 16]), "t": np.array([batch, 4, 16])}
        original = model(text, weights)
        with verifier_of(original) as verifier:
            assert isinstance(verifier, BatchVerifier)
            assert verifier.check(original).verdict == "yes"
            assert not verifier._whole
            assert verifier._rows is not None
            assert verifier._rows.budget is not None
            opened = verifier._rows._opened
            assert isinstance(opened, ir.Model)
            elements.append(list(opened.graph.inputs[0].shape or ()))
    assert elements[0] == elements[1] == [3, 4, 16]


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("batch", [9, 32, 128, 500])
def test_repeated_rows_have_no_period(batch: int, rows: int) -> None:
    """A tile of rows that is computed twice, in place of the next one, must not go unseen."""
    order = row_order(batch, rows)
    assert {*order.tolist()} == {*range(rows)}
    assert not any(
        np.array_equal(order[:tile], order[tile : 2 * tile]) for tile in range(4, batch // 2 + 1)
    )

"""What perturbed runs allow: as far as they move a value, up to a cap, and near ties."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify.conditioned import Limits, Moved, compare_conditioned
from ortkit.verify.exchange import write_feeds
from ortkit.verify.judging import judge
from ortkit.verify.pair import verify_models
from ortkit.verify.perturbed.perturbation import RUNS, perturb
from ortkit.verify.reference import Reference
from ortkit.verify.sessions import SessionResult
from ortkit.verify.verifier import Verifier
from ortkit.verify.widening import widened

LIMITS = Limits({"float32": 8.0}, 2.0**-6)
EPS = 2.0**-23


def rows() -> np.ndarray:
    return np.linspace(0.5, 1, 32, dtype=np.float32).reshape(4, 8)


def spread(exact: np.ndarray, *runs: np.ndarray) -> list[Moved]:
    return [Moved(exact, runs, LIMITS.cap)]


def test_the_floor_is_at_the_scale_of_the_row() -> None:
    want, got = rows(), rows()
    got[1] += np.float32(4 * EPS)
    assert compare_conditioned("y", want, got, LIMITS).equal
    got[1] += np.float32(6 * EPS)
    found = compare_conditioned("y", want, got, LIMITS)
    assert (found.equal, found.worst_row) == (False, (1,))


def test_a_row_may_be_off_by_what_moves_it_and_no_other_row() -> None:
    want, got, moved = rows(), rows(), rows()
    moved[1] += np.float32(2**-10)
    got[1] += np.float32(2**-11)
    assert not compare_conditioned("y", want, got, LIMITS).equal
    assert compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal
    got[2] += np.float32(2**-11)
    assert not compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal


def test_beyond_the_cap_nothing_is_proved() -> None:
    want, got, moved = rows(), rows(), rows()
    moved[1] *= 2
    got[1] *= np.float32(1.5)
    found = compare_conditioned("y", want, got, LIMITS, spread(want, moved))
    assert found.equal
    assert found.is_inconclusive
    assert "ill-conditioned" in found.reason
    got[1] = want[1] * np.float32(1 + 2**-7)
    assert not compare_conditioned("y", want, got, LIMITS, spread(want, moved)).is_inconclusive
    got[2] *= 2  # a row that nothing moves is wrong all the same
    assert not compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal


def test_elements_that_some_run_chooses_otherwise_are_ties() -> None:
    want, other = np.array([1, 2, 3]), np.array([1, 5, 3])
    found = compare_conditioned("y", want, other, LIMITS, spread(want, want, other))
    assert (found.equal, found.near_ties) == (True, 1)
    assert not compare_conditioned(
        "y", want, np.array([0, 5, 3]), LIMITS, spread(want, want, other)
    ).equal
    assert not compare_conditioned("y", want, other, LIMITS, spread(want, want)).equal


def test_numbers_beyond_a_half_saturate() -> None:
    want = np.array([[1, -3e38, 2, 3, 4, 5, 6, 7]], np.float32)
    got = np.where(want < -1e4, np.float32(-65504), want)
    assert not compare_conditioned("y", want, got, LIMITS).equal
    limits = Limits(LIMITS.floor_eps, LIMITS.cap, 65504.0)
    assert compare_conditioned("y", want, got, limits).equal


@pytest.mark.parametrize("opset", [13, 21, 22, 23])
def test_integral_numbers_are_not_perturbed(opset: int) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    built = model("g (float[8] x) => (float[8] y, float[8] z) { y = Neg(x) z = Neg(y) }")
    built.opset_imports[""] = opset
    perturb(built, lambda _: EPS)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(built).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.array([0, 1, -7, 0.3, 0.7, np.inf, -3.4e38, 1e-3], np.float32)
    runs = np.stack([session.run(["z"], {"x": x})[0] for _ in range(16)])
    same = (runs == x).all(axis=0)
    assert same.tolist() == [True, True, True, False, False, True, True, False]
    off = np.abs(runs[:, [3, 4, 7]] / x[[3, 4, 7]] - 1)
    assert 2 * EPS < off.max() < 10 * EPS
    assert len(np.unique(runs[:, 3])) > (4 if opset < 22 else 1)


@pytest.mark.parametrize("opset", [13, 17, 22])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0, 3), (3, 8), (2, 60_000)])
def test_values_are_perturbed_whatever_their_size(opset: int, shape: tuple[int, ...]) -> None:
    """Those of more elements than the pool has read it more than once."""
    pytest.importorskip("onnxruntime")
    import onnxruntime

    kind = f"float{[*'abc'][: len(shape)]}".replace("'", "") if shape else "float"
    text = f"g ({kind} x) => ({kind} y, {kind} z) {{ y = Neg(x) z = Neg(y) }}"
    x = np.full(shape, 1.1, np.float32)
    runs = []
    for first in (0, RUNS):
        built = model(text)
        built.opset_imports[""] = opset
        perturb(built, lambda _: EPS, first=first)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            ir.to_proto(built).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        runs += [session.run(["y", "z"], {"x": x}) for _ in range(2)]
    assert all(value.shape == shape for run in runs for value in run)
    if x.size < 24:
        return
    # What moves y is not what moves z: that would be the square.
    factors = [(-y / x - 1, -z / y - 1) for y, z in runs]
    assert all(np.abs(each).max() < 5 * EPS for pair in factors for each in pair)
    assert all(abs(np.corrcoef(*map(np.ravel, pair))[0, 1]) < 0.6 for pair in factors)
    assert all((runs[a][0] != runs[b][0]).any() for a in range(4) for b in range(a))


def test_half_precision_is_perturbed_by_its_own_roundings() -> None:
    built = model(
        "g (float16[4] x, float[4] w) => (float[4] y) { c = Cast<to = 1>(x) y = Add(c, w) }"
    )
    units: dict[str, float] = {}

    def note(value: ir.Value) -> float:
        from ortkit.verify.perturbed.runs import _epsilon

        return units.setdefault(value.name or "", _epsilon(value))

    perturb(widened(built), note)
    assert units["x"] == 2.0**-10
    assert units["w"] == units["c"] == EPS


ALIKE = """g (float[64, 256] x) => (float[1, 8] y) {
  p = MatMul(x, w) y = ReduceMean(p, axes)
}"""


@pytest.mark.parametrize("with_weights", [False, True])
def test_errors_that_rows_of_a_product_share_stay_in_their_mean(with_weights: bool) -> None:
    """Errors of values differ from row to row: a mean of 64 loses seven eighths of them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    w = random_weights(256, 8)
    w[:, 0] = np.arange(256) % 3 - 1  # picks and signs, which are exact
    built = model(ALIKE, {"w": w, "axes": np.array([0])})
    perturb(built, lambda value: EPS if value.name != "p" else 0.0, with_weights=with_weights)
    session = onnxruntime.InferenceSession(
        ir.to_proto(built).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    row = random_weights(256, seed=1)
    runs = [session.run(["y"], {"x": np.tile(row, (64, 1))})[0][0] for _ in range(16)]
    sizes = EPS * np.sqrt((np.square(row)[:, None] * np.square(w)).sum(axis=0))
    parts = np.stack(runs).astype(np.float64).std(axis=0) / sizes
    assert parts[0] < 1
    assert parts[1:].mean() > 1.2 if with_weights else parts[1:].mean() < 0.8


CANCELS = """g (float[n, 64] x) => (float[n, 64] y) {
  a = MatMul(x, w) b = MatMul(x, v) d = Sub(a, b) s = Mul(d, large) y = Tanh(s)
}"""


def cancelling(size: float) -> ir.Model:
    """A difference of equal products, so large that roundings decide the result."""
    w = random_weights(64, 64)
    v = np.nextafter(w, np.float32(np.inf))
    return model(CANCELS, {"w": w, "v": v, "large": np.array(size, np.float32)})


def test_an_ill_conditioned_output_is_named_and_not_passed() -> None:
    original = cancelling(1e7)
    other = cancelling(1e7)
    swapped = other.graph.initializers
    # The same difference, of sums in another order.
    w, v = swapped["w"].const_value, swapped["v"].const_value
    assert w is not None
    assert v is not None
    order = np.random.default_rng(1).permutation(64)
    permuted = CANCELS.replace("a = MatMul(x, w) b = MatMul(x, v)",
        "p = Gather<axis = 1>(x, order) a = MatMul(p, w) b = MatMul(p, v)")  # fmt: skip
    weights = {
        "w": w.numpy()[order], "v": v.numpy()[order], "order": order,
        "large": np.array(1e7, np.float32),
    }  # fmt: skip
    found = verify_models(original, model(permuted, weights))
    assert found.verdict == "partly", found.reason
    assert any("ill-conditioned" in gap.reason for gap in found.not_compared)
    assert found.fix == ""


def test_a_quantized_original_is_judged_by_its_own_steps(tmp_path: Path) -> None:
    text = """g (float[4, 16] x) => (float[4, 16] y) {
      v = Mul(x, k) q = QuantizeLinear(v, s, z) d = DequantizeLinear(q, s, z) p = Softmax(d)
      r = QuantizeLinear(p, t, o) y = DequantizeLinear(r, t, o)
    }"""

    def quantized(factor: float) -> ir.Model:
        weights = {
            "k": np.array(factor, np.float32), "s": np.array(0.03, np.float32),
            "z": np.array(128, np.uint8), "t": np.array(0.008, np.float32),
            "o": np.array(0, np.uint8),
        }  # fmt: skip
        return model(text, weights)

    with Verifier(quantized(1.0)) as verifier:
        assert verifier.check(quantized(1 + 2 * EPS)).verdict == "yes"
        for factor in (1.01, 1.5):
            assert verifier.check(quantized(factor)).verdict == "no"


def test_a_row_may_be_off_by_twice_its_spread() -> None:
    want, moved = rows(), rows()
    moved[1] += np.float32(2**-10)
    for times, is_right in ((1.9, True), (2.2, False)):
        got = rows()
        got[1] += np.float32(times * 2**-10)
        assert compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal == is_right


def test_numbers_far_larger_than_their_row_are_moved_as_they_are_judged() -> None:
    """Such a number is judged by its own size, and so is how far the runs move it."""
    want = np.full((2, 32), 1e-9, np.float32)
    want[0, :4] = 100.0
    moved, got = want.copy(), want.copy()
    moved[0, 0] *= np.float32(1 + 100 * EPS)
    got[0, 0] *= np.float32(1 + 90 * EPS)
    assert not compare_conditioned("y", want, got, LIMITS).equal
    assert compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal
    got[0, 0] *= np.float32(1 + 200 * EPS)
    assert not compare_conditioned("y", want, got, LIMITS, spread(want, moved)).equal


@pytest.mark.parametrize(
    ("off", "verdict", "counts"),
    [(100.0, True, []), (1200.0, True, [8]), (3e3, True, [8, 32]), (6e3, False, [8, 32]),
     (2e4, False, [8])],
)  # fmt: skip
def test_an_output_that_is_little_off_is_judged_by_more_runs(
    off: float, verdict: bool, counts: list[int], tmp_path: Path
) -> None:
    """Twice what 8 runs move it are 2,000 epsilons, of 32 runs 4,000."""
    want = np.ones((4, 8), np.float32)
    made: list[int] = []

    def runs(_feeds: Path, _unit: float, count: int) -> list[dict[str, np.ndarray]]:
        made.append(count)
        return [{"y": want + np.float32((1000 if count == RUNS else 2000) * EPS)}]

    for name in ("plain", "optimized"):
        write_feeds(tmp_path / name / "set", {"y": want + np.float32(off * EPS)})
    write_feeds(tmp_path / "own" / "set", {"y": want})
    session = SessionResult(outputs=("y",), is_loaded=True, done=["set"])
    reference = SimpleNamespace(
        sessions=[session, session], own_problem="", feeds=[tmp_path / "set"], outputs=("y",),
        inputs=(), excluded=(), coarsest="float32", expected=lambda _: {"y": want}, runs=runs,
        optimized=tmp_path / "own", perturbed=SimpleNamespace(is_late=False), tolerance=None,
    )  # fmt: skip
    found = judge(cast("Reference", reference), tmp_path, [session, session])
    assert (found.reason == "") is verdict, found.reason
    assert made[: len(counts)] == counts
    assert set(made) == set(counts)

"""What `optimize` does with given times: kernels that do not pay go, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from timed_model import Fused

from ortkit.errors import UserError
from ortkit.measure import measurer, whole
from ortkit.measure.regions import RegionJob
from ortkit.measure.result import RegionTiming
from ortkit.optimization.call import Optimized, OptimizeOptions, optimize
from ortkit.optimization.candidate import Candidate
from ortkit.runtime.timing.variants import NotTimed

Whole = Mapping[str, float]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(whole, "_SECONDS", 0.05)
    monkeypatch.setattr(whole, "_PROFILE_SECONDS", 0.05)


def measured(
    fused: Fused, monkeypatch: pytest.MonkeyPatch, useless: str, taken: Whole, **options: bool
) -> Optimized:
    """Optimize with made-up times: `useless` kernels do not pay, whole models take `taken`."""

    def regions(job: RegionJob) -> tuple[RegionTiming, ...]:
        found = []
        for node in job.model.graph:
            if node.domain == "ortkit.fused":
                kept = not (useless and useless in node.op_type)
                name = node.name or ""
                times = (2.0, 1.0 if kept else 2.0, 2.0 if kept else 1.0, 0.01)
                found.append(RegionTiming(node.op_type, (name,), (), *times, kept, False, ""))
        return tuple(found)

    def whole_models(variants: Mapping[str, object], *given: object, **named: object) -> object:
        return {name: [taken[name]] * 4 for name in variants}

    monkeypatch.setattr(measurer, "time_regions", regions)
    monkeypatch.setattr(measurer, "time_whole", whole_models)
    return optimize(fused.original, OptimizeOptions(measure=True, **options))


def emitted(optimized: Optimized) -> list[str]:
    return [region.emitted_as for region in optimized.report.regions if region.emitted_as]


def test_kernels_that_do_not_pay_are_dropped(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = emitted(fused.optimized)
    useless = next(op for op in before if "gelu" in op)
    taken = {"before": 9.0, "after": 6.0, "plain": 7.0}
    made = measured(fused, monkeypatch, useless, taken)
    assert emitted(made) == [op for op in before if op != useless]
    assert made.library is not None
    assert made.report.verification is not None
    assert made.report.verification.verdict == "yes"
    found = made.report.measurement
    assert found is not None
    assert len(found.dropped) == before.count(useless)
    assert all(identity.startswith("fuse-regions:") for identity in found.dropped)
    assert found.model is not None
    assert (found.model.before_ms, found.model.after_ms) == (9.0, 6.0)
    assert (found.model.ratio, found.model.verdict) == (1.5, "faster")
    assert found.model.kernels_ratio == pytest.approx(7 / 6)
    assert found.notes == ()


def test_no_kernel_that_pays_leaves_no_library(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measured(fused, monkeypatch, "_", {"before": 9.0, "after": 9.0})
    assert emitted(made) == []
    assert made.library is None
    assert made.report.measurement is not None
    assert made.report.measurement.model is not None
    assert made.report.measurement.model.verdict == "no difference"
    assert made.report.measurement.model.kernels_ratio is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "taken",
    [
        {"before": 9.0, "after": 9.5, "plain": 8.0},
        {"before": 9.0, "after": 8.5, "plain": 8.0},
    ],
)
def test_kernels_that_slow_the_whole_model_down_all_go(
    verify: bool, taken: Whole, fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measured(fused, monkeypatch, "", taken, verify=verify)
    assert made.report.regions == ()
    assert made.report.kernel_note == "with them the model is slower, as measured"
    assert made.library is None
    assert (made.report.verification is None) == (not verify)
    found = made.report.measurement
    assert found is not None and found.model is not None
    assert found.model.after_ms == 8.0
    assert found.model.verdict == "faster"
    assert not any(region.kept for region in found.regions)
    assert [note.partition(":")[0] for note in found.notes] == ["kernels are dropped"]


def test_a_rewrite_that_slows_the_model_down_is_said(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measured(fused, monkeypatch, "_", {"before": 9.0, "after": 11.0})
    found = made.report.measurement
    assert found is not None and found.model is not None
    assert found.model.verdict == "slower"
    assert found.notes == ("the rewritten model is slower than it came, beyond the noise",)


def test_the_ceiling_is_the_original_s(fused: Fused, monkeypatch: pytest.MonkeyPatch) -> None:
    made = measured(fused, monkeypatch, "", {"before": 9.0, "after": 6.0, "plain": 7.0})
    found = made.report.measurement
    assert found is not None and found.ceiling is not None
    assert found.ceiling.heavy_ops == ("Gemm",)  # MatMul and Add, as ONNX Runtime runs them
    assert found.ceiling.milliseconds == pytest.approx(9.0 * found.ceiling.heavy_share)
    assert found.ceiling.speedup == pytest.approx(1 / found.ceiling.heavy_share)
    assert found.gap_closed == pytest.approx(0.5 / (found.ceiling.speedup - 1))
    assert set(found.inputs) == {"x", "w"}
    json.dumps(found.to_json(), allow_nan=False)


def test_what_is_not_undone_alone_is_judged_with_the_model(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Candidate, "placed", lambda candidate: [])
    taken = {"before": 9.0, "after": 6.0, "plain": 7.0}
    made = measured(fused, monkeypatch, "_", taken, verify=False)
    assert emitted(made) == emitted(fused.optimized)
    assert made.report.measurement is not None
    assert all(region.kept for region in made.report.measurement.regions)
    assert made.report.measurement.dropped == ()


def test_what_goes_only_together_goes_first(fused: Fused, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the regions of one kind had been put back by one rewrite, and slowed the model."""
    found = Candidate.placed
    monkeypatch.setattr(
        Candidate, "placed", lambda self: [one for one in found(self) if "gelu" in one.op]
    )
    rounds = iter([{"before": 9.0, "after": 9.5, "plain": 8.0}])
    taken = {"before": 9.0, "after": 6.0, "plain": 8.0}

    def whole_models(variants: Mapping[str, object], *given: object, **named: object) -> object:
        now = next(rounds, taken)
        return {name: [now[name]] * 4 for name in variants}

    measured(fused, monkeypatch, "", taken, verify=False)
    monkeypatch.setattr(measurer, "time_whole", whole_models)
    made = optimize(fused.original, OptimizeOptions(measure=True))
    before = emitted(fused.optimized)
    assert emitted(made) == [op for op in before if "gelu" in op] != before
    assert made.library is not None
    measurement = made.report.measurement
    assert measurement is not None and measurement.model is not None
    assert measurement.model.after_ms == 6.0
    assert {region.kept for region in measurement.regions if "gelu" in region.op} == {True}
    assert {item.kept for item in measurement.regions if "gelu" not in item.op} == {False}
    assert [note.partition(" are dropped")[0] for note in measurement.notes] == [
        "kernels that go only together"
    ]


def test_models_for_a_gpu_are_not_timed() -> None:
    with pytest.raises(UserError, match="measure: models for cuda are not timed"):
        OptimizeOptions(measure=True, target="cuda")


def test_what_cannot_be_timed_keeps_its_kernels(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurer, "time_regions", lambda job: NotTimed("a run did not end"))
    monkeypatch.setattr(measurer, "time_whole", lambda *given, **named: NotTimed("it crashed"))
    made = optimize(fused.original, OptimizeOptions(measure=True, verify=False))
    assert emitted(made) == emitted(fused.optimized)
    assert made.report.measurement is not None
    assert made.report.measurement.notes == (
        "regions are not timed: a run did not end",
        "the model is not timed: it crashed",
    )


def test_a_model_that_does_not_run_is_said(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "some.where" : 1]>
        g (float[n, 4] x) => (float[n, 4] y) { y = some.where.Foo(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    made = optimize(tmp_path / "m.onnx", OptimizeOptions(measure=True, verify=False))
    found = made.report.measurement
    assert found is not None
    assert (found.model, found.ceiling, found.regions) == (None, None, ())
    assert found.notes[0].startswith("not timed: ")
    assert "Foo" in found.notes[0]

"""Fused nodes as models of their own: at the sizes of the model, timed once, crashes survived."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fake_regions
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from timed_model import Fused

from ortkit.errors import UserError
from ortkit.measure import regions
from ortkit.measure.fused import FusedCase, case_model, fused_cases, made_up
from ortkit.measure.regions import RegionJob, time_regions
from ortkit.runtime.timing.variants import NotTimed


@pytest.fixture
def job(fused: Fused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegionJob:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(regions, "ROUNDS", 2)
    return RegionJob(
        fused.optimized.model, fused.saved, fused.library, "native", fused.feeds, 1, tmp_path, 60
    )


def test_every_fused_node_is_timed_at_its_sizes_and_only_once(
    fused: Fused, job: RegionJob
) -> None:
    placed = [region.emitted_as for region in fused.optimized.report.regions if region.emitted_as]
    assert len(placed) >= 2
    found = time_regions(job)
    assert not isinstance(found, NotTimed), found
    assert sorted(item.op for item in found for _ in item.nodes) == sorted(placed)
    for one in found:
        assert one.problem == ""
        assert one.body_us is not None and one.kernel_us is not None
        assert one.ratio == pytest.approx(one.body_us / one.kernel_us)
        assert one.kept == (one.ratio > 1 + one.noise)
        assert "float[256, 512]" in one.inputs
        assert not one.from_cache
    again = time_regions(job)
    assert not isinstance(again, NotTimed)
    for one, known in zip(found, again, strict=True):
        assert one.noise is not None
        if one.noise <= regions.MOST_NOISE:
            assert known == replace(one, from_cache=True)
    # Other threads, other times.
    other = time_regions(replace(job, threads=2))
    assert not isinstance(other, NotTimed)
    assert not any(one.from_cache for one in other)


def test_the_small_model_computes_what_the_node_does(fused: Fused, tmp_path: Path) -> None:
    model = fused.optimized.model
    for domain, name, _ in model.functions:
        assert domain == "ortkit.fused"
        inputs = (("float", (32, 512)),) + (("float", (512,)),) * (
            len(model.functions[domain, name, ""].inputs) - 1
        )
        case = FusedCase(name, ("a",), inputs, tuple(shape == (512,) for _, shape in inputs))
        made = case_model(model, case)
        assert len(made.graph.node) > 1
        feeds = {
            item.name: made_up(np.dtype(np.float32), (32, 512), 3) for item in made.graph.input
        }
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(fused.library))
        results = [
            ort.InferenceSession(made.SerializeToString(), given).run(None, feeds)
            for given in (None, options)
        ]
        for plain, kernel in zip(*results, strict=True):
            np.testing.assert_allclose(plain, kernel, rtol=1e-5, atol=1e-6)


def test_a_library_that_does_not_load_is_a_reason(job: RegionJob, tmp_path: Path) -> None:
    (tmp_path / "no.so").write_bytes(b"no library")
    found = time_regions(replace(job, library=tmp_path / "no.so"))
    assert isinstance(found, NotTimed)
    assert "no.so" in found.reason


def test_a_crash_costs_the_region_that_it_was_at(
    job: RegionJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first region is timed, the second crashes; nothing was timed after it."""
    monkeypatch.setattr(regions, "time_cases", fake_regions.crash)
    found = time_regions(job)
    assert not isinstance(found, NotTimed)
    problems = [item.problem for item in found]
    assert problems[0] == ""
    assert problems[1] == "the process crashed with signal 11 (Segmentation fault)"
    assert all(one.kept for one in found)
    assert found[0].ratio == pytest.approx(2)


def test_noisy_times_are_taken_again_and_not_kept(
    job: RegionJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "time_cases", fake_regions.noisy)
    monkeypatch.setenv(fake_regions.TRIES, str(tmp_path / "tries"))
    found = time_regions(job)
    assert not isinstance(found, NotTimed)
    first, *others = found
    assert (first.noise, first.kept) == (0.01, True)
    assert others
    assert all(other.noise == pytest.approx(2 / 1.2 - 1) and not other.kept for other in others)
    tries = (tmp_path / "tries").read_text()
    assert tries == f"{len(found)}{len(found)}{len(others)}"
    again = time_regions(job)
    assert not isinstance(again, NotTimed)
    assert [item.from_cache for item in again] == [True] + [False] * len(others)


def test_sizes_come_from_the_profile(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "ortkit.fused" : 1]>
        g (float[n, 4] x) => (float[n, 4] y)
        <float[4] b = {1, 2, 3, 4}>
        { a = ortkit.fused.add_12 (x, b)  c = ortkit.fused.add_12 (a, b)  y = Neg(c) }
        <domain: "ortkit.fused", opset_import: ["" : 20]> add_12 (p, q) => (r) { r = Add(p, q) }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    events = [
        event(f"n{number}", "add_12" if number < 2 else "Neg", rows)
        for rows in (3, 3, 5)
        for number in range(3)
    ]
    events.append(event("other", "SequenceEmpty", 1) | {"args": {"op_name": "SequenceEmpty"}})
    path = tmp_path / "profile.json"
    path.write_text(json.dumps([*events, {"cat": "Session", "name": "model_run", "dur": 1}]))
    found = fused_cases(model, path)
    assert [case.described for case in found] == [
        ("float[3, 4]", "float[4]"),
        ("float[5, 4]", "float[4]"),
    ]
    assert {case.nodes for case in found} == {("n0", "n1")}
    assert {case.constant for case in found} == {(False, True)}
    path.write_text("[1")
    with pytest.raises(UserError, match="is no profile"):
        fused_cases(model, path)


def event(name: str, op: str, rows: int) -> dict[str, object]:
    shapes = [{"float": [rows, 4]}, {"float": [4]}][: 1 if op == "Neg" else 2]
    return {
        "cat": "Node", "name": f"{name}_kernel_time", "dur": 1, "ts": 1,
        "args": {"op_name": op, "input_type_shape": shapes},
    }  # fmt: skip

"""What options change: which are tried, and what is called a gain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ortkit.errors import RunError
from ortkit.runtime.memory import arena_options
from ortkit.runtime.memory.arena_options import (
    DEFAULT,
    TWO,
    ArenaOptions,
    OptionEffect,
    Range,
    measure_options,
)
from ortkit.runtime.memory.point import PointPlan
from ortkit.runtime.tensor_files import of_plain, write_manifest


def effect(name: str, resident: Range | None, run_ms: Range | None) -> OptionEffect:
    return OptionEffect(name, f"how {name}", None, resident, run_ms, None, "")


def at(median: float, spread: float = 0.0) -> Range:
    return Range(median, median - spread, median + spread)


def test_a_gain_beyond_the_noise_is_advice_with_its_price() -> None:
    effects = (
        effect(DEFAULT, at(100, 1), at(10, 0.1)),
        effect("lean", at(60, 1), at(12, 0.1)),
        effect("leaner, and as fast", at(80, 1), at(10.05, 0.1)),
    )
    assert arena_options._advice(effects) == (
        "lean (how lean): 40% less resident memory, 20% more time of a run",
    )


@pytest.mark.parametrize(
    "other", [at(70, 40), at(99, 0.1), at(140, 1)], ids=["noisy", "small", "worse"]
)
def test_what_is_within_the_noise_or_small_or_worse_is_none(other: Range) -> None:
    effects = (effect(DEFAULT, at(100, 0.1), at(10)), effect("x", other, at(10)))
    assert arena_options._advice(effects) == ()


def test_ranges_that_overlap_are_no_gain() -> None:
    before, after = Range(100, 92, 100), Range(90, 90, 98)
    effects = (effect(DEFAULT, before, at(10)), effect("x", after, at(10)))
    assert arena_options._advice(effects) == ()


def test_two_sessions_are_compared_with_two() -> None:
    effects = (
        effect(DEFAULT, at(100), at(10)),
        effect(TWO, at(200), at(10)),
        effect(f"{TWO}, one arena", at(150), at(10)),
    )
    (line,) = arena_options._advice(effects)
    assert line.startswith("two sessions, one arena (how two sessions, one arena): 25% less")


def test_what_does_not_run_gains_nothing() -> None:
    failed = OptionEffect("limit", "how", None, None, None, None, "out of memory")
    assert arena_options._advice((effect(DEFAULT, at(100), at(10)), failed)) == ()


def plan_of(tmp_path: Path) -> PointPlan:
    """A product with a weight of 4 MiB."""
    weight = np.random.default_rng(0).random((1024, 1024), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 1024])],
        [helper.make_tensor_value_info("y", 1, ["n", 1024])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    x = np.ones((300, 1024), np.float32)
    (tmp_path / "f").mkdir()
    write_manifest(tmp_path / "f", [of_plain("x", 0, x, tmp_path / "f")])
    (tmp_path / "scratch").mkdir()
    return PointPlan(tmp_path / "m.onnx", tmp_path / "f", {"target": "cpu"}, seconds=0.0)


def test_options_are_measured_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, all_of_them = plan_of(tmp_path), arena_options._variants
    wanted = {DEFAULT, "no arena", "limit"}
    monkeypatch.setattr(
        arena_options,
        "_variants",
        lambda *given: (one for one in all_of_them(*given) if one.name in wanted),
    )
    found = measure_options(plan, tmp_path / "scratch", rounds=1)
    default, plain, limited = found.effects
    assert [item.problem for item in found.effects] == ["", "", ""]
    assert plain.held is None
    assert default.held is not None and limited.held is not None
    assert limited.held < default.held
    assert default.resident is not None and default.resident.median > 4 << 20
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.slow
def test_every_option_is_measured(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = measure_options(plan, tmp_path / "scratch", rounds=1)
    assert isinstance(found, ArenaOptions)
    by_name = {item.name: item for item in found.effects}
    assert list(by_name) == [
        DEFAULT, "no arena", "as requested", "first chunk", "limit", "shrink", "no pattern",
        "no prepacking", "mapped weights", TWO, f"{TWO}, one arena",
    ]  # fmt: skip
    assert [one.problem for one in found.effects] == [""] * len(by_name)
    held = {name: one.held for name, one in by_name.items()}
    assert held["no arena"] is None
    default, shared = held[DEFAULT], held[f"{TWO}, one arena"]
    assert default is not None and shared is not None
    assert held[TWO] == 2 * default
    assert shared < 2 * default
    assert held["as requested"] is not None and held["as requested"] <= default


def test_a_model_that_does_not_run_is_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    write_manifest(tmp_path, [])
    with pytest.raises(RunError, match=r"m\.onnx"):
        measure_options(PointPlan(tmp_path / "m.onnx", tmp_path), tmp_path)

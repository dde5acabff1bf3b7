"""Other ways to run a model: which there are, and what is said of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tuned_regions import WIDTH

from ortkit.optimization.call import Optimized, optimize
from ortkit.optimization.options import OptimizeOptions
from ortkit.runtime.settings import SessionSettings
from ortkit.tune import alternatives
from ortkit.tune.alternatives import Alternatives, Way, ways_of

OPTIONS = OptimizeOptions(verify=False)


@pytest.fixture
def base(model: Path) -> Optimized:
    return optimize(model, OPTIONS)


@pytest.fixture
def tried(
    model: Path, base: Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Alternatives:
    monkeypatch.setattr(alternatives, "_SECONDS", 0.6)
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, x=np.ones((2, WIDTH), np.float32), w=np.ones((WIDTH, 8), np.float32))
    return Alternatives(
        model, base, OPTIONS, SessionSettings(), feeds, tmp_path, run_seconds=1e-4, expected=0.0
    )


def chosen(*_: object) -> str:
    return "vector=8"


def test_ways_are_those_that_the_model_has(base: Optimized) -> None:
    ways = [way.what for way in ways_of(base, OPTIONS, SessionSettings(), chosen, 2)]
    assert ways[:3] == ["tuned kernels", "threads=1", "--kernels off: no generated kernels"]
    assert not any("attention" in item or "convolutions" in item for item in ways)
    single = ways_of(base, OPTIONS, SessionSettings(threads=2), chosen, 2)
    assert "threads=1" not in [way.what for way in single]


def test_thread_counts_are_fractions_of_the_cores(base: Optimized) -> None:
    ways = ways_of(base, OPTIONS, SessionSettings(), chosen, 8)
    assert [way.what for way in ways if "threads" in way.what] == ["threads=1", "threads=4"]


def test_the_model_is_tried_without_what_takes_most_of_its_time(base: Optimized) -> None:
    (made,) = [region for region in base.report.regions if region.emitted_as]
    others = [dataclasses.replace(made, emitted_as=f"op{n}", at=f"v{n}") for n in range(4)]
    again = dataclasses.replace(others[1], at="v9")
    report = dataclasses.replace(base.report, regions=(*others, again))
    shares = {"op0": 0.1, "op1": 0.4, "op2": 0.2, "op3": 0.15, "gone": 0.9}
    model = dataclasses.replace(base, report=report)
    ways = list(ways_of(model, OPTIONS, SessionSettings(), chosen, 1, shares))
    denied = [way.options.denied for way in ways if way.options and "--deny" in way.what]
    ids = [f"fuse-regions:{made.kind}:{at}" for at in ("v1", "v9", "v2", "v3")]
    assert denied == [frozenset(ids[:2]), frozenset(ids[2:3]), frozenset(ids[3:])]


def test_a_region_that_is_cut_is_gone(model: Path, base: Optimized) -> None:
    """By the id that the way has for it."""
    (made,) = [region for region in base.report.regions if region.emitted_as]
    assert made.emitted_as is not None
    twice = (made, dataclasses.replace(made, emitted_as="other", at="elsewhere"))
    report = dataclasses.replace(base.report, regions=twice)
    shares = {made.emitted_as: 0.5, "other": 0.1}
    two = dataclasses.replace(base, report=report)
    ways = ways_of(two, OPTIONS, SessionSettings(), chosen, 1, shares)
    way = next(item for item in ways if made.emitted_as in item.what)
    assert way.options is not None
    found = optimize(model, way.options).report.regions
    assert made.at not in [one.at for one in found if one.emitted_as]


def test_on_cuda_there_are_no_threads_to_choose(base: Optimized) -> None:
    options = dataclasses.replace(OPTIONS, target="cuda")
    ways = [way.what for way in ways_of(base, options, SessionSettings(), chosen, 8)]
    assert not any("threads" in item or "memory" in item or "nhwc" in item for item in ways)


def test_attention_and_layout_are_ways_where_there_are_some(base: Optimized) -> None:
    hit = base.report.hits[0] if base.report.hits else None
    assert hit is not None
    hits = tuple(dataclasses.replace(hit, pass_name=name, id=name)
                 for name in ("fuse-attention", "fuse-convolutions"))  # fmt: skip
    other = dataclasses.replace(base, report=dataclasses.replace(base.report, hits=hits))
    found = {way.what: way for way in ways_of(other, OPTIONS, SessionSettings(), chosen, 1)}
    attention = next(way for what, way in found.items() if "attention" in what)
    layout = next(way for what, way in found.items() if "convolutions" in what)
    assert attention.options is not None and attention.options.passes == "-fuse-attention"
    assert layout.options is not None and layout.options.denied == {"fuse-convolutions"}


def test_a_way_is_timed_beside_the_default(tried: Alternatives) -> None:
    way = Way("tuned kernels", dataclasses.replace(OPTIONS, chooser=chosen))
    (found,) = tried.try_all([way], lambda: 100.0, lambda _: None)
    assert found.problem == ""
    assert found.ratio is not None and found.ratio > 0
    assert found.direction in ("faster", "slower", "no difference")


def test_the_same_model_is_not_timed(tried: Alternatives) -> None:
    (found,) = tried.try_all([Way("again", OPTIONS)], lambda: 100.0, lambda _: None)
    assert (found.ratio, found.problem) == (None, "it makes the same model")


def test_without_time_nothing_is_tried(tried: Alternatives) -> None:
    (found,) = tried.try_all([Way("x", OPTIONS)], lambda: 0.01, lambda _: None)
    assert found.problem == "no time was left"


def test_a_session_that_fails_is_said(tried: Alternatives) -> None:
    wrong = SessionSettings(config={"session.intra_op_thread_affinities": "nonsense"})
    (found,) = tried.try_all([Way("x", settings=wrong)], lambda: 100.0, lambda _: None)
    assert found.ratio is None
    assert found.problem

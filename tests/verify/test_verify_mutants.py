"""The share of planted faults that verification catches, by class, has a floor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from mutants import interpreted
from mutants.floors import FLOORS, missing
from mutants.inputs import input_sets
from mutants.kinds import plant_all
from mutants.lowered import KINDS as LOWERING_KINDS
from mutants.observe import ROUNDING, Observer
from mutants.runner import (
    KINDS,
    Outcome,
    measure,
    measure_kernels,
    measure_lowering,
    shares,
    table,
)
from mutants.subjects import ARCHITECTURES, TYPES, Subject, candidates, original

Measure: TypeAlias = Callable[[Subject, int], Iterator[Outcome]]

#: What is run each time: how, the original, and how many faults of each form of a candidate.
SAMPLE: dict[str, list[tuple[Measure, Subject, int]]] = {
    "float32": [
        (measure, Subject("mixed", weights="trained"), 2),
        (measure, Subject("convs", weights="trained"), 2),
    ],
    "float16": [
        (measure, Subject("mixed", "float16", "trained"), 3),
    ],
    "bfloat16": [
        (measure, Subject("mixed", "bfloat16", "trained"), 3),
    ],
    "quantized": [
        (measure, Subject("mixed", "quantized"), 2),
        (measure, Subject("convs", "quantized", "trained"), 1),
    ],
    "kernels": [(measure_kernels, Subject("mixed"), 5)],
    "lowering": [(measure_lowering, Subject("mixed", weights="trained"), 2)],
}


def check(outcomes: list[Outcome], record: Callable[[str, object], None]) -> None:
    """Put the table into the summary of the run, and compare each row with its floor."""
    record("table", table(outcomes))
    assert missing(shares(outcomes)) == []


@pytest.mark.parametrize("group", SAMPLE)
def test_a_sample(group: str, record_property: Callable[[str, object], None]) -> None:
    found = [each for how, subject, count in SAMPLE[group] for each in how(subject, count)]
    assert len(found) >= 5
    check(found, record_property)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[interpreted.Interpreter]:
    pytest.importorskip("triton")
    sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "triton"))
    from interpreter import Interpreter

    with closing(Interpreter()) as found:
        yield found


@pytest.mark.parametrize(
    ("group", "count"), [("triton, unconditional", 1), ("triton, conditional", 1)]
)
def test_kernels_for_gpus(
    group: str,
    count: int,
    interpreter: interpreted.Interpreter,
    record_property: Callable[[str, object], None],
) -> None:
    found = [each for region in interpreted.regions()
             for each in interpreted.measure(interpreter, region, group, count)]  # fmt: skip
    assert sum(each.is_observable for each in found) >= 2.5 * count
    check(found, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("group", interpreted.KINDS)
def test_all_kinds_in_kernels_for_gpus(
    group: str,
    interpreter: interpreted.Interpreter,
    record_property: Callable[[str, object], None],
) -> None:
    found = [each for region in interpreted.regions()
             for each in interpreted.measure(interpreter, region, group, 99)]  # fmt: skip
    check(found, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("type_", TYPES)
def test_all_kinds_in_rewrites(type_: str, record_property: Callable[[str, object], None]) -> None:
    found = [
        outcome
        for architecture in ARCHITECTURES
        for weights in ("random", "trained")
        for outcome in measure(Subject(architecture, type_, weights), 12, seed=1)
    ]
    check(found, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("how", [measure_kernels, measure_lowering])
def test_all_kinds_in_kernels_and_lowering(
    how: Measure, record_property: Callable[[str, object], None]
) -> None:
    subjects = [Subject(name, weights=weights) for name in ("mixed", "bert", "llama", "convs")
                for weights in ("random", "trained")]  # fmt: skip
    found = [outcome for subject in subjects for outcome in how(subject, 16)]
    check(found, record_property)


def test_there_are_many_kinds_with_names_of_their_own() -> None:
    for kinds in (KINDS, LOWERING_KINDS):
        assert len({kind.name for kind in kinds}) == len(kinds)
    assert sum(kind.kind == "unconditional" for kind in KINDS) >= 80
    assert sum(kind.kind == "conditional" for kind in KINDS) >= 25


def test_the_same_seed_plants_the_same_faults() -> None:
    model = candidates(Subject("mixed"))["rewritten"]
    first, second = (plant_all(model, np.random.default_rng(3), KINDS) for _ in range(2))
    assert [(each.name, each.model.SerializeToString()) for each in first] == [
        (each.name, each.model.SerializeToString()) for each in second
    ]
    assert len(first) > 60


def test_a_copy_moves_nothing_and_a_fault_does() -> None:
    model = original(Subject("mixed"))
    observer = Observer(model, model, [each.arrays for each in input_sets(model)])
    assert observer.moved(model) == 0.0
    kinds = [kind for kind in KINDS if kind.name == "one in a thousand too large"]
    (fault,) = plant_all(model, np.random.default_rng(0), kinds)
    moved = observer.moved(fault.model)
    assert moved is not None
    assert ROUNDING < moved < 0.01


def test_floors_are_no_higher_than_what_is_asked_for() -> None:
    assert all(0 <= held <= goal <= 99 for held, goal in FLOORS.values())

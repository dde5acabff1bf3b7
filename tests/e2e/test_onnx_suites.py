"""The test cases that the onnx wheel brings: same results after optimization, and no crash.

ONNX Runtime 1.31.1 runs 1,574 of the 1,884 node cases; the others use operators, versions or
types that it lacks. They are optimized all the same, as every valid model must be accepted, and
run in onnx's own evaluator, which takes all but 13 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ortkit import OptimizeOptions, optimize
from tests.e2e.judge import Tally
from tests.e2e.suites import (
    Case,
    light_cases,
    node_cases,
    stored_cases,
    with_constants,
    with_symbols,
)

pytest.importorskip("onnxruntime")
#: Of so many cases one is judged where the whole is not asked for.
STRIDE = 32
PARTS = 4
# onnx's own evaluator divides by zero where the case wants it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="session")
def nodes() -> list[Case]:
    return node_cases()


def all_constant(case: Case) -> Case | None:
    return with_constants(case, len(_tensors(case)))


def first_free(case: Case) -> Case | None:
    return with_constants(case, len(_tensors(case)) - 1)


def as_it_is(case: Case) -> Case | None:
    return case


def _tensors(case: Case) -> list[np.ndarray]:
    return [value for value in case.inputs if isinstance(value, np.ndarray)]


CHANGES = (as_it_is, all_constant, first_free, with_symbols)


def judge(
    cases: Sequence[Case], folder: Path, change: Callable[[Case], Case | None] = as_it_is
) -> Tally:
    tally = Tally(folder)
    for changed in filter(None, map(change, cases)):
        tally.judge(changed)
    print(dict(tally.counts))  # noqa: T201  what was covered, in the output of a failure
    assert not tally.faults, "\n".join(tally.faults)
    return tally


@pytest.mark.parametrize("change", CHANGES)
def test_some_node_cases(
    nodes: list[Case], change: Callable[[Case], Case | None], tmp_path: Path
) -> None:
    first = CHANGES.index(change) * STRIDE // len(CHANGES)  # others for each change
    counts = judge(nodes[first::STRIDE], tmp_path, change).counts
    assert counts["run"] > 0.7 * counts["cases"]
    assert counts["exact"] > counts["close"]
    assert counts["rewrites"] > 12


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("change", CHANGES)
def test_every_node_case(
    nodes: list[Case], change: Callable[[Case], Case | None], part: int, tmp_path: Path
) -> None:
    assert len(nodes) >= 1884
    counts = judge(nodes[part::PARTS], tmp_path, change).counts
    assert counts["run"] > 0.7 * counts["cases"]


# Why not all run: operators of opset 6 and of training that ONNX Runtime lacks, and locales.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "count", "runs"),
    [("simple", 23, 17), ("pytorch-converted", 82, 59), ("pytorch-operator", 35, 24)],
)
def test_stored_cases(kind: str, count: int, runs: int, tmp_path: Path) -> None:
    counts = judge(stored_cases(kind), tmp_path).counts
    assert counts["cases"] == count
    assert counts["run"] >= runs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("index", range(9))
def test_image_networks(index: int, tmp_path: Path) -> None:
    cases = light_cases()
    assert len(cases) == 9
    assert judge(cases[index : index + 1], tmp_path).counts["run"] == 1


@pytest.mark.parametrize(
    "name", ["test_gelu_default_2_expanded", "test_layer_normalization_4d_axis1_expanded_ver18"]
)
def test_cases_with_kernels_and_verification(nodes: list[Case], name: str) -> None:
    case = next(case for case in nodes if case.name == name)
    report = optimize(case.model, OptimizeOptions(level=3)).report
    assert report.verification is not None
    assert report.verification.verdict == "yes", report.verification
    assert report.kernel_note == ""

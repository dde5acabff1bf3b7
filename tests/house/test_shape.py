"""The shape of the tree gets no worse; `scripts/house` prints it."""

from __future__ import annotations

import pytest

from tests.house.shape import LISTS, cycles, measure

#: Modules of a folder that a person takes in; the lists grow with what they list.
MOST_MODULES = 45
#: Import cycles between modules that are left, and the modules of the largest.
CYCLES, LARGEST_CYCLE = 13, 18
#: Comparisons with a target's name that are to become traits of the target.
TARGET_TESTS = 101


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, ()),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, (("a", "b"),)),
        (
            {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e", "a"}, "e": {"d"}},
            (("a", "b", "c"), ("d", "e")),
        ),
    ],
)
def test_cycles(graph: dict[str, set[str]], found: tuple[tuple[str, ...], ...]) -> None:
    assert cycles(graph) == found


def test_folders_are_taken_in_at_once() -> None:
    for folder, count in measure().files.items():
        assert count <= MOST_MODULES or folder in LISTS, folder


def test_packages_do_not_import_each_other() -> None:
    assert measure().package_cycles == ()


def test_modules_import_each_other_less_and_less() -> None:
    found = measure().file_cycles
    assert len(found) <= CYCLES
    assert max(map(len, found)) <= LARGEST_CYCLE


def test_there_is_one_type_of_refusal() -> None:
    values = [each for each in measure().refusals if each.startswith("refusal.")]
    assert values == ["refusal.Refused", "refusal.RefusedError"]
    # Rows of reports that hold such values.
    assert set(measure().refusals) - {*values} == {
        "optimization.report.Refusal",
        "verify.reference.Refusal",
    }


def test_targets_are_tested_by_name_less_and_less() -> None:
    found = measure().target_tests
    assert sum(found.values()) <= TARGET_TESTS, found

"""The shape of the tree gets no worse; `scripts/house` prints it."""

from __future__ import annotations

import ast

import pytest

from tests.house.shape import (
    LISTS,
    SANCTIONED,
    cycles,
    imported,
    measure,
    operator_sets,
    target_tests,
    without_sanctioned,
)
from tests.import_graph import imports, modules

#: Modules of a folder that a person takes in; the lists grow with what they list.
MOST_MODULES = 40
#: Where one of the names is no target.
NO_TARGETS = {
    "ortkit.runtime.machine": "the first word of /proc/stat",
    "ortkit.extend.torch.run": "torch's types of devices",
}


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


def test_modules_do_not_import_each_other() -> None:
    assert measure().file_cycles == ()


@pytest.mark.parametrize(("name", "other"), SANCTIONED)
def test_an_import_that_may_close_a_cycle_does(name: str, other: str) -> None:
    graph = {each: imported(each) for each in modules()}
    others = without_sanctioned(graph)
    others[name].add(other)
    assert any({name, other} <= {*each} for each in cycles(others))
    assert other not in imports(name, top_level_only=True)


def test_there_is_one_type_of_refusal() -> None:
    assert measure().refusals == ("refusal.Refused",)


def test_nothing_is_decided_by_a_name() -> None:
    assert measure().target_tests.keys() == NO_TARGETS.keys()


def test_no_set_of_operators_stands_twice() -> None:
    assert measure().repeated_sets == []


def test_sets_of_operators_are_found() -> None:
    text = 'A = {"Add", "Mul", "Sub", "Div"}; B = ("Add", "Mul"); C = ["Add", "Mul", "Sub", "x"]'
    assert [names for _, names in operator_sets(ast.parse(text))] == [{"Add", "Mul", "Sub", "Div"}]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('if target.kind == "cpu": pass', 1),
        ('if kind not in ("cpu", "cuda"): pass', 2),
        ('match kind:\n    case "cuda": pass', 1),
        ('times = {"cpu": 1, "cuda": 2}', 2),
        ('hardware = {"cpu": 0, "gpu": 1}', 0),
        ('Kind = Literal["cpu", "cuda"]', 1),
        ('target = Target("cuda", "sm_90")', 0),
    ],
)
def test_decisions_are_counted(text: str, count: int) -> None:
    assert target_tests("ortkit.somewhere", ast.parse(text)) == count
    assert target_tests("ortkit.targets.cuda", ast.parse(text)) == 0


def test_one_class_is_called_target() -> None:
    texts = {name: path.read_text("utf-8") for name, path in modules().items()}
    found = [name for name, text in texts.items() if "\nclass Target:" in text]
    assert found == ["ortkit.targets.target"]

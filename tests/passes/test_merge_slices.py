"""Slices of Slices."""

from __future__ import annotations

import pytest

from ortkit.passes.drop_dead_nodes import DropDeadNodes
from ortkit.passes.merge_slices import MergeSlices
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (MergeSlices(), DropDeadNodes())
LAST = 2**63 - 1


def cut(g: Graph, x: str, axis: int, start: int = 0, end: int = LAST, step: int = 1) -> str:
    if g.opset < 10:
        return g.op("Slice", x, starts=[start], ends=[end], axes=[axis])
    numbers = [g.ints(number) for number in (start, end, axis)]
    return g.op("Slice", x, *numbers, *([g.ints(step)] if step != 1 else []))


@pytest.mark.parametrize("opset", [9, 10, 13, 17])
def test_two_axes(opset: int) -> None:
    g = Graph(opset=opset)
    end = cut(g, cut(g, g.input("n", 3, 6, 8), 2, 1, -1), 3, 2, 7)
    assert_rewritten(g.model(end), PASSES, ["Slice"])


def test_steps_and_axes_from_the_end() -> None:
    g = Graph()
    end = cut(g, cut(g, g.input("n", 3, 6, 8), -2, 1, LAST, 2), -1, -1, -LAST, -3)
    assert_rewritten(g.model(end), PASSES, ["Slice"])


def test_three_in_a_row() -> None:
    g = Graph()
    end = cut(g, cut(g, cut(g, g.input("n", 3, 6), 0, 1), 2, 0, 4), 1, 1, 2)
    assert_rewritten(g.model(end), PASSES, ["Slice"])


def test_patches_of_one_slice() -> None:
    g = Graph()
    x = g.input(1, 6, 6)
    rows = [cut(g, x, 1, start, LAST, 2) for start in (0, 1)]
    ends = [cut(g, row, 2, start, LAST, 2) for row in rows for start in (0, 1)]
    assert_rewritten(g.model(*ends), PASSES, ["Slice"] * 4)


@pytest.mark.parametrize("reader", ["Relu", ""])
def test_another_reader_of_the_first(reader: str) -> None:
    g = Graph()
    first = cut(g, g.input(1, 6, 6), 1, 2)
    others = [g.op(reader, first)] if reader else [first]
    assert_refused(g.model(cut(g, first, 2, 1), *others), PASSES, "others read")


def test_one_axis_twice() -> None:
    g = Graph()
    assert_refused(g.model(cut(g, cut(g, g.input(1, 6), 1, 2), -1, 1)), PASSES, "along one axis")


def test_cuts_that_vary() -> None:
    g = Graph()
    x = g.input("n", 6)
    size = g.op("Shape", g.op("NonZero", x))
    first = g.op("Slice", x, g.ints(0), g.op("Slice", size, g.ints(1), g.ints(2)), g.ints(1))
    assert_refused(g.model(cut(g, first, 0, 0, 1)), (MergeSlices(),), "not constant")

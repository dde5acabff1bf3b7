"""Axes through chains of Reshape, Transpose and Expand."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.analysis.axes import Layout, Moves, moves, perm_of, targets, track
from ortkit.graph.io.text import from_text
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Dim, floor_divide

B, S = Dim.named("b"), Dim.named("s")


def ways(layout: Layout) -> list[Moves]:
    return list(moves(layout))


def reshaped(layout: Layout, *shape: int | Dim) -> Layout:
    made = layout.reshaped(shape)
    assert made is not None
    assert made.shape == shape
    return made


def applied(way: Moves, array: np.ndarray) -> np.ndarray:
    if way.before is not None:
        array = array.reshape(way.before)
    if way.perm is not None:
        array = array.transpose(way.perm)
    return array if way.after is None else array.reshape(way.after)


def test_keys_of_attention_are_one_transpose() -> None:
    layout = Layout.of((B, S, 12, 64)).permuted((0, 2, 1, 3))
    layout = reshaped(layout, B * 12, S, 64).permuted((0, 2, 1))
    layout = reshaped(layout, B, 12, 64, S)
    assert ways(layout)[0] == Moves(perm=(0, 2, 3, 1))


def test_heads_are_a_reshape_and_a_transpose() -> None:
    layout = reshaped(Layout.of((B, S, 768)), B, S, 12, 64).permuted((0, 2, 1, 3))
    assert ways(layout)[0] == Moves(before=(B, S, 12, 64), perm=(0, 2, 1, 3))
    assert targets((B, S, 768), ways(layout)[0]) == ((0, 0, 12, 64), None)
    back = reshaped(layout.permuted((0, 2, 1, 3)), B, S, 768)
    assert ways(back) == [Moves()]


def test_windows_and_back() -> None:
    layout = reshaped(Layout.of((B, 56, 56, 96)), B, 8, 7, 8, 7, 96).permuted((0, 1, 3, 2, 4, 5))
    windows = reshaped(layout, B * 64, 49, 96)
    # Neither joined axes nor the split ones stay whole: three nodes, over the fewest axes.
    way = ways(windows)[0]
    assert way == Moves((B * 8, 7, 8, 672), (0, 2, 1, 3), (B * 64, 49, 96))
    back = reshaped(windows, B, 8, 8, 7, 7, 96).permuted((0, 1, 3, 2, 4, 5))
    assert ways(reshaped(back, B, 56, 56, 96)) == [Moves()]


def test_axes_of_length_one_go_along() -> None:
    layout = Layout.of((1, S, 4)).permuted((1, 2, 0))
    assert ways(layout) == [Moves(after=(S, 4, 1))]
    layout = Layout.of((1, S, 4)).permuted((2, 0, 1))
    assert ways(layout)[0] == Moves(perm=(2, 0, 1))
    layout = reshaped(Layout.of((1, S, 4, 16)).permuted((0, 2, 1, 3)), 4, S, 16)
    assert ways(layout)[0].count == 2


def test_what_parts_a_factor_parts_it_in_the_source() -> None:
    layout = reshaped(reshaped(Layout.of((24,)), 2, 12), 2, 3, 4)
    assert [[factor.size for factor in group] for group in layout.source] == [[2, 3, 4]]
    assert layout.source_shape == (24,)
    assert {f for g in layout.source for f in g} == {f for g in layout.result for f in g}


@pytest.mark.parametrize(
    ("before", "after"),
    [((6, 4), (4, 6)), ((B, 6), (2, B, 3)), ((B, S), (S, B)), ((6,), (6, 2)), ((6, 2), (6,))],
)
def test_what_does_not_follow_from_factors(before, after) -> None:
    assert Layout.of(before).reshaped(after) is None


def test_joined_axes_have_to_be_the_same_ones() -> None:
    layout = reshaped(Layout.of((B, S, 4)), B * S, 4)
    assert [len(group) for group in layout.result] == [2, 1]
    assert reshaped(layout, B, S, 4).result == layout.source


def test_an_expand_repeats() -> None:
    layout = reshaped(Layout.of((B, 2, S, 64)), B, 2, 1, S, 64).expanded((B, 2, 4, S, 64))
    assert layout is not None
    heads = reshaped(layout, B, 8, S, 64)
    assert [factor.size for factor in heads.repeated] == [4]
    assert [factor.size for factor in heads.result[1]] == [2, 4]
    assert heads.result[1][1] is heads.repeated[0]
    assert ways(heads) == []
    assert Layout.of((B,)).expanded((S, S)) is None
    assert Layout.of((2, 3)).expanded((3,)) is None


def test_targets_need_constants() -> None:
    assert targets((B, S), Moves(perm=(1, 0), after=(S * B,))) == (None, (-1,))
    assert targets((B, S, 4), Moves(perm=(1, 0, 2), after=(B, S, 2, 2))) is None
    assert targets((B * S, 4), Moves(before=(B, S, 4), perm=(1, 0, 2))) is None


def test_random_chains() -> None:
    chosen = random.Random(7)
    for _ in range(400):
        shape = tuple(chosen.choice((1, 2, 3, 4, 6)) for _ in range(chosen.randint(1, 4)))
        source = array = np.arange(prod(shape)).reshape(shape)
        layout = Layout.of(shape)
        for _ in range(chosen.randint(1, 5)):
            perm = tuple(chosen.sample(range(array.ndim), array.ndim))
            made: Layout | None = layout.permuted(perm)
            new = array.transpose(perm)
            if chosen.random() < 0.6:
                cuts = [1, 2, 3, 4, 6, 8, 12]
                wanted = tuple(chosen.choice(cuts) for _ in range(chosen.randint(1, 4)))
                if array.size % prod(wanted):
                    continue
                wanted = (*wanted, array.size // prod(wanted))
                made, new = layout.reshaped(wanted), array.reshape(wanted)
            if made is not None:
                layout, array = made, new
        assert layout.shape == array.shape and layout.source_shape == source.shape
        counts = [way.count for way in ways(layout)]
        assert counts and counts == sorted(counts)
        for way in ways(layout):
            np.testing.assert_array_equal(applied(way, source), array)


CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
g (float[b,s,64] x) => (float[b,4,16,s] y)
<int64[4] heads = {0,0,4,16}, int64[1] one = {1}> {
  p = Reshape(x, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(p)
  r = Unsqueeze(q, one)
  t = Squeeze(r, one)
  y = Transpose<perm = [0, 1, 3, 2]>(t)
}"""


def test_nodes_are_tracked() -> None:
    model = from_text(CHAIN)
    shapes, nodes = Shapes.infer(model), list(model.graph)
    layout = track(shapes, nodes)
    assert layout is not None
    b, s = shapes.shape(nodes[0].inputs[0])[:2]
    assert ways(layout)[0] == Moves(before=(b, s, 4, 16), perm=(0, 2, 3, 1))
    assert Moves(perm=(0, 2, 1), after=(b, 4, 16, s)) in ways(layout)
    first = track(shapes, nodes[:2])
    assert first is not None
    whole = track(shapes, nodes[2:], first)
    assert whole is not None and whole.shape == layout.shape
    neg = ir.node("Neg", [nodes[0].inputs[0]])
    assert track(shapes, [neg]) is None


def test_perm_of() -> None:
    x = ir.Value(name="x")
    assert perm_of(ir.node("Transpose", [x]), 3) == (2, 1, 0)
    assert perm_of(ir.node("Transpose", [x], {"perm": [1, 0]}), 2) == (1, 0)
    assert perm_of(ir.node("Transpose", [x], {"perm": [1, 0]}), 3) is None


def test_a_reshape_that_halves_an_axis_says_that_it_is_even() -> None:
    batch, length = Dim.named("b"), Dim.named("n")
    layout = Layout.of((batch, 8, length))
    halved = layout.reshaped((batch, 8, floor_divide(length, 2), 2))
    assert halved is not None
    assert halved.source[2] == (*halved.result[2], *halved.result[3])
    assert layout.reshaped((batch, 8, floor_divide(length, 2), 3)) is None
    assert layout.reshaped((batch, 8, floor_divide(length, 3), 2)) is None

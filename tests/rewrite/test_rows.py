"""Row regions: what belongs to one, what is a leaf, and where growing ends."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.analysis.norm_probe import Probe
from ortkit.analysis.row_functions import NODE_LIMIT, ROOT_LIMIT, Frame, Region, frame_of, roots_of
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Dim
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope
from tests.passes.norm_spellings import Rows

B, S = Dim.named("b"), Dim.named("s")


def scope_of(g: Rows, *outputs: str) -> Scope:
    model = ir.from_proto(g.model(*outputs))
    return Scope(model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions())


def node_of(scope: Scope, op_type: str) -> ir.Node:
    return next(node for node in scope.nodes() if node.op_type == op_type)


@pytest.mark.parametrize(
    ("shape", "is_leaf"),
    [
        ((), True),
        ((8,), True),
        ((1, 1, 8), True),
        ((S, 1), True),
        ((B, S, 1), True),
        ((S, 8), False),
        ((B, S, 8), False),
        ((7,), False),
        ((1, 1, 1, 8), False),
        (None, False),
    ],
)
def test_leaves_vary_along_rows_or_between_them(
    shape: tuple[int | Dim, ...] | None, is_leaf: bool
) -> None:
    assert Frame((B, S, 8), (2,)).is_leaf(shape) == is_leaf


def test_kinds_of_shapes() -> None:
    frame = Frame((B, S, 8), (1, 2))
    assert frame.kind((B, S, 8)) == "full"
    assert frame.kind((B, 1, 1)) == "kept"
    assert frame.kind((B,)) == "flat"
    assert frame.kind((B, S)) == "" == frame.kind(None)
    assert frame.is_trailing and not Frame((B, S, 8), (1,)).is_trailing


def test_roots_are_what_the_reduction_was_made_from() -> None:
    g = Rows(np.float32, 18)
    x, y = g.input("b", 8), g.input("b", 8, name="y")
    total = g.op("Mul", x, y)
    square = g.op("Mul", g.op("Abs", total), g.op("Abs", total))
    scope = scope_of(g, g.mean(square))
    node = node_of(scope, "ReduceMean")
    frame = frame_of(scope, node)
    assert frame is not None
    # Two values make `total`, so nothing before it is a root of its own.
    names = [value.name for value in roots_of(scope, node, frame)]
    assert names[0] == square and len(names) <= ROOT_LIMIT
    assert {x, y}.isdisjoint(names)


def test_a_residual_sum_is_not_in_the_region() -> None:
    g = Rows(np.float32, 18)
    x, other = g.input("b", 8), g.input("b", 8, name="other")
    d = g.op("Sub", x, g.mean(x))
    end = g.op("Mul", d, g.constant(8))
    scope = scope_of(g, g.op("Add", end, other))
    node = node_of(scope, "ReduceMean")
    frame = frame_of(scope, node)
    assert frame is not None and node.inputs[0] is not None
    region = Region(scope, node, frame, node.inputs[0])
    assert [value.name for value in region.ends] == [d, end]
    assert len(region.leaves()) == 1


def test_a_region_is_bounded() -> None:
    g = Rows(np.float32, 18)
    x = g.input("b", 8)
    y = g.op("Sub", x, g.mean(x))
    for _ in range(500):
        y = g.op("Neg", y)
    scope = scope_of(g, y)
    node = node_of(scope, "ReduceMean")
    frame = frame_of(scope, node)
    assert frame is not None and node.inputs[0] is not None
    region = Region(scope, node, frame, node.inputs[0])
    assert len(region.inside) <= NODE_LIMIT + 1


def test_a_size_of_the_graph_is_that_of_the_sample() -> None:
    g = Rows(np.float32, 18)
    x = g.input("b", "n")
    size = g.cast(g.op("Gather", g.op("Shape", x), g.ints(1)), np.float32)
    mean = g.op("Div", g.reduce("ReduceSum", x), size)
    end = g.op("Sub", x, mean)
    scope = scope_of(g, end)
    node = node_of(scope, "ReduceSum")
    frame = frame_of(scope, node)
    assert frame is not None and node.inputs[0] is not None
    region = Region(scope, node, frame, node.inputs[0])
    probe = Probe(region, 4, np.random.default_rng(0))
    rows = np.random.default_rng(1).standard_normal(probe.sizes)
    result = probe.run(rows)[region.ends[-1]]
    np.testing.assert_allclose(result, rows - rows.mean(axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("axes", [(), (0, 1), (5,)])
def test_frames_have_rows_and_columns(axes: tuple[int, ...]) -> None:
    g = Rows(np.float32, 18)
    x = g.input("b", 8)
    made = g.op("ReduceMean", x, g.ints(*axes)) if axes else g.op("ReduceMean", x)
    scope = scope_of(g, made)
    assert frame_of(scope, node_of(scope, "ReduceMean")) is None

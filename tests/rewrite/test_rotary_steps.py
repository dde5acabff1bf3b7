"""How reshapes move channels: which axes of the input run along which of the result."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.io.text import from_text
from ortkit.graph.shapes.infer import Shapes
from ortkit.ops.rotary.steps import CHANNEL, Labels, Step, structural_step
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

C = CHANNEL


def step_of(inner: str, outer: str, numbers: str, labels: Labels) -> Step | None:
    """Return the step of a Reshape of [inner] to [outer], which is looked at under labels."""
    model = from_text(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[{inner}] x) => (float[{outer}] y)
        <int64[{numbers.count(",") + 1}] to = {{{numbers}}}> {{ y = Reshape(x, to) }}"""
    )
    scope = Scope(model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions())
    (node,) = model.graph
    (value,) = node.outputs
    return structural_step(Site(scope, node, "test"), value, labels)


def below(step: Step | None) -> Labels:
    assert step is not None
    ((value, labels),) = step.inputs
    assert isinstance(value, ir.Value)
    return labels


@pytest.mark.parametrize(
    ("inner", "outer", "numbers", "labels", "expected"),
    [
        # Axes behind the channels keep their order, and so do those in front.
        ("b,s,8,4,6", "b,s,2,4,4,6", "0,0,2,4,4,6", (0, 1, C, C, 4, 5), (0, 1, C, 4, 5)),
        ("b,2,4,s", "b,8,s", "0,8,-1", (0, C, 2), (0, C, C, 2)),
        # Axes of length one may come and go on both sides.
        ("1,8,3", "8,1,3", "8,1,3", (C, 1, 2), (C, C, 2)),
        ("8,3,1", "1,8,3", "1,8,3", (0, C, 2), (C, 2, None)),
        ("b,8", "b,2,4", "0,2,4", (0, C, C), (0, C)),
        # One channel comes from no axis at all.
        ("b,s", "b,1,s", "0,1,-1", (0, C, 2), (0, 2)),
    ],
)
def test_the_other_axes_keep_their_labels(
    inner: str, outer: str, numbers: str, labels: Labels, expected: Labels
) -> None:
    assert below(step_of(inner, outer, numbers, labels)) == expected


@pytest.mark.parametrize(
    ("inner", "outer", "numbers", "labels"),
    [
        # Channels that are not side by side.
        ("2,3,4", "2,3,4", "2,3,4", (C, 1, C)),
        # Axes in front, or behind, that are cut in another way.
        ("6,8", "2,3,8", "2,3,8", (0, 1, C)),
        ("8,6", "8,2,3", "8,2,3", (C, 1, 2)),
        # Nothing is told apart.
        ("2,4", "8", "8", (0,)),
        # The channels are not as many.
        ("2,12", "4,6", "4,6", (0, C)),
        # One axis is in front of the channels and behind them.
        ("1", "1,1,1", "1,1,1", (0, C, 2)),
        # Channels of a number that is not known.
        ("b,8", "b,8", "-1,8", (C, 1)),
    ],
)
def test_other_reshapes_are_no_steps(inner: str, outer: str, numbers: str, labels: Labels) -> None:
    assert step_of(inner, outer, numbers, labels) is None


def test_channels_are_numbered_as_they_lie() -> None:
    step = step_of("b,8", "b,2,4", "0,2,4", (0, C, C))
    assert step is not None
    np.testing.assert_array_equal(step.combine([np.arange(8)]), np.arange(8).reshape(2, 4))

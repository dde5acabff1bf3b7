"""Regions of 1-D convolutions: what goes into them, what stays, and what pays."""

from __future__ import annotations

import pytest
from ortkit.custom_ops.tvm.conv.one_axis import ANCHOR
from region_models import HEAD, Eager, found_by, scope_of

from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.graph.io.text import from_text
from ortkit.kernels.build.library import refusal
from ortkit.targets.target import Target


def found(
    text: str, channels: int = 8, groups: int = 1, cost: type[CostModel] = Eager, length: str = "n"
) -> list[Candidate]:
    """Return the regions of a graph: x and r [batch, channels, length], b, a filter of 5 taps."""
    filters = f"{channels}, {channels // groups}, 5"
    ones, size = ", ".join(["1"] * (channels * channels // groups * 5)), f"batch, {channels}, "
    given = f"float[{size}{length}] x, float[{size}{length}] r, float[{filters}] given"
    held = f"float[{filters}] w = {{{ones}}}, float[{channels}] b = {{{ones[: 3 * channels - 2]}}}"
    scope = scope_of(from_text(f"{HEAD} g ({given}) => (z) <{held}> {{ {text} }}"))
    target = Target("cpu", "x86-64-v4")
    return found_by(ANCHOR, scope, lambda one: refusal(one, target), cost)


CONV = "c = Conv <kernel_shape = [5], pads = [2, 2]> (x, w, b)"


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("z = LeakyRelu <alpha = 0.2> (c)", ["Conv", "LeakyRelu"]),
        ("s = Sigmoid (c)  m = Mul (c, s)  z = Add (r, m)", ["Conv", "Sigmoid", "Mul", "Add"]),
        ("z = Softmax (c)", ["Conv"]),  # is no step
        ("m = Relu (c)  z = Add (m, c)", ["Conv", "Relu", "Add"]),  # read twice, to one end
    ],
)
def test_what_follows_element_by_element_is_in_the_region(tail: str, ops: list[str]) -> None:
    (one,) = found(f"{CONV} {tail}")
    assert one.signature is not None and one.region.kind == "conv_1d"
    assert sorted(node.op_type for node in one.region.nodes) == sorted(ops)


@pytest.mark.parametrize(
    ("conv", "length", "reason"),
    [
        ("z = Conv <pads = [2, 2], strides = [2]> (x, w, b)", "100", "moves by more than one"),
        ("z = Conv <pads = [1, 2]> (x, w, b)", "n", "no input tells the size"),
    ],
)
def test_what_no_kernel_computes_has_a_reason(conv: str, length: str, reason: str) -> None:
    (one,) = found(conv, length=length)
    assert one.signature is None
    assert reason in one.reason


def test_a_filter_that_is_computed_is_left_alone() -> None:
    assert not found("z = Conv <pads = [2, 2]> (x, given, b)")


@pytest.mark.parametrize(("groups", "pays"), [(104, True), (13, True), (1, False)])
def test_depthwise_ones_pay_and_dense_ones_do_not(groups: int, pays: bool) -> None:
    text = f"z = Conv <pads = [2, 2], group = {groups}> (x, w, b)"
    (one,) = found(text, 104, groups, CostModel)
    assert (one.signature is not None) == pays
    assert pays or "predicted to gain" in one.reason

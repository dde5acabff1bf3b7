"""Neighbouring sizes that all tensors treat alike become one axis."""

from __future__ import annotations

import pytest
from fused_model import tensor

from ortkit.kernels import Refused, RegionSignature
from ortkit.kernels.layout import Axis, Layout, canonical_layout

Shape = tuple[int | str, ...]


def layout(*inputs: Shape, output: Shape) -> Layout | Refused:
    specs = tuple(tensor(f"x{i}", *shape) for i, shape in enumerate(inputs))
    return canonical_layout(RegionSignature("r", "", specs, (tensor("y", *output),)))


def test_leading_sizes_collapse_into_rows() -> None:
    assert layout(("batch", "seq", 8), (8,), output=("batch", "seq", 8)) == Layout(
        (Axis(1, ("batch", "seq")), Axis(8, ())), ((True, True), (False, True), (True, True))
    )


def test_equal_shapes_are_one_axis() -> None:
    same: Shape = (2, "n", 3)
    assert layout(same, same, output=same) == Layout((Axis(6, ("n",)),), ((True,),) * 3)


def test_scalars_have_no_axis() -> None:
    assert layout((), (1, 1), output=(1, 1)) == Layout((Axis(1, ()),), ((False,),) * 3)
    found = layout((4,), (), output=(4,))
    assert isinstance(found, Layout)
    assert found.moves == ((True,), (False,), (True,))


def test_a_scale_per_channel_has_the_rows() -> None:
    found = layout(("n", 6, "h", "w"), ("n", 6, 1, 1), output=("n", 6, "h", "w"))
    assert found == Layout(
        (Axis(6, ("n",)), Axis(1, ("h", "w"))), ((True, True), (True, False), (True, True))
    )


def test_alternating_broadcasts_keep_their_axes() -> None:
    found = layout(("b", 12, "q", "k"), ("b", 1, 1, "k"), output=("b", 12, "q", "k"))
    assert isinstance(found, Layout)
    assert found.axes == (Axis(1, ("b",)), Axis(12, ("q",)), Axis(1, ("k",)))
    assert found.moves[1] == (True, False, True)


@pytest.mark.parametrize(
    ("inputs", "output", "reason"),
    [
        ([("n",), ("m",)], ("n",), "sizes m, n meet in dim -1"),
        ([("n", 4), (1, 4)], (1, 4), "does not have the shape of the whole region"),
        ([(4, 4)], (4,), "does not have the shape of the whole region"),
        ([(4,)], (4, 4), "does not have|sizes"),
        ([(4, 1)], (4, "n"), "no input tells the size 'n'"),
        (
            [tuple(f"s{i}" for i in range(17))],
            tuple(f"s{i}" for i in range(17)),
            "more than 16 dims",
        ),
        ([("n",)] * 64, ("n",), "at most 64"),
    ],
    ids=["unequal names", "size 1", "rank", "rank up", "unknown", "dims", "tensors"],
)
def test_what_has_no_single_space_is_refused(
    inputs: list[Shape], output: Shape, reason: str
) -> None:
    found = layout(*inputs, output=output)
    if reason.startswith("does not have|"):
        # A larger output of a smaller input is a broadcast, which the space allows.
        assert isinstance(found, Layout)
        return
    assert isinstance(found, Refused)
    assert reason in found.reason

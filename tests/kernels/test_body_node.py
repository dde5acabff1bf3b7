"""What a node of a body says of itself."""

from __future__ import annotations

import pytest

from ortkit.kernels.region.body_node import axis_of
from ortkit.refusal import RefusedError


@pytest.mark.parametrize(
    ("axis", "rank", "expected"), [(0, 0, 0), (-1, 3, 2), (2, 3, 2), (-3, 3, 0)]
)
def test_an_axis_is_counted_from_the_front(axis: int, rank: int, expected: int) -> None:
    assert axis_of(axis, rank) == expected


@pytest.mark.parametrize(("axis", "rank"), [(3, 3), (-4, 3), (1, 0), (-1, 0), ("0", 1)])
def test_a_tensor_without_that_axis_is_refused(axis: object, rank: int) -> None:
    with pytest.raises(RefusedError, match=f"axis {axis} of a tensor of rank {rank}"):
        axis_of(axis, rank)

"""Results of kernels that are smaller than the smallest normal number of their type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ortkit.verify.kernels.judge import judge_output

# As SiLU gives for -12 to -15: a body in working precision is off by tens of epsilons there.
REFERENCE = -np.array([[9.3e-6, 2.9e-5, 2.4e-6], [6.6e-6, 1.1e-7, 4.1e-6]])


def reason_of(got: np.ndarray) -> str:
    def moved(_: float, __: int) -> Sequence[np.ndarray] | None:
        return None

    body = (REFERENCE * 1.05).astype(np.float16)
    return judge_output(0, REFERENCE, body, got, roundings=1, moved=moved).reason


@pytest.mark.parametrize("steps", [0, 0.4, -0.4])
def test_a_rounding_to_a_neighbour_passes(steps: float) -> None:
    spacing = 2.0**-24
    assert reason_of((REFERENCE + steps * spacing).astype(np.float16)) == ""


@pytest.mark.parametrize("steps", [2, -2])
def test_two_steps_off_is_wrong(steps: int) -> None:
    spacing = 2.0**-24
    assert "off by" in reason_of((REFERENCE + steps * spacing).astype(np.float16))


def test_flushed_to_zero_is_wrong() -> None:
    assert "off by" in reason_of(np.zeros(REFERENCE.shape, np.float16))

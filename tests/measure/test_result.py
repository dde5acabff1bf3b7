"""What two lists of times say: which is faster, and by how much they differ from themselves."""

from __future__ import annotations

import pytest

from ortkit.measure.result import compare


def test_a_difference_beyond_the_noise_has_a_direction() -> None:
    quiet = [10.0, 10.02, 10.0, 10.02]
    half = [5.0, 5.01, 5.0, 5.01]
    found = compare(quiet, half)
    assert found.ratio == pytest.approx(2, rel=0.01)
    assert found.noise == 0.01
    assert found.verdict == "faster"
    assert compare(half, quiet).verdict == "slower"


def test_drift_between_first_and_second_turns_is_noise() -> None:
    drifting = [10.0, 13.0, 10.0, 13.0]
    found = compare(drifting, [9.0, 10.0, 9.0, 10.0])
    assert found.noise == pytest.approx(0.3)
    assert found.ratio == pytest.approx(11.5 / 9.5)
    assert found.verdict == "no difference"
    assert compare(drifting, [5.0, 5.0, 5.0, 5.0]).verdict == "faster"


def test_noise_of_either_variant_counts() -> None:
    steady = [10.0] * 4
    assert compare(steady, [8.0, 10.0, 8.0, 10.0]).noise == pytest.approx(0.25)
    assert compare([8.0, 10.0, 8.0, 10.0], steady).noise == pytest.approx(0.25)


def test_less_than_a_hundredth_is_no_difference() -> None:
    assert compare([10.05] * 4, [10.0] * 4).verdict == "no difference"
    assert compare([10.0] * 4, [10.05] * 4).verdict == "no difference"

"""The benchmark of language models."""

from __future__ import annotations

import pytest

from scripts.benches.llm_worker import token_times


@pytest.mark.parametrize(("count", "tokens", "wanted"), [(17, 16, [2.0] * 16), (1, 0, [])])
def test_the_first_token_takes_no_time_of_its_own(
    count: int, tokens: int, wanted: list[float]
) -> None:
    times = {"predicted_n": count, "predicted_ms": 32.0 if tokens else 0.001}
    assert token_times(times, tokens) == wanted

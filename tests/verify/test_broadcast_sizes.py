"""Inputs that broadcast with each other get sizes that do."""

from __future__ import annotations

import pytest
from small_models import model

from ortkit.verify.inputs.feeds import FeedMaker


@pytest.mark.parametrize(
    "call", ["Add(x, z)", "Mean(x, z)", "PRelu(x, z)", 'BitShift<direction = "LEFT">(x, z)']
)
def test_two_names_of_one_size(call: str) -> None:
    dtype = "uint8" if call.startswith("BitShift") else "float"
    built = model(f"g ({dtype}[a, 3] x, {dtype}[b, 3] z) => ({dtype}[c, 3] y) {{ y = {call} }}")
    maker = FeedMaker.of(built, {})
    assert maker.shapes[0] == maker.shapes[1]

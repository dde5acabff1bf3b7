"""Presets by level and target."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ortkit.passes.presets import ORDER, preset
from ortkit.passes.select import select_passes
from ortkit.targets.catalog import Kind
from ortkit.targets.cuda import CUDA


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_level_holds_all_of_the_level_below(kind: Kind) -> None:
    for lower, higher in pairwise(preset(level, kind) for level in range(4)):
        assert set(lower) <= set(higher)


def test_what_pays_on_cuda_runs_there_earlier() -> None:
    firsts = dict(ORDER)
    for name, first in CUDA.earlier_passes.items():
        assert first < firsts[name]
        assert name in preset(first, "cuda")
        assert name not in preset(first, "cpu")
    chosen = {pass_.name for pass_ in select_passes("", 2, "cuda")}
    assert chosen - {item.name for item in select_passes("", 2)} == set(CUDA.earlier_passes)

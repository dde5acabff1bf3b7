"""Random graphs, fused as far as they go, compute bit by bit what they did."""

from __future__ import annotations

import pytest
from random_regions import RandomGraph
from region_models import assert_same, fuse

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature

SIZES = {"s": 5}


@pytest.mark.parametrize("seed", range(40))
def test_all_regions_of_a_random_graph(seed: int) -> None:
    before = RandomGraph(seed, nodes=10 + seed).model()
    after = assert_same(before, SIZES)
    assert len(after.graph.node) < len(before.graph.node)


@pytest.mark.parametrize("seed", range(40, 70))
def test_cut_at_random(seed: int) -> None:
    """A backend that refuses by a hash of the body: cuts fall anywhere, results stay."""

    def judge(signature: RegionSignature) -> Refused | None:
        return Refused("a whim") if int(signature.key, 16) % 3 == 0 else None

    assert_same(RandomGraph(seed, nodes=40).model(), SIZES, judge=judge)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 1100))
def test_many_random_graphs(seed: int) -> None:
    assert_same(RandomGraph(seed, nodes=10 + seed % 90).model(), SIZES)


def test_the_order_of_everything_is_the_same_in_every_run() -> None:
    before = RandomGraph(7, nodes=60).model()
    first, second = fuse(before), fuse(before)
    assert first.SerializeToString() == second.SerializeToString()

"""Random graphs, fused as far as they go, compute bit by bit what they did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from random_regions import RandomGraph
from region_models import assert_same, feeds_of, fuse, run, scope_of

from ortkit.fusion.plan import compile_regions
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.targets.target import Target

SIZES = {"s": 5}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(40))
def test_all_regions_of_a_random_graph(seed: int) -> None:
    before = RandomGraph(seed, nodes=10 + seed).model()
    after = assert_same(before, SIZES)
    assert len(after.graph.node) < len(before.graph.node)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(40, 70))
def test_cut_at_random(seed: int) -> None:
    """A backend that refuses by a hash of the body: cuts fall anywhere, results stay."""

    def judge(signature: RegionSignature) -> Refused | None:
        return Refused("a whim") if int(signature.key, 16) % 3 == 0 else None

    assert_same(RandomGraph(seed, nodes=40).model(), SIZES, accepts=judge)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 1100))
def test_many_random_graphs(seed: int) -> None:
    assert_same(RandomGraph(seed, nodes=10 + seed % 90).model(), SIZES)


def test_the_order_of_everything_is_the_same_in_every_run() -> None:
    before = RandomGraph(7, nodes=60).model()
    first, second = fuse(before), fuse(before)
    assert first.SerializeToString() == second.SerializeToString()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(2000, 2006))
def test_a_random_graph_with_kernels(seed: int, tmp_path: Path, every_region: None) -> None:
    check_with_kernels(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2006, 2100))
def test_random_graphs_with_kernels(seed: int, tmp_path: Path, every_region: None) -> None:
    check_with_kernels(seed, tmp_path)


def check_with_kernels(seed: int, folder: Path) -> None:
    """Run with the library: one row, a few, more than a vector.

    Not with none: ONNX Runtime 1.31.1 reduces [0, 8] along its rows to [0, 8], not [0, 1].
    """
    before = RandomGraph(seed, nodes=40).model()
    model = ir.from_proto(before)
    reports, library, _ = compile_regions(
        [scope_of(model)], folder / "kernels.so", "auto", Target(), lambda _done, _total: None
    )
    assert library is not None
    assert any(report.emitted_as is not None for report in reports)
    after = ir.to_proto(model)
    for size in (1, 5, 67):
        feeds = feeds_of(before, {"s": size})
        for got, want in zip(run(after, feeds, library=library), run(before, feeds), strict=True):
            assert got.shape == want.shape
            # Chains of 40 nodes: 2^-13 of the largest value in an output.
            bound = 2**-13 * max(float(np.abs(want).max(initial=0)), 1e-3)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)

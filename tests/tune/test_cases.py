"""The sizes of a region's kernel, from the shapes that it ran on."""

from __future__ import annotations

import numpy as np
import pytest
from tuned_regions import SOFTMAX, region

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.tune.cases import TuneCase, solve_sizes, tensors_of
from ortkit.tune.timing_child import is_equal

ADD = region("Y = Add (X, B)", {"X": ("b", "4*s"), "B": ("4*s",)}, {"Y": ("b", "4*s")})
PRODUCT = region("Y = Relu (X)", {"X": ("b*s",)}, {"Y": ("b*s",)})


def test_sizes_are_solved_from_shapes() -> None:
    assert solve_sizes(ADD, [(3, 20), (20,)]) == (3, 5)
    case = TuneCase(ADD, (3, 5))
    assert [case.shape(spec) for spec in ADD.inputs] == [(3, 20), (20,)]


@pytest.mark.parametrize(
    "shapes",
    [[(3, 21), (21,)], [(3, 20), (24,)], [(3, 20)], [(3, 20, 1), (20,)], [(0, 20), (20,)]],
)
def test_shapes_that_do_not_fit_have_no_sizes(shapes: list[tuple[int, ...]]) -> None:
    assert solve_sizes(ADD, shapes) is None


def test_a_product_tells_none_of_its_sizes() -> None:
    assert solve_sizes(PRODUCT, [(12,)]) is None


def test_buckets_are_powers_of_two() -> None:
    buckets = [TuneCase(SOFTMAX, (n,)).bucket for n in (1, 2, 100, 128, 129)]
    assert buckets == ["s0=1", "s0=2", "s0=128", "s0=128", "s0=256"]
    assert TuneCase(region("Y = Relu (X)", {"X": (3,)}, {"Y": (3,)})).bucket == ""


def test_sums_of_a_users_kernel_may_be_off_by_their_terms() -> None:
    """A region's are known, and those of generated kernels are no chains of so many."""
    wanted = np.zeros(4, np.float32)
    found = wanted + np.float32(2e-5)
    rows = TensorSpec("x", "float32", (4, "n")), TensorSpec("y", "float32", (4,))
    for length, is_same in ((8, False), (3072, True)):
        _, (output,) = tensors_of(
            TuneCase(RegionSignature("k", "", *((o,) for o in rows)), (length,))
        )
        assert is_equal(output, wanted, found) == is_same
        assert not is_equal(output, wanted, wanted + np.float32(2e-4))
    _, (output,) = tensors_of(TuneCase(SOFTMAX, (3072,)))
    assert not is_equal(output, wanted, found)

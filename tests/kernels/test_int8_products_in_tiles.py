"""Int8 products in tiles: fetches of the next panel, estimates, and rows that begin anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from int8_models import MODELS, Net
from ortkit.custom_ops.tvm.gemm.int8 import Int8Product, match
from test_int8_product import KernelBuild, computed, expected, found

from ortkit.kernels.build.cache import KernelCache
from ortkit.targets import cpu

LEVEL = "x86-64-v4-amx"
#: Cache lines of the weights of a step: 16 groups of four neighbours by 32 columns.
LINES = 32

pytestmark = pytest.mark.skipif(not cpu.runs_here("x86-64-v4"), reason="no AVX-512 here")
needs_tiles = pytest.mark.skipif(not cpu.runs_here(LEVEL), reason="no AMX here")


def fetches(rows: int, depth: int, columns: int) -> int:
    """Return how many lines the kernel's text fetches."""
    proto = MODELS["dynamic"](Net(rows, depth, columns))
    product = match(found(proto, LEVEL).signature)
    assert isinstance(product, Int8Product)
    return str(product.lower("kernel", LEVEL)).count("prefetch(")


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (40, 2), (128, 4), (197, 7), (1000, 8)])
def test_blocks_fetch_all_of_the_next_panel(rows: int, blocks: int) -> None:
    # Written twice: in a block of two strips, and in one of a single strip.
    each = fetches(rows, 256, 768) / 2
    assert each == -(-LINES // blocks)


def test_little_weights_are_not_fetched() -> None:
    assert fetches(128, 64, 64) == 0


def test_estimates_know_the_tiles() -> None:
    product = match(found(MODELS["dynamic"](Net(128, 256, 64)), LEVEL).signature)
    assert isinstance(product, Int8Product)
    (before, after), (slow_before, slow_after) = map(product.estimate, (LEVEL, "x86-64-v4-bf16"))
    assert before < slow_before / 2
    assert after < slow_after / 2
    assert 1 - after / before > 0.2 > 1 - slow_after / slow_before


@pytest.mark.parametrize(("depth", "is_tiled"), [(254, True), (16_380, True), (16_390, False)])
def test_estimates_know_which_rows_tiles_can_read(depth: int, is_tiled: bool) -> None:
    """Rows of no whole groups of four are copied, unless a block of them is too large for that."""
    product = match(found(MODELS["dynamic"](Net(128, depth, 64)), LEVEL).signature)
    assert isinstance(product, Int8Product)
    assert (product.estimate(LEVEL) != product.estimate("x86-64-v4-bf16")) == is_tiled


@pytest.mark.parametrize(
    ("depth", "is_copied"), [(768, True), (254, True), (300, False), (16_390, False)]
)
def test_copies_of_rows_are_a_cost_of_each_slice(depth: int, is_copied: bool) -> None:
    product = match(found(MODELS["dynamic"](Net(128, depth, 64)), LEVEL).signature)
    assert isinstance(product, Int8Product)
    assert bool(product.launch(LEVEL).slice_picoseconds) == is_copied
    assert product.launch("x86-64-v4-bf16").slice_picoseconds == 0


@needs_tiles
@pytest.mark.parametrize("offset", [0, 1, 16, 63])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(70, 128, 192), (33, 64, 130), (1, 192, 160), (130, 4101, 33), (40, 66, 33)],
    ids=["blocks", "ragged", "a row", "two turns", "no groups"],
)
def test_rows_may_begin_anywhere(
    rows: int, depth: int, columns: int, offset: int, tmp_path: Path, cache: KernelCache
) -> None:
    net = Net(rows, depth, columns)
    x = net.feeds["x"]
    memory = np.full(x.nbytes + 128, 201, np.uint8)
    first = -memory.ctypes.data % 64 + offset
    net.feeds["x"] = memory[first : first + x.nbytes].reshape(x.shape)
    net.feeds["x"][...] = x
    proto = MODELS["qdq"](net)
    got = computed(net, proto, LEVEL, KernelBuild(tmp_path, cache, 2))
    np.testing.assert_array_equal(got, expected(proto, net.feeds))

"""Int8 products in tiles: blocks fetch the next panel of weights; estimates know the tiles."""

from __future__ import annotations

import pytest
from int8_models import MODELS, Net
from ortkit.custom_ops.tvm.gemm.int8 import Int8Product, match
from test_int8_product import found

from ortkit.targets import cpu

LEVEL = "x86-64-v4-amx"
#: Cache lines of the weights of a step: 16 groups of four neighbours by 32 columns.
LINES = 32

pytestmark = pytest.mark.skipif(not cpu.runs_here("x86-64-v4"), reason="no AVX-512 here")


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


def test_rows_that_tiles_cannot_read_are_estimated_without_them() -> None:
    product = match(found(MODELS["dynamic"](Net(128, 254, 64)), LEVEL).signature)
    assert isinstance(product, Int8Product)
    assert product.estimate(LEVEL) == product.estimate("x86-64-v4-bf16")

"""Which form a product takes: block sizes by error, and what is off too far by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ortkit.precision.candidates import Asked
from ortkit.precision.choosing import BLOCKS, Chooser
from ortkit.precision.data import Data
from ortkit.precision.forms import BlockInt4
from ortkit.precision.gains import Gain
from ortkit.rewrite.log import RewriteLog
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import floats, model_of

K, N = 512, 256


@pytest.fixture(autouse=True)
def not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gains(_switched: Path, chained: Sequence[bool], *_: object) -> list[Gain]:
        return [Gain(10.0, 4.0)] * len(chained)

    monkeypatch.setattr("ortkit.precision.choosing.measure_gains", gains)


def chosen(
    weight: np.ndarray, folder: Path, precision: str = "int4", x: np.ndarray | None = None
) -> tuple[object, RewriteLog]:
    """Return the form of the one product, None if it takes none, and the log."""
    x = floats(4, weight.shape[0], seed=3) if x is None else x
    write_feeds(folder / "0", {"x": x})
    sets, log = (folder / "0",), RewriteLog()
    data = Data(sets, sets, ({"x": x},), "given", is_random=False, tried=sets)
    model = model_of("g (float[n, k] x) => (float[n, m] y) { y = MatMul(x, w) }", w=weight)
    chooser = Chooser(Asked(precision, 0.9), data, folder / "work", log, lambda _: None)
    result = chooser.run(model)
    found = result.measured
    return (found[0].form if found else None), log


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_as_large_as_their_error_allows(block: int, tmp_path: Path) -> None:
    # Neighbouring blocks of rows are of sizes of their own: one scale for two serves the larger.
    rows = np.where(np.arange(K) // block % 2, np.float32(6), np.float32(1))
    weight = np.random.default_rng(0).uniform(-1, 1, (K, N)).astype(np.float32)
    form, _ = chosen(weight * rows[:, None], tmp_path)
    assert isinstance(form, BlockInt4)
    assert form.block == block


def test_a_form_of_no_use_is_refused(tmp_path: Path) -> None:
    # One weight of each column makes its steps so large that the others round to nothing, and is
    # multiplied by nothing.
    weight, x = floats(K, N), floats(4, K, seed=3)
    weight[7], x[:, 7] = 1e4, 0
    form, log = chosen(weight, tmp_path, "int8", x)
    assert form is None
    assert [miss.reason for miss in log.misses] == ["as int8 it is off by 1 itself"]

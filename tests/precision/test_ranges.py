"""Ranges in 8 bits: the one of each value that loses least."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortkit.precision.candidates import Measured
from ortkit.precision.gains import Gain
from ortkit.precision.ranges import fitted
from ortkit.precision.running import Runner
from ortkit.precision.static import Grid, StaticInt8
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import floats, model_of, products_of

NET = """g (float[1, 4, n, n] x) => (float[1, 4, n, n] y) {
  a = Conv(x, w)  r = Relu(a)  t = Tanh(r)  y = Conv(t, w)
}"""


def lost(values: np.ndarray, limits: tuple[float, float]) -> float:
    grid = Grid.of(limits)
    numbers = np.clip(np.rint(values / grid.scale) + grid.zero, 0, 255)
    return float(np.square((numbers - grid.zero) * grid.scale - values).sum())


def test_each_value_has_the_range_that_loses_least(tmp_path: Path) -> None:
    model = model_of(NET, w=np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1))
    x = floats(1, 4, 160, 160, seed=1)
    write_feeds(tmp_path / "0", {"x": x})
    runner = Runner(tmp_path / "trials", [tmp_path / "0"])
    low, high = float(x.min()), float(x.max())
    whole = {
        "x": (low, high),
        "r": (0.0, high),
        "t": (0.0, 1.0),
        "y": (0.0, 1.0),
        "no": (0.0, 1.0),
    }
    odd = {"x": (-0.5, 0.5)}
    found = fitted(runner, model, products_of(model), [whole, odd])
    # Values that nothing rounds are left out; "a" has no range, as the Relu behind it is rounded.
    assert set(found) == {"x", "r", "t", "y"}
    tried = [(part * low, part * high) for part in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)]
    best = min([*tried, (-0.5, 0.5)], key=lambda limits: lost(x, limits))
    assert found["x"] == pytest.approx(best)
    assert 0.95 * high > found["x"][1] > 0.5
    # A range that another method found, between the parts.
    parts = np.linspace(0.5, 1.0, 101)
    finest = min(((p * low, p * high) for p in parts), key=lambda limits: lost(x, limits))
    assert finest not in tried
    again = fitted(runner, model, products_of(model), [whole, {"x": finest}])
    assert again["x"] == pytest.approx(finest)


def test_equally_good_ranges_are_whole(tmp_path: Path) -> None:
    model = model_of(NET, w=floats(4, 4, 1, 1))
    write_feeds(tmp_path / "0", {"x": np.zeros((1, 4, 32, 32), np.float32)})
    runner = Runner(tmp_path / "trials", [tmp_path / "0"])
    ranges = dict.fromkeys("xry", (-1.0, 1.0))
    assert fitted(runner, model, products_of(model), [ranges]) == ranges
    assert fitted(runner, model, products_of(model), [{}]) == {}


@pytest.mark.parametrize(("reader", "saves"), [("MaxPool", True), ("AveragePool", False)])
def test_a_slower_convolution_stays_before_a_max_pool(reader: str, saves: bool) -> None:
    model = model_of(
        f"""g (float[1, 4, 8, 8] x) => (float[1, 4, m, n] y) {{
          c = Conv(x, w)  r = Relu(c)  p = {reader}<kernel_shape = [2, 2]>(r)  y = Conv(p, w)
        }}""",
        w=floats(4, 4, 1, 1),
    )
    first, last = (StaticInt8(product, {}, "minmax") for product in products_of(model))
    slower = Gain(float_us=10.0, lowered_us=20.0)
    assert ((Measured(first, 0.0, 0.0, slower).saved_us or 0) > 0) is saves
    assert (Measured(last, 0.0, 0.0, slower).saved_us or 0) < 0

"""Outliers of activations go into weights where that makes 8 bits more exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ortkit
from ortkit.precision import lowering, whole_model
from ortkit.precision.gains import Gain
from ortkit.precision.running import Runner
from ortkit.precision.smooth import factors, find_groups, smooth
from ortkit.precision.smoothing import find_smoothing
from ortkit.rewrite.log import RewriteLog
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import checked, floats, model_of, off_by, products_of, run

K = 128
TEXT = f"""g (float[n, {K}] x) => (float[n, {K}] y) {{
  h = LayerNormalization(x, scale, shift)
  q = MatMul(h, w)  k = Gemm<transB = 1>(h, v)  s = Mul(q, k)  y = MatMul(s, w)
}}"""


def model(outliers: float = 60.0) -> ir.Model:
    scale = np.ones(K, np.float32)
    scale[[3, 50]] = outliers
    weights = {name: floats(K, K, seed=ord(name), scale=K**-0.5) for name in "wv"}
    return model_of(TEXT, scale=scale, shift=floats(K, scale=0.1), **weights)


def feeds() -> np.ndarray:
    return floats(16, K, seed=3)


def test_smoothing_changes_nothing_but_rounding() -> None:
    before, after = model(), model()
    (group,) = find_groups(after, products_of(after))
    assert len(group.products) == 2
    factor = factors(group, np.where(np.arange(K) == 3, 60, 1).astype(np.float32), 0.5)
    assert factor is not None
    assert factor.argmax() == 3
    assert smooth(after, products_of(after), {group.key: factor}) == 1
    checked(after)
    x = feeds()
    assert off_by(run(before, x=x)[0], run(after, x=x)[0]) < 1e-5


def test_only_channels_that_stand_out_are_smoothed() -> None:
    (group,) = find_groups(one := model(), products_of(one))
    assert factors(group, np.full(K, 3, np.float32), 0.5) is None
    assert factors(group, np.zeros(K, np.float32), 0.5) is None


def test_norms_that_others_read_stay() -> None:
    shared = model_of(
        f"""g (float[n, {K}] x) => (float[n, {K}] y) {{
          h = LayerNormalization(x, scale)  q = MatMul(h, w)  y = Add(q, h)
        }}""",
        scale=floats(K), w=floats(K, K),
    )  # fmt: skip
    assert find_groups(shared, products_of(shared)) == []


def runner(folder: Path) -> Runner:
    write_feeds(folder / "0", {"x": feeds()})
    return Runner(folder / "trials", [folder / "0"])


def test_smoothing_is_chosen_by_error(tmp_path: Path) -> None:
    rough = model()
    found = find_smoothing(runner(tmp_path / "a"), rough, products_of(rough))
    assert list(found) == ["h"]
    even = model(outliers=1.0)
    assert find_smoothing(runner(tmp_path / "b"), even, products_of(even)) == {}


def test_a_claim_that_is_denied_is_not_done() -> None:
    one = model()
    log = RewriteLog(frozenset({"lower-precision:smooth:h"}))
    assert smooth(one, products_of(one), {"h": np.full(K, 2, np.float32)}, log) == 0
    assert not log.hits


def test_int8_is_more_exact_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ortkit.precision.choosing.measure_gains",
        lambda _switched, chained, *_: [Gain(10.0, 4.0)] * len(chained),
    )
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))

    def error(smoothing: bool) -> float:
        if not smoothing:
            monkeypatch.setattr("ortkit.precision.choosing.find_smoothing", lambda *_: {})
        options = ortkit.OptimizeOptions(precision="int8", kernels="off", max_error=0.5)
        result = ortkit.optimize(model(), options).report.precision
        assert result is not None
        assert result.lowered == 3
        assert result.smoothed == int(smoothing)
        return result.error or 1.0

    # The error is that of the worst of all input sets, also of those without large channels.
    assert error(smoothing=True) < 0.7 * error(smoothing=False)

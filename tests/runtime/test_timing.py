"""Intervals from given times, and the process that takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.runtime.timing import variants
from ortkit.runtime.timing.variants import NotTimed, Timing, Variant, speedup, time_variants
from ortkit.runtime.workers.worker import Worker

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 8] x) => (float[n, 8] y) { a = Tanh(x)  y = Add(a, x) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def inputs(folder: Path, name: str, shape: tuple[int, ...]) -> Path:
    np.savez(folder / f"{name}.npz", x=np.ones(shape, np.float32))
    return folder / f"{name}.npz"


def test_a_clear_difference_has_an_interval_off_one() -> None:
    noise = np.random.default_rng(0).normal(1, 0.02, 60)
    found = speedup((2 * noise).tolist(), noise[::-1].tolist())
    assert found.ratio == pytest.approx(2, rel=0.02)
    assert found.low is not None and found.high is not None
    assert 1.9 < found.low <= found.ratio <= found.high < 2.1
    assert found.direction == "faster"
    assert speedup(noise.tolist(), (2 * noise).tolist()).direction == "slower"


def test_noise_is_no_difference() -> None:
    random = np.random.default_rng(1)
    found = speedup(random.normal(1, 0.2, 50).tolist(), random.normal(1, 0.2, 50).tolist())
    assert found.direction == "no difference"


def test_few_rounds_have_no_interval() -> None:
    found = speedup([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (found.ratio, found.low, found.direction) == (2.0, None, "not known")


def test_rounds_are_aligned_and_the_first_is_profiled(model: Path, tmp_path: Path) -> None:
    refused = inputs(tmp_path, "refused", (2, 3))
    good = inputs(tmp_path, "good", (2, 8))
    found = time_variants(
        [Variant(model), Variant(model)], [refused, good], tmp_path,
        seconds=0.2, profile_seconds=0.1, timeout_seconds=60,
    )  # fmt: skip
    assert isinstance(found, Timing), found
    assert found.feeds == good
    first, second = found.seconds
    assert len(first) == len(second) > 1
    assert min(first + second) > 0
    assert found.profile is not None
    assert {op.op for op in found.profile.ops} == {"Tanh", "Add"}


def test_a_first_run_that_takes_long_does_not_change_the_inputs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Worker.feed
    monkeypatch.setattr(Worker, "feed", lambda *given: 1e3 + feed(*given))
    monkeypatch.setattr(variants, "_LEAST_RUNS", 0.01)  # the runs after it may take 40 s
    wanted, smaller = (inputs(tmp_path, str(rows), (rows, 8)) for rows in (4, 2))
    found = time_variants(
        [Variant(model)], [wanted, smaller], tmp_path, seconds=0.4, timeout_seconds=60
    )
    assert isinstance(found, Timing), found
    assert found.feeds == wanted


@pytest.mark.parametrize(
    ("providers", "shape", "said"),
    [
        (("CPUExecutionProvider",), (2, 3), "dimensions"),
        (("NoSuchProvider",), (2, 8), "this ONNX Runtime has no NoSuchProvider"),
    ],
)
def test_what_stops_a_session_is_the_reason(
    providers: tuple[str, ...], shape: tuple[int, ...], said: str, model: Path, tmp_path: Path
) -> None:
    found = time_variants(
        [Variant(model)], [inputs(tmp_path, "x", shape)], tmp_path,
        seconds=0.1, timeout_seconds=60, providers=providers,
    )  # fmt: skip
    assert isinstance(found, NotTimed)
    assert said in found.reason


def test_a_library_that_does_not_load_and_a_time_limit(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    feeds = [inputs(tmp_path, "x", (2, 8))]
    found = time_variants(
        [Variant(model, broken)], feeds, tmp_path, seconds=0.1, timeout_seconds=60
    )
    assert isinstance(found, NotTimed) and "broken.so" in found.reason
    late = time_variants([Variant(model)], feeds, tmp_path, seconds=60, timeout_seconds=0.01)
    assert isinstance(late, NotTimed) and "did not end within" in late.reason

"""`scripts/bench cpu`: workers that take turns, errors of outputs, and what the table says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from scripts.benches import cpu_worker
from scripts.benches.cpu_table import Row, show
from scripts.benches.cpu_turns import Engine, output_error, take_turns, this_python

MODEL = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y) {{ {} }}'


def _model(path: Path, nodes: str) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL.format(nodes)), path)
    return path


def test_variants_take_turns_and_say_what_they_compute(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "feeds.npz", x=x)
    engines = {
        "one": Engine(this_python(), "onnxruntime", _model(tmp_path / "a.onnx", "y = Neg (x)")),
        "two": Engine(this_python(), "onnxruntime", _model(tmp_path / "b.onnx", "y = Abs (x)")),
        "bad": Engine(this_python(), "onnxruntime", _model(tmp_path / "c.onnx", "y = Not (x)")),
    }
    times, problems = take_turns(
        engines, tmp_path / "feeds.npz", tmp_path, threads=1, processes=2, turns=3
    )
    assert {name: [len(turns) for turns in found] for name, found in times.items()} == {
        "one": [3, 3],
        "two": [3, 3],
    }
    assert all(seconds > 0 for found in times.values() for turns in found for seconds in turns)
    assert list(problems) == ["bad"]
    assert "INVALID_GRAPH" in problems["bad"]
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        np.testing.assert_array_equal(one["y"], -x)
        np.testing.assert_array_equal(two["y"], x)
    assert output_error(tmp_path / "one.npz", tmp_path / "two.npz") == 2.0


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ([1.0, -4.0, np.nan], 0.0),
        ([1.0, -3.0, np.nan], 0.25),
        ([1.0, -4.0, 1.0], np.inf),
        ([1.0, -4.0], np.inf),
    ],
)
def test_errors_are_parts_of_the_largest_element(
    found: list[float], error: float, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", y=np.array([1.0, -4.0, np.nan]))
    np.savez(tmp_path / "b.npz", z=np.array(found))
    assert output_error(tmp_path / "a.npz", tmp_path / "b.npz") == error


def test_a_worker_imports_nothing_of_ortkit() -> None:
    text = Path(cpu_worker.__file__).read_text(encoding="utf-8")
    assert "ortkit" not in text
    assert "scripts" not in text


def test_the_table_says_who_is_ahead_and_what_is_surely_slower(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {
        "original": [[1.0] * 4] * 3,
        "original again": [[1.0] * 4] * 3,
        "level 2": [[1.1] * 4] * 3,
        "with kernels": [[0.8] * 4] * 3,
        "openvino": [[0.9] * 4] * 3,
    }
    rows = [
        Row("m", 1, 2, times, {"with kernels": 1e-7}, ceiling=1 / 0.6),
        Row.failed("broken", "is no model"),
    ]
    show(rows)
    shown = capsys.readouterr().out
    assert "1.250 [1.250, 1.250]" in shown
    assert "50%" in shown
    assert "1 of 1" in shown
    assert "surely below 0.98: m b1 t2 level 2 0.909" in shown
    assert "broken: is no model" in shown
    written = json.dumps([row.to_json() for row in rows])
    assert json.loads(written)[0]["ratios"]["with kernels"]["value"] == 1.25

"""`scripts/bench precision`: errors of outputs, ratios, and what the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import models
from scripts.benches import corpus
from scripts.benches.precision import AGAIN, FLOAT, _rows, quantize, relative_error, show


def test_rows_have_ratios_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = np.ones((2, 8), np.float32)
    for name, value in ((FLOAT, y), (AGAIN, y), ("ortkit int8", 1.1 * y)):
        np.savez(tmp_path / f"{name}.npz", y=value, n=np.arange(3))
    times = {FLOAT: [[0.004, 0.002]], AGAIN: [[0.003]], "ortkit int8": [[0.001, 0.002]]}
    rows = _rows("m", times, {"openvino bf16": "not installed"}, tmp_path)
    assert [row.ratio for row in rows] == pytest.approx([1.0, 1.0, 2.0, None])
    assert [row.fastest_ms for row in rows] == pytest.approx([2.0, 3.0, 1.0, None])
    assert rows[2].error == pytest.approx(0.1, rel=1e-5)
    assert relative_error(tmp_path / f"{FLOAT}.npz", tmp_path / f"{AGAIN}.npz") == 0.0
    show(rows)
    printed = capsys.readouterr().out
    assert "ortkit int8" in printed
    assert "not installed" in printed
    (failed,) = _rows("m", {}, {FLOAT: "broken"}, tmp_path)
    assert failed.problem == "broken"


@pytest.mark.parametrize(
    ("name", "op"), [("bert", "MatMulInteger"), ("resnet50", "QuantizeLinear")]
)
def test_each_kind_is_quantized_as_advised(name: str, op: str, tmp_path: Path) -> None:
    onnx.save(models.build(name), tmp_path / "m.onnx")
    quantize(corpus.Entry(name, tmp_path / "m.onnx"), tmp_path / "q.onnx")
    assert op in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}

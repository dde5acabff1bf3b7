"""`scripts/bench precision`: errors of outputs, ratios, and what the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import models
from scripts.benches import corpus
from scripts.benches.precision import (
    AGAIN,
    FLOAT,
    OWN_INT8,
    PAIRS,
    Row,
    _rows,
    quantize,
    relative_error,
    show,
    show_pairs,
)


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


def test_by_default_activations_are_signed(tmp_path: Path) -> None:
    onnx.save(models.build("resnet50"), tmp_path / "m.onnx")
    quantize(corpus.Entry("m", tmp_path / "m.onnx"), tmp_path / "q.onnx", by_default=True)
    model = onnx.load(tmp_path / "q.onnx")
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    zeros = {types[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert zeros == {onnx.TensorProto.INT8}


@pytest.mark.parametrize(
    ("median_ms", "fastest_ms", "said"),
    [(2.0, 1.5, "faster"), (5.0, 4.5, "slower"), (5.0, 3.0, "as fast"), (3.9, 2.9, "as fast")],
)
def test_pairs_are_slower_only_beyond_the_noise(
    median_ms: float, fastest_ms: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours, own), *_ = PAIRS
    assert own == OWN_INT8
    rows = [
        Row("m", AGAIN, 10.0, 9.0, 1.05, 0.0),
        Row("m", ours, median_ms, fastest_ms, None, 0.01),
        Row("m", own, 4.0, 3.0, None, 0.02),
    ]
    show_pairs(rows)
    printed = capsys.readouterr().out
    assert said in printed
    assert "0.50" in printed
    show_pairs(rows[:2])
    assert capsys.readouterr().out == ""

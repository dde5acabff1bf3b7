"""`scripts/bench int8`: what multiplies bytes, agreement, and what the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.benches.int8 import MODELS, OURS, Row, Share, counted, show, top1_agreement


def graph(text: str) -> onnx.GraphProto:
    return onnx.parser.parse_model(text).graph


def test_operators_are_counted_with_their_reasons() -> None:
    model = graph(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "ortkit.fused" : 1]>
        g (float[2, 2] x, uint8[2, 2] q) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
            a = MatMul(x, w)
            b = MatMul(a, a)
            c = ortkit.fused.int8_product_0(q, b)
            y = ortkit.fused.product_1(c, w)
        }"""
    )
    inside = {"int8_product_0": ["MatMulInteger", "Cast", "Mul"], "product_1": ["MatMul", "Relu"]}
    bodies = {name: [onnx.NodeProto(op_type=op) for op in ops] for name, ops in inside.items()}
    found = counted(model, bodies)
    assert (found.on_bytes, found.on_floats) == (1, 3)
    assert set(found.why.split(", ")) == {
        "1 not quantized", "1 factors that vary", "1 float32 kernels of ortkit",
    }  # fmt: skip


def test_agreement_counts_rows(tmp_path: Path) -> None:
    scores = np.eye(4, 12, dtype=np.float32)
    np.savez(tmp_path / "a.npz", y=scores, n=np.arange(3))
    np.savez(tmp_path / "b.npz", y=np.roll(scores, [0, 1], (0, 1)) * [[0], [1], [1], [0]], n=0)
    assert top1_agreement(tmp_path / "a.npz", tmp_path / "a.npz") == 1.0
    assert top1_agreement(tmp_path / "a.npz", tmp_path / "b.npz") == 0.25
    np.savez(tmp_path / "c.npz", y=scores[:, :3])
    assert top1_agreement(tmp_path / "c.npz", tmp_path / "c.npz") is None


def test_the_table_names_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(MODELS) == 8
    share = Share(72, 24, "24 factors that vary")
    show([Row("bert", OURS, 8.0, 7.5, 3.2, 1.24, 0.017, 1.0, share)])
    printed = capsys.readouterr().out
    assert "72 of 96" in printed
    assert "24 factors that vary" in printed
    assert "100.0 %" in printed

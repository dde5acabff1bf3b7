"""`scripts/bench int8`: what multiplies bytes, agreement, and what the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.benches.int8 import MODELS, OURS, Row, show, thread_counts, top1_agreement
from scripts.benches.int8_share import Share, counted, reasons_of


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


def test_operands_that_a_cast_widens_are_bfloat16() -> None:
    model = graph(
        """<ir_version: 8, opset_import: ["" : 17, "ortkit.fused" : 1]>
        g (float[2, 2] x) => (float[2, 2] y) {
            a = ortkit.fused.bf16_product_0(x)
            b = ortkit.fused.product_1(a)
            y = ortkit.fused.cast_attention_cast_2(b)
        }"""
    )

    def body(text: str) -> list[onnx.NodeProto]:
        nodes = [part.split() for part in text.split("; ")]
        return [onnx.helper.make_node(op, inputs.split(","), [y]) for y, op, inputs in nodes]

    bodies = {
        "bf16_product_0": body("a Cast x; b Transpose w; c Cast b; d Reshape c; y MatMul x,d"),
        "product_1": body("a MatMul x,w; y Cast a"),
        "cast_attention_cast_2": body("q Cast x; a Attention q,k,v; y Cast a"),
    }
    found = counted(model, bodies, {"no faster": 3})
    assert (found.on_bytes, found.on_bf16, found.on_floats, found.total) == (0, 2, 1, 3)
    assert found.why == "2 in bfloat16, 1 float32 kernels of ortkit, no faster: 3"
    # Reasons of what was lowered in the end, as by another pass, explain nothing.
    del bodies["product_1"]
    assert counted(model, bodies, {"no faster": 3}).why == "2 in bfloat16"


def test_reasons_are_those_of_operators_that_stayed(tmp_path: Path) -> None:
    report = tmp_path / "a.json"
    assert reasons_of(report) == {}
    report.write_text(
        '{"precision": {"nodes": [{"lowered": true, "reason": ""},'
        ' {"lowered": false, "reason": "slower"}, {"lowered": false, "reason": "slower"}]}}'
    )
    assert reasons_of(report) == {"slower": 2}
    report.write_text('{"precision": null}')
    assert reasons_of(report) == {}


def test_threads_are_numbers_with_commas() -> None:
    assert thread_counts("1,2") == [1, 2]


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
    share = Share(72, 12, 24, "24 factors that vary")
    show([Row("bert", OURS, 2, 8.0, 7.5, 3.2, 1.24, 1.45, 0.017, 1.0, share)])
    printed = capsys.readouterr().out
    assert "72 of 108" in printed
    assert "1.45" in printed
    assert "24 factors that vary" in printed
    assert "100.0 %" in printed

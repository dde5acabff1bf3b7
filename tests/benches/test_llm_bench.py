"""The benchmark of language models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.benches.llm import Row
from scripts.benches.llm_models import weights_of
from scripts.benches.llm_worker import token_times


@pytest.mark.parametrize(("count", "tokens", "wanted"), [(17, 16, [2.0] * 16), (1, 0, [])])
def test_the_first_token_takes_no_time_of_its_own(
    count: int, tokens: int, wanted: list[float]
) -> None:
    times = {"predicted_n": count, "predicted_ms": 32.0 if tokens else 0.001}
    assert token_times(times, tokens) == wanted


def test_embeddings_are_read_a_row_a_token(tmp_path: Path) -> None:
    table, weight = np.zeros((100, 8), np.float32), np.zeros((8, 100), np.float32)
    initializers = [
        onnx.numpy_helper.from_array(array, name) for array, name in ((table, "t"), (weight, "w"))
    ]
    nodes = [
        onnx.helper.make_node("Gather", ["t", "ids"], ["x"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    inputs = [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["s"])]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["s", 100])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, initializers)
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    assert weights_of(tmp_path) == (6400, 3200)


def test_the_share_of_the_bandwidth() -> None:
    row = Row("a", "genai", Path(), 1, token_ms={8: [2.0]}, read={8: 10_000_000})
    assert row.shares({1: 10e9, 2: 20e9}) == [pytest.approx(0.5)]
    row.threads = 0
    assert row.shares({1: 10e9, 2: 20e9}) == [pytest.approx(0.25)]

"""The benchmark of language models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.benches.llm_models import weights_of
from scripts.benches.llm_rows import Row, merged
from scripts.benches.llm_worker import token_times
from scripts.benches.read_bandwidth import reader


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
    row = Row("a", "genai", Path(), 1, read={8: 10_000_000})
    row.add_share(8, [9.0, 2.0, 1.0], [1e9, 10e9, 20e9])
    row.add_share(8, [4.0], [10e9])
    assert row.shares == {8: [pytest.approx(0.5), pytest.approx(0.25)]}


def test_calls_are_merged() -> None:
    first, second = (
        Row(
            "a",
            "genai",
            Path("m"),
            1,
            [load],
            *({8: [ms]} for _ in range(4)),
            size,
            shares={8: [ms]},
        )
        for load, ms, size in ((5.0, 2.0, 10), (7.0, 1.0, 20))
    )
    other = Row("b", "genai", Path("m"), 0, [1.0])
    again = [Row.of(json.loads(json.dumps(each.document()))) for each in (first, second, other)]
    smallest, both = merged(again)
    assert (smallest.name, both.name) == ("b", "a")
    assert both.create_ms == [5.0, 7.0]
    assert both.resident == 20
    for times in (both.prefill_ms, both.token_ms, both.cpu_ms, both.token_cpu_ms, both.shares):
        assert times == {8: [2.0, 1.0]}


def test_memory_is_read() -> None:
    with reader() as memory:
        rates = memory.rates(2, passes=3)
    assert len(rates) == 3
    assert all(1e8 < rate < 1e13 for rate in rates)

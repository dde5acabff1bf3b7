"""Several run calls at a time: throughput and percentiles."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortkit.comparison import concurrency
from ortkit.comparison.comparing import CompareOptions, compare_models
from ortkit.errors import UserError
from ortkit.runtime.workers.interleave import Schedule

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[batch, 8] x) => (float[batch, 8] y) { y = Tanh(x) }"""


def test_each_number_of_callers_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    schedule = Schedule(seconds=0.06, processes=1)
    options = CompareOptions(batches=(2,), concurrency=(1, 3), schedule=schedule)
    (batch,) = compare_models([path, path], options).batches
    for row in batch.rows:
        assert row.memory is not None
        assert row.memory.not_available == ()
        assert [item.callers for item in row.concurrency] == [1, 3]
        for one in row.concurrency:
            assert 0 < one.p50 <= one.p90 <= one.p99
            assert one.runs >= concurrency._TURNS * one.callers
            assert one.items_per_second == 2 * one.per_second
        assert row.to_json()["concurrency_ms"]


@pytest.mark.parametrize("callers", [0, 257])
def test_a_senseless_number_is_refused(callers: int) -> None:
    with pytest.raises(UserError, match=r"^concurrency: .* at a time; give 1 to 256$"):
        CompareOptions(concurrency=(callers,))

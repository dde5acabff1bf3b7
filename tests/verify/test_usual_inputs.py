"""Input sets for models in lower precision: usual numbers, and rows enough to see a scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from lowered_forms import FORMS, ORIGINAL, SIZE, model

from ortkit.cli.main import run
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.usual import usual_plans

MASKED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[batch, seq, 4] x, int64[batch, seq] attention_mask) => (float[batch, seq, 4] y) {
  m = Cast<to = 1>(attention_mask)  o = Constant<value_ints = [-1]>()  u = Unsqueeze(m, o)
  y = Mul(x, u)
}"""
FILTERS = """<ir_version: 10, opset_import: ["" : 21]>
g (float[batch, 256, 64, 64] x, float[512, 256, 3, 3] w) => (float[batch, 512, 62, 62] y) {
  y = Conv(x, w)
}"""
FIXED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 4] x) => (float[2, 4] y) { y = Sigmoid(x) }"""


def plans(text: str | ir.Model, **shapes: int) -> tuple[Plan, ...]:
    parsed = ir.from_proto(onnx.parser.parse_model(text)) if isinstance(text, str) else text
    return usual_plans(FeedMaker.of(parsed, shapes), parsed, "quick", 0)


def test_one_set_has_many_rows() -> None:
    assert [each.sizes["n"] for each in plans(ORIGINAL)] == [64, 3, 1, 2]
    assert [each.sizes["n"] for each in plans(ORIGINAL, n=5)] == [5, 5, 5, 5]


def test_as_many_as_take_little_time() -> None:
    # 9e9 operations for each row: none is added to the two that are there anyway.
    assert [each.sizes["batch"] for each in plans(FILTERS)] == [2, 3, 1, 2]


def test_numbers_are_usual() -> None:
    found = plans(MASKED)
    assert {each.floats for each in found} == {"normal"}
    assert {"left", "holes"} < {each.mask for each in found} <= {"left", "right", "holes"}
    assert {each.sizes["seq"] for each in found} >= {1, 33, 131}
    assert not any(each.is_extreme for each in found)
    assert {each.floats for each in plans(FIXED)} == {"normal"}


@pytest.mark.parametrize(
    # Sums of 7 bits do not saturate in ONNX Runtime, whatever processor runs this.
    ("form", "factor", "precision"),
    [("dynamic, 7 bits", 1.05, "int8"), ("4 bits", 2.0, "int4")],
)
def test_a_scale_that_is_off_is_found_where_only_a_batch_is_free(
    form: str, factor: float, precision: str, tmp_path: Path
) -> None:
    nodes, arrays = FORMS[form]
    original, good, bad = (tmp_path / f"{name}.onnx" for name in ("original", "good", "bad"))
    ir.save(ORIGINAL, original)
    ir.save(model(nodes, arrays), good)
    assert run(["verify", str(original), str(good), "--precision", precision]) == 0
    for column in (3, SIZE - 1):
        scales = arrays["s"].copy().reshape(SIZE, -1)
        scales[column, 0] *= np.float32(factor)
        ir.save(model(nodes, {**arrays, "s": scales.reshape(arrays["s"].shape)}), bad)
        assert run(["verify", str(original), str(bad), "--precision", precision]) == 1

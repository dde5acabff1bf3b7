"""NonMaxSuppression becomes a region where its operands are what its kernel reads."""

from __future__ import annotations

import onnx.parser
import pytest
from ortkit.custom_ops.tvm.detection.non_max_suppression import ANCHOR
from region_models import found_by, scope_of

from ortkit.fusion.regions.duplicate import Candidate
from ortkit.graph.io.open import open_model
from ortkit.kernels.build.library import refusal
from ortkit.kernels.counted_sizes import counted_size
from ortkit.targets import cpu
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


def found(
    limits: str = "most, iou, threshold",
    given: str = "int64[1] most, float[1] iou, float[1] threshold",
    rows: str = "found",
) -> Candidate:
    """Return the candidate of a model of one selection with these limits."""
    proto = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[b, n, 4] boxes, float[b, c, n] scores{"," if given else ""} {given})
      => (int64[{rows}, 3] y) {{
      k = Constant <value: tensor = int64[1] {{100}}> ()
      half = Constant <value: tensor = float[1] {{0.5}}> ()
      y = NonMaxSuppression (boxes, scores{"," if limits else ""} {limits})
    }}""")
    (one,) = found_by(
        ANCHOR, scope_of(open_model(proto)), lambda each: refusal(each, Target("cpu", "x86-64-v3"))
    )
    return one


@pytest.mark.parametrize(
    ("limits", "given"),
    [
        ("most, iou, threshold", "int64[1] most, float[1] iou, float[1] threshold"),
        ("most, iou", "int64 most, float iou"),
        ('most, "", threshold', "int64[1] most, float[1] threshold"),
        ("k, half, half", ""),
        ("k, half, threshold", "float[1] threshold"),
        ("", ""),
    ],
)
def test_limits_are_inputs_constants_or_not_there(limits: str, given: str) -> None:
    signature = found(limits, given).signature
    assert signature is not None
    assert counted_size(signature) == signature.outputs[0].shape[0]


def test_limits_of_other_shapes_and_rows_of_a_known_number() -> None:
    one = found("most, iou", "int64[2] most, float[1] iou")
    assert one.signature is None
    assert "operand 2 has the shape [2]" in one.reason
    assert "rows of a number that is known before" in found(rows="7").reason

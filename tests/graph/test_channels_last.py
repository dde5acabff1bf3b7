"""Values named `x/nhwc` beside the model that has `x`."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortkit.graph.analysis.channels_last import restore_channels_first

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
ORIGINAL = f"""{HEADER}
g (float[1,3,4,5] x) => (float[1,3,4,5] y, float[1,3,4,5] d) {{
  c = Relu(x)
  d = Abs(c)
  y = Neg(c)
}}"""
#: `c` is read in both layouts, and first in NHWC.
CANDIDATE = f"""{HEADER}
g (float[1,3,4,5] x) => (float[1,3,4,5] y, float[1,3,4,5] d) {{
  t = Transpose<perm = [0, 2, 3, 1]>(x)
  "c/nhwc" = Relu(t)
  "d/own" = Abs("c/nhwc")
  d = Transpose<perm = [0, 3, 1, 2]>("d/own")
  c = Transpose<perm = [0, 3, 1, 2]>("c/nhwc")
  y = Neg(c)
}}"""


def test_consumers_of_a_value_in_both_layouts_read_it_in_the_usual_one() -> None:
    original, candidate = (
        ir.from_proto(onnx.parser.parse_model(text)) for text in (ORIGINAL, CANDIDATE)
    )
    restore_channels_first(candidate, original)
    onnx.checker.check_model(ir.to_proto(candidate), full_check=True)
    by_name = {value.name: node for node in candidate.graph for value in node.outputs}
    again = by_name["d/own"].inputs[0]
    assert again is not None
    source = again.producer()
    assert source is not None
    assert [value.name for value in source.inputs if value is not None] == ["c"]
    readers = [node.op_type for node in by_name["c"].outputs[0].consumers()]
    assert sorted(readers) == ["Neg", "Transpose"]

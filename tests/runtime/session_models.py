"""Small models for sessions, as ONNX text."""

from __future__ import annotations

import onnx
import onnx.parser

ADD = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x, float[n, 4] z) => (float[n, 4] y) { y = Add(x, z) }
"""
TANH = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y) { y = Tanh(x) }
"""
TWO_OUTPUTS = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y, int64[2] s) { y = Tanh(x)  s = Shape(x) }
"""
BFLOAT16 = """<ir_version: 10, opset_import: ["" : 20]>
g (bfloat16[n] x) => (bfloat16[n] y, float[n] z) { y = Identity(x)  z = Cast<to = 1>(x) }
"""
INTEGERS = """<ir_version: 10, opset_import: ["" : 20]>
g (int32[n] x) => (int32[n] y) { y = Identity(x) }
"""
STRINGS = """<ir_version: 10, opset_import: ["" : 20]>
g (string[n] x) => (string[n] y) { y = Identity(x) }
"""
SEQUENCE = """<ir_version: 10, opset_import: ["" : 20]>
g (seq(float[n]) x) => (float[m] y) { y = ConcatFromSequence<axis = 0>(x) }
"""
OPTIONAL = """<ir_version: 10, opset_import: ["" : 20]>
g (optional(float[n]) x) => (bool y) { y = OptionalHasElement(x) }
"""
DEFAULT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[4] x, float[4] w) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }
"""
NONZERO = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (int64[1, m] y) { y = NonZero(x) }
"""
#: Fails while it runs: no 3 rows make 4.
BAD_RESHAPE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x, int64[1] s) => (float[m] y) { y = Reshape(x, s) }
"""
#: As many bytes as the machine never has: 2^44 floats.
HUGE = """<ir_version: 10, opset_import: ["" : 20]>
g (int64[2] s) => (float[a, b] y) { y = ConstantOfShape(s) }
"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def size_model(features: int) -> onnx.ModelProto:
    """A MatMul with a weight of [features, features] floats of zero."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, {features}] x) => (float[n, {features}] y) {{ y = MatMul(x, w) }}"""
    parsed = onnx.parser.parse_model(text)
    weight = parsed.graph.initializer.add(name="w", data_type=1, dims=[features, features])
    weight.raw_data = bytes(4 * features * features)
    return parsed

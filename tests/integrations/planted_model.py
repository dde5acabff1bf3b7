"""A small model that several tests write."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

_TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 8] x) => (float[n, 8] y) { a = Identity(x)  y = Relu(a) }"""


def write_model(path: Path) -> None:
    """Write a model with the input x of shape [n, 8] and the output y = max(x, 0)."""
    onnx.save(onnx.parser.parse_model(_TEXT), path)

"""Small models and inputs for the tests of worker processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 8] x) => (float[n, 8] y) { a = Tanh(x)  y = Add(a, x) }
"""


def save(folder: Path, text: str = TEXT, name: str = "m.onnx") -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name


def save_inputs(folder: Path, shape: tuple[int, ...] = (2, 8), name: str = "x.npz") -> Path:
    np.savez(folder / name, x=np.ones(shape, np.float32))
    return folder / name

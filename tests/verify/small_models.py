"""Small models for the verification tests, written as ONNX text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper


def proto(text: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Parse a graph in ONNX text (`g (...) => (...) {...}`) and add initializers."""
    head = '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
    model = onnx.parser.parse_model(head + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def model(text: str, weights: Mapping[str, np.ndarray] | None = None) -> ir.Model:
    """As `proto`, as an onnx-ir model."""
    return ir.from_proto(proto(text, weights))


def save(folder: Path, name: str, built: onnx.ModelProto) -> Path:
    """Write a model to `folder`."""
    path = folder / f"{name}.onnx"
    onnx.save(built, path)
    return path


def random_weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw float32 weights that keep the size of what they multiply."""
    scale = 1 / np.sqrt(shape[0])
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)

"""Read a graph as ONNX Runtime writes it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir import external_data

from ortkit.graph.io.convert import to_ir
from ortkit.graph.io.unsupported import carry, needs_carrying


def read_written(path: Path) -> ir.Model:
    """Return the model that ONNX Runtime has written to `path`, to look at.

    It is not checked as `open_model` checks: such graphs hold operators and layouts that only
    ONNX Runtime has.

    Raises:
        ModelError: onnx-ir cannot hold it.
        OSError: It cannot be read.
    """
    proto = onnx.load(path, load_external_data=False)
    if needs_carrying(proto):
        carry(proto, str(path))
    model = to_ir(proto, str(path))
    external_data.set_base_dir(model.graph, path.parent)
    return model

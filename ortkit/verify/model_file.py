"""Models as files that a process of verification loads within its memory."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.io.text import is_text_suffix

#: ONNX Runtime holds a file of this size twice while it loads it, and maps data beside it.
_LARGE_FILE = 32 << 20


def as_file(model: Path | ir.Model, folder: Path) -> Path:
    """Return a model as a file that ONNX Runtime reads, without large weights inside of it.

    Args:
        model: A file, which may be just that, or a model.
        folder: Made for another file if there must be one.
    """
    if not isinstance(model, ir.Model):
        is_text = is_text_suffix(model.suffix)
        if not is_text and (not model.exists() or model.stat().st_size < _LARGE_FILE):
            return model
        opened = open_model(model)
        if not is_text and any(node.op_type == "EPContext" for node in opened.graph):
            return model  # it names files in its folder
        model = opened
    folder.mkdir()
    return save_model(model, folder / "model.onnx", external_data=True, is_temporary=True).model

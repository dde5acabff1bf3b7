"""Where a model came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

_KEY = "ortkit.source"


@dataclass(frozen=True)
class Source:
    """What was opened; kept with the model and never saved into it."""

    path: Path | None
    """None if the model came from memory."""
    size_bytes: int
    """Of the model file or the serialized bytes, without external data; 0 if not known."""
    external_files: tuple[Path, ...] = ()
    """The files that hold its external data."""
    dropped: tuple[str, ...] = ()
    """What the model held and onnx-ir cannot, for the report."""

    @property
    def had_external_data(self) -> bool:
        return bool(self.external_files)


def set_source(model: ir.Model, source: Source) -> None:
    """Attach `source` to `model`."""
    model.meta[_KEY] = source


def source_of(model: ir.Model) -> Source | None:
    """Return where `model` was opened from, or None if `open_model` did not make it."""
    found = model.meta.get(_KEY)
    return found if isinstance(found, Source) else None

"""What a session is made from: a file, bytes, or a model in memory written to a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx
import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.io.header import Header, checked_header, read_header
from ortkit.graph.io.open import ModelSource, open_model, path_of
from ortkit.graph.io.save import save_model
from ortkit.graph.io.text import is_text_suffix


@runtime_checkable
class Saveable(Protocol):
    """A model with a kernel library, such as `ortkit.optimize` returns."""

    @property
    def library(self) -> Path | None: ...
    def save(self, path: str) -> tuple[Path, ...]: ...


@dataclass(frozen=True)
class Loadable:
    """A model as ONNX Runtime takes it."""

    content: Path | bytes
    header: Header

    @property
    def where(self) -> str:
        """The model, for messages."""
        return str(self.content) if isinstance(self.content, Path) else "model"


def loadable(source: ModelSource | Saveable, scratch: Callable[[], Path]) -> Loadable:
    """Bring a model into a form that ONNX Runtime loads.

    Args:
        source: A path, bytes, a protobuf, an `ir.Model`, or what `ortkit.optimize` returned.
        scratch: Gives a folder that lives as long as the session, for models in memory.

    Raises:
        ModelError: There is no such file, it is no model, or one that ONNX Runtime would hang on.
    """
    if isinstance(source, onnx.ModelProto):
        return Loadable(_serialized(source), checked_header(source, "model"))
    if isinstance(source, bytes | bytearray | memoryview):
        return _checked(bytes(source))
    if isinstance(source, ir.Model):
        return _written(source, scratch() / "model.onnx")
    if isinstance(source, Saveable):
        path = scratch() / "model.onnx"
        source.save(str(path))
        return _checked(path)
    path = path_of(source)
    if is_text_suffix(path.suffix):
        return _written(open_model(path), scratch() / "model.onnx")
    return _checked(path)


def header_at(path: Path) -> Header:
    """Return the header of a model's file.

    Raises:
        ModelError: There is no such file, or it is no model.
    """
    return _checked(path).header


def _checked(content: Path | bytes) -> Loadable:
    where = str(content) if isinstance(content, Path) else "model"
    try:
        header = read_header(content, where)
    except (OSError, ValueError):
        header = None
    if header is None:
        # Says what is wrong with it; what is fine but unusual comes back as a model.
        model = open_model(content)
        header = Header(
            dict(model.metadata_props),
            dict(model.opset_imports),
            frozenset((domain, name) for domain, name, _ in model.functions),
            model.ir_version,
        )
    return Loadable(content, header)


def _written(model: ir.Model, path: Path) -> Loadable:
    save_model(model, path)
    return _checked(path)


def _serialized(proto: onnx.ModelProto) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:
        raise ModelError(
            "is larger than 2 GB and cannot be serialized",
            where="model",
            fix="save it with external data and give the path",
        ) from error

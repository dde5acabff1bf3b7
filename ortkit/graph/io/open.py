"""Open a model from a file or from memory: checked, private, its large tensors left in place."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from ortkit.errors import ModelError
from ortkit.graph.check.model import check_model, check_proto
from ortkit.graph.io.convert import first_line, paused_collector, to_ir
from ortkit.graph.io.data_file import Bytes, DataFile, Span
from ortkit.graph.io.diagnose import not_a_model
from ortkit.graph.io.external import ExternalFolder, map_external_data
from ortkit.graph.io.file_tensors import InFileTensor, TensorFacts, in_memory
from ortkit.graph.io.framing import Buffer, Framed, parse_without_large_tensors
from ortkit.graph.io.origin import Source, set_source, source_of
from ortkit.graph.io.private import SharedProtoTensor, detach_tensors, private_proto
from ortkit.graph.io.shadowed import drop_shadowed
from ortkit.graph.io.text import is_text_suffix, parse_text
from ortkit.graph.io.unsupported import Carried, carry, needs_carrying

# Below this, copying a file is cheaper than looking for its large tensors.
_FRAMED_BYTES = 1 << 20

_Data = Span | Bytes | TensorProto
"""Where the bytes of a large tensor are: in a file, in memory, in the caller's protobuf."""

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto | ir.Model


@dataclass(frozen=True)
class _Origin:
    """Where a model comes from while it is being opened."""

    where: str
    folder: Path
    path: Path | None = None
    size_bytes: int = 0


def open_model(source: ModelSource, *, folder: str | os.PathLike[str] | None = None) -> ir.Model:
    """Return a checked private copy of a model; tensors are shared with `source`, never changed.

    External data is mapped, and the large tensors of a single file stay in the file until they
    are used. Neither may be rewritten in place meanwhile (replacing the files is fine). Files
    named .onnxtxt, .onnxtext or .txt are ONNX text, .textproto, .txtpb, .pbtxt and .prototxt are
    protobuf text, .json and .onnxjson are JSON; all others are protobuf.

    Args:
        source: A path, the bytes of a model file, or a model in memory.
        folder: Where external data lies if `source` is no path; default: the current folder.

    Raises:
        ModelError: There is no such file, it is no valid model, or its external data is missing,
            too short or outside of the model's folder.
    """
    beside = Path(folder) if folder is not None else Path()
    with paused_collector():
        if isinstance(source, ir.Model):
            return _open_ir(source, beside)
        if isinstance(source, ModelProto):
            return _open_proto(source, beside)
        if isinstance(source, bytes | bytearray | memoryview):
            return _open_bytes(bytes(source), beside)
        return _open_path(path_of(source))


def path_of(source: str | os.PathLike[str]) -> Path:
    """Return a source as a path.

    Raises:
        ModelError: It is nothing that a model is opened from.
    """
    try:
        return Path(source)
    except TypeError:
        raise ModelError(
            f"{type(source).__name__} is no model", fix="give a path, bytes or an ONNX model"
        ) from None


def _open_ir(source: ir.Model, folder: Path) -> ir.Model:
    check_model(source)
    model = source.clone()
    detach_tensors(model)
    drop_shadowed(model)
    origin = source_of(source) or Source(path=None, size_bytes=0)
    files = map_external_data(model, ExternalFolder(folder, origin.path, "model"))
    set_source(model, Source(origin.path, origin.size_bytes, files, origin.dropped))
    return model


def _open_proto(source: ModelProto, folder: Path) -> ir.Model:
    proto, shared = private_proto(source)
    return _build(proto, shared, _Origin("model", folder))


def _open_bytes(data: bytes, folder: Path) -> ir.Model:
    origin = _Origin("model bytes", folder, size_bytes=len(data))
    framed = _parse(data, origin.where)
    array = np.frombuffer(data, np.uint8)
    large: dict[int, _Data] = {
        index: array[offset : offset + length] for index, (offset, length) in framed.large.items()
    }
    return _build(framed.proto, large, origin)


def _open_path(path: Path) -> ir.Model:
    try:
        size = _size_of(path)
        origin = _Origin(str(path), path.parent, path, size)
        if is_text_suffix(path.suffix):
            proto = parse_text(path.read_bytes(), path.suffix, str(path))
            return _build(proto, {}, origin)
        if size < _FRAMED_BYTES:
            return _build(_parse(path.read_bytes(), str(path)).proto, {}, origin)
        file = DataFile(path)
        file.hold()
        with file.opened() as descriptor:
            buffer = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        with buffer:
            framed = _parse(buffer, str(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    large: dict[int, _Data] = {index: Span(file, *span) for index, span in framed.large.items()}
    return _build(framed.proto, large, origin)


def _size_of(path: Path) -> int:
    """Return the size of the file, or say why it is no file to read a model from."""
    try:
        found = path.stat()
    except ValueError as error:  # a null byte
        raise ModelError("not a file name", where=repr(str(path)), fix="name a file") from error
    if stat.S_ISDIR(found.st_mode):
        inside = sorted(entry.name for entry in path.glob("*.onnx") if entry.is_file())
        hint = f"name a file in it, such as {inside[0]}" if inside else "name a file"
        raise ModelError("is a folder", where=str(path), fix=hint)
    if not stat.S_ISREG(found.st_mode):
        raise ModelError("is no regular file", where=str(path), fix="name a file")
    return found.st_size


def _unreadable(path: Path, error: OSError) -> ModelError:
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return ModelError(
                f"is a link to {path.readlink()}, which is missing",
                where=str(path),
                fix="check what it links to",
            )
        try:
            names = [entry.name for entry in path.parent.iterdir() if entry.exists()]
        except OSError:
            names = []
        near = get_close_matches(path.name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "check the path"
        return ModelError("no such file", where=str(path), fix=hint)
    return ModelError(
        f"cannot be read: {error.strerror or error}",
        where=str(path),
        fix="check the path and its permissions",
    )


def _parse(buffer: Buffer, where: str) -> Framed:
    """Parse a serialized model; large tensors stay in `buffer`."""
    if len(buffer) == 0:
        raise not_a_model(buffer, where)
    try:
        framed = parse_without_large_tensors(buffer) if len(buffer) >= _FRAMED_BYTES else None
        if framed is None:
            framed = Framed(ModelProto(), {})
            framed.proto.ParseFromString(bytes(buffer))
    except UnicodeDecodeError as error:  # only where protobuf is written in Python
        raise not_a_model(buffer, where, "a text in it is not UTF-8 text") from error
    except (DecodeError, ValueError) as error:  # ValueError: more than 2 GB
        raise not_a_model(buffer, where, first_line(error)) from error
    # Protobuf takes many bytes that are no model: unknown fields are no error to it.
    if not framed.proto.HasField("graph") or not framed.proto.HasField("ir_version"):
        raise not_a_model(buffer, where)
    return framed


def _build(proto: ModelProto, large: Mapping[int, _Data], origin: _Origin) -> ir.Model:
    """Turn a protobuf that nobody else uses into a checked model."""
    if not proto.graph.node and not proto.graph.output:
        raise ModelError("the graph is empty", where=origin.where, fix="export the model again")
    if not proto.graph.output:
        raise ModelError(
            "the graph has no outputs", where=origin.where, fix="export the model again"
        )
    lengths = {index: _length(data) for index, data in large.items()}
    is_sorted = check_proto(proto, lengths, origin.where)
    carried = Carried({}, {}, ())
    if needs_carrying(proto):
        carried = carry(proto, origin.where)
    model = to_ir(proto, origin.where)
    carried.attach(model.graph)
    for value, info in zip(model.graph.inputs, proto.graph.input, strict=True):
        if value.is_graph_output():  # onnx-ir took the output's type, which may say less
            ir.serde.deserialize_value_info_proto(info, value)
    for index, data in large.items():
        header = proto.graph.initializer[index]
        model.graph.initializers[header.name].const_value = _large_tensor(header, data)
    _settle(model, is_sorted)
    external = ExternalFolder(origin.folder, origin.path, origin.where)
    files = map_external_data(model, external)
    set_source(model, Source(origin.path, origin.size_bytes, files, carried.dropped))
    return model


def _length(data: _Data) -> int:
    if isinstance(data, Span):
        return data.length
    return len(data.raw_data) if isinstance(data, TensorProto) else data.nbytes


def _large_tensor(header: TensorProto, data: _Data) -> ir.TensorProtocol:
    if isinstance(data, TensorProto):
        return SharedProtoTensor(data)
    facts = TensorFacts(
        header.name,
        ir.DataType(header.data_type),
        ir.Shape(header.dims),
        header.doc_string,
        {entry.key: entry.value for entry in header.metadata_props},
    )
    return InFileTensor(data, facts) if isinstance(data, Span) else in_memory(data, facts)


def _settle(model: ir.Model, is_sorted: bool) -> None:
    """Bring what may be spelled in two ways into one: the default domain, the order of nodes."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        version = body.opset_imports.pop("ai.onnx", None)
        if version is not None:
            body.opset_imports[""] = version
        if not is_sorted:
            body.sort()
    drop_shadowed(model)

"""External data: find the file that a model names, refuse what it must not name, map it."""

from __future__ import annotations

import ntpath
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx_ir as ir
from onnx import AttributeProto, ModelProto, TensorProto
from onnx.external_data_helper import uses_external_data

from ortkit.errors import ModelError
from ortkit.graph.check.tensors import bytes_of, external_entries, tensors_of
from ortkit.graph.io.data_file import DataFile, Span
from ortkit.graph.io.file_tensors import MappedTensor
from ortkit.graph.walk import all_graphs


@dataclass(frozen=True)
class ExternalFolder:
    """Where a model's external data may lie."""

    folder: Path
    model_path: Path | None
    """The model's own file; a link to it also opens the folder that it really lies in, because
    download caches keep model and data as links to one folder."""
    where: str
    """Where the model came from, for messages."""

    def roots(self) -> tuple[str, ...]:
        """Return the real folders that data files must lie in."""
        roots = [os.path.realpath(self.folder)]
        if self.model_path is not None:
            roots.append(os.path.dirname(os.path.realpath(self.model_path)))  # noqa: PTH120
        return tuple(dict.fromkeys(roots))


def map_external_data(model: ir.Model, external: ExternalFolder) -> tuple[Path, ...]:
    """Replace the external tensors of `model`, also inside it, by mapped ones.

    Returns:
        The data files.

    Raises:
        ModelError: A file is missing, too short, or not inside the model's folder.
    """
    mapper = _Mapper(external)
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = mapper.map(value.const_value)
        for node, attribute in _tensor_attributes(graph):
            node.attributes[attribute.name] = mapper.map_attribute(attribute)
    return tuple(file.path for file in mapper.files.values())


def check_locations(model: ModelProto, external: ExternalFolder) -> None:
    """Check where the external tensors of a protobuf lie, without mapping them.

    A file that is missing or too short is no fault here: whoever loads the model says so.

    Raises:
        ModelError: One does not lie inside the model's folder, or is no regular file: to open a
            FIFO or a device would block.
    """
    roots = external.roots()
    known: set[str] = set()
    for tensor in _external_tensors(model):
        location = external_entries(tensor).get("location", "")
        if location not in known:
            known.add(location)
            path = _located(location, tensor.name, external.folder, roots, external.where)
            if path.exists() and not path.is_file():
                raise _no_file(location, tensor.name, external.where)


def _external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    waiting = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while waiting or nodes:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                    waiting += [attribute.g, *attribute.graphs]
            yield from filter(uses_external_data, tensors_of(node))
        nodes = []
        if waiting:
            graph = waiting.pop()
            yield from filter(uses_external_data, graph.initializer)
            nodes = list(graph.node)


def _located(
    location: str, name: str | None, folder: Path, roots: tuple[str, ...], where: str
) -> Path:
    """Return the path of a data file, which lies inside one of the folders `roots`."""
    fault = _location_fault(location)
    path = folder / location
    if not fault and not _is_inside(path, roots):
        fault = "leads out of the model's folder"
    if fault:
        raise ModelError(
            f"external data location {location!r} of tensor {name!r} {fault}",
            where=where,
            fix="do not trust this file, or save its data beside the model",
        )
    return path


def _no_file(location: str, name: str | None, where: str) -> ModelError:
    return ModelError(
        f"external data {location!r} of tensor {name!r} is no regular file",
        where=where,
        fix="do not trust this file, or save its data beside the model",
    )


def _tensor_attributes(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for node in graph:
        for attribute in list(node.attributes.values()):
            if not attribute.is_ref() and _holds_external(attribute):
                yield node, attribute


def _holds_external(attribute: ir.Attr) -> bool:
    if attribute.type == ir.AttributeType.TENSOR:
        # Not as_tensor(), whose check of a protocol is slow before Python 3.12.
        return isinstance(attribute.value, ir.ExternalTensor)
    if attribute.type == ir.AttributeType.TENSORS:
        return any(isinstance(tensor, ir.ExternalTensor) for tensor in attribute.as_tensors())
    return False


class _Mapper:
    def __init__(self, external: ExternalFolder) -> None:
        self.external = external
        self.roots = external.roots()
        self.files: dict[tuple[str, str], DataFile] = {}

    def map_attribute(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.type == ir.AttributeType.TENSOR:
            return ir.AttrTensor(attribute.name, self._maybe(attribute.as_tensor()))
        return ir.AttrTensors(attribute.name, [self._maybe(t) for t in attribute.as_tensors()])

    def _maybe(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return self.map(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor

    def map(self, tensor: ir.ExternalTensor) -> MappedTensor:
        if isinstance(tensor, MappedTensor):
            self.files.setdefault(("", str(tensor.span.file.path)), tensor.span.file)
            return tensor
        base = os.fspath(tensor.base_dir)  # the caller's own onnx-ir models say where they are
        folder = Path(base) if base else self.external.folder
        file = self._file(tensor, folder, (os.path.realpath(base),) if base else self.roots)
        offset = tensor.offset or 0
        length = bytes_of(tensor.dtype, tensor.size)
        if offset + length > file.size_bytes:
            raise ModelError(
                f"tensor {tensor.name!r} lies at bytes {offset} to {offset + length}"
                f" of {os.fspath(tensor.location)!r}, which has {file.size_bytes}",
                where=self.external.where,
                fix="copy the data file again; it is cut off or belongs to another model",
            )
        return MappedTensor(Span(file, offset, length), tensor, folder)

    def _file(self, tensor: ir.ExternalTensor, folder: Path, roots: tuple[str, ...]) -> DataFile:
        location = os.fspath(tensor.location)
        found = self.files.get((str(folder), location))
        if found is not None:
            return found
        path = _located(location, tensor.name, folder, roots, self.external.where)
        self.files[str(folder), location] = file = self._open(path, location, tensor.name)
        return file

    def _open(self, path: Path, location: str, name: str) -> DataFile:
        try:
            return DataFile(path)
        except FileNotFoundError as error:
            raise ModelError(
                f"external data file {location!r} of tensor {name!r} is missing"
                f" (looked in {path.parent})",
                where=self.external.where,
                fix="put it beside the model; model and data belong together",
            ) from error
        except OSError as error:
            raise ModelError(
                f"external data file {location!r} cannot be read: {error.strerror}",
                where=self.external.where,
                fix="check the file and its permissions",
            ) from error


def _is_inside(path: Path, roots: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    return any(real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def _location_fault(location: str) -> str:
    if not location or "\0" in location:
        return "is no file name"
    if posixpath.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        return "is absolute"
    if ".." in PurePosixPath(location.replace("\\", "/")).parts:
        return "leads out of the model's folder"
    return ""

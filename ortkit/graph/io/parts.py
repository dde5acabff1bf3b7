"""Parts of a model whose weights stay where they are, in a data file that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto

from ortkit.graph.check.tensors import bytes_of
from ortkit.graph.io.encode import header_of, initializers_of, skeleton, whole_tensor
from ortkit.graph.io.file_tensors import MappedTensor
from ortkit.graph.io.layout import inline, nested_external
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model

#: Smaller tensors are copied into each part.
_SHARED_FROM_BYTES = 64 << 10


def share_weights(model: ir.Model, path: Path) -> Path:
    """Return the folder of the data files that parts of a model refer to.

    Weights that are in memory, inside of a model file, or in several folders are written to one
    data file, and the model's tensors become those of that file, in place.

    Args:
        model: Its initializers keep their numbers.
        path: A model file, written with its data file if that is necessary.
    """
    tensors = list(_shared(model))
    folders = {_folder(tensor) for tensor in tensors}
    if len(folders) == 1 and (folder := folders.pop()) is not None:
        return folder
    if tensors:
        save_model(model, path, external_data=True, is_temporary=True)
        stored = open_model(path).graph.initializers
        for name, value in model.graph.initializers.items():
            if isinstance(tensor := stored[name].const_value, MappedTensor):
                value.const_value = tensor
    return path.parent.absolute()


def write_part(model: ir.Model, path: Path, folder: Path) -> Path:
    """Write a part of a model, with references to the weights that lie in a folder.

    Args:
        model: A copy of a model for which `share_weights` was called, without some nodes.
        path: The file to write.
        folder: What `share_weights` returned.
    """
    proto = skeleton(model)
    for name, tensor in initializers_of(model.graph):
        is_shared = isinstance(tensor, MappedTensor) and _folder(tensor) == folder
        made = _reference(tensor, name) if is_shared else whole_tensor(tensor, name)
        proto.graph.initializer.append(made)
    for nested, header in nested_external(model, proto):
        inline(header, nested)
    path.write_bytes(proto.SerializeToString())
    return path


def _shared(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for _, tensor in initializers_of(model.graph):
        is_text = tensor.dtype == ir.DataType.STRING
        if not is_text and bytes_of(tensor.dtype, tensor.size) >= _SHARED_FROM_BYTES:
            yield tensor


def _folder(tensor: ir.TensorProtocol) -> Path | None:
    """Return the folder that the place of a tensor's data is relative to; None if it has none."""
    return Path(tensor.base_dir).absolute() if isinstance(tensor, MappedTensor) else None


def _reference(tensor: ir.TensorProtocol, name: str) -> TensorProto:
    assert isinstance(tensor, MappedTensor)
    header = header_of(tensor, name)
    header.data_location = TensorProto.EXTERNAL
    entry = {"location": tensor.location, "offset": tensor.offset, "length": tensor.length}
    for key, value in entry.items():
        header.external_data.add(key=key, value=str(value))
    return header

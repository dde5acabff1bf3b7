"""Save a model: whole or not at all, and without holding its weights in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto

from ortkit.errors import UserError
from ortkit.graph.check.tensors import bytes_of
from ortkit.graph.io.atomic import Draft, FileSet, check_target
from ortkit.graph.io.data_names import is_data_of, name_data, remove_unused_data
from ortkit.graph.io.encode import (
    encode,
    initializers_of,
    inline_payload,
    skeleton,
    span_of,
    whole_tensor,
)
from ortkit.graph.io.layout import DataLayout, inline, nested_external
from ortkit.graph.io.origin import source_of
from ortkit.graph.io.text import format_text, is_text_suffix

# ONNX Runtime and protobuf read no message of 2 GiB; this leaves room for later edits.
EXTERNAL_ABOVE_BYTES = 1_900_000_000
_MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class SavedFiles:
    """What `save_model` wrote."""

    model: Path
    data: Path | None
    """The external data, beside the model; None if the model is one file."""
    model_bytes: int
    data_bytes: int


def save_model(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    beside: Sequence[Draft] = (),
    is_temporary: bool = False,
) -> SavedFiles:
    """Write `model` to `path`, replacing what is there only when all of it is on disk.

    The model is not changed, and it may be mapped from the files that are replaced. The format
    follows the name as in `open_model`. The data come first, then `beside`, then the model: a
    kill at any point leaves a model with its own data. Data of earlier models at `path` are
    removed.

    Args:
        model: A valid model.
        path: The model file; external data goes to the same name with 16 digits of its SHA-256
            and `.data` added, with the permissions of the model file that is replaced. A link is
            replaced, not followed.
        external_data: Whether tensors of 1 KiB and more go to a file of their own. None: if the
            model came with external data, or would be larger than 1.9 GB without.
        beside: Further files that belong to this model.
        is_temporary: Whether the files are gone with this process. They are not forced to disk
            then, and external data is named after the model alone: its content is not hashed.

    Raises:
        UserError: The folder or file cannot be written, the disk is full, or the model is too
            large for one file, or an output holds weights of the model. The files are then as
                before.
        ModelError: A file that holds weights changed since the model was opened.
    """
    target = Path(path)
    proto = skeleton(model)
    nested = list(nested_external(model, proto))
    is_text = is_text_suffix(target.suffix)
    size = _inline_bytes(model, proto, nested)
    is_external = not is_text and _wants_data_file(model, size, external_data)
    if not is_external and size > _MOST_BYTES:
        raise UserError(
            f"the model has {size} bytes, and one file of this format holds {_MOST_BYTES}",
            where=str(target),
            fix="save it as .onnx with external data",
        )
    refuse_own_data(model, (target, *(draft.path for draft in beside)))
    for file in (target, *(draft.path for draft in beside)):
        check_target(file)
    own = [(name, tensor) for name, tensor in initializers_of(model.graph)]
    layout = DataLayout()
    for tensor in (*(tensor for tensor, _ in nested), *(tensor for _, tensor in own)):
        if is_external and layout.takes(tensor):
            layout.offset_of(tensor)
    with FileSet(is_durable=not is_temporary) as files:
        data = _write_data(files, layout, target, is_hashed=not is_temporary)
        for tensor, header in nested:
            if is_external and layout.takes(tensor):
                layout.refer(header, tensor)
            else:
                inline(header, tensor)
        for draft in beside:
            files.write(draft)
        if is_text:
            written = files.write(_text(own, proto, target))
        else:
            payloads = [
                layout.payload(tensor, name)
                if is_external and layout.takes(tensor)
                else inline_payload(tensor, name)
                for name, tensor in own
            ]
            encoded = encode(proto, payloads)
            written = files.write(Draft(target, encoded.size_bytes, encoded.write))
        _hold((*(tensor for tensor, _ in nested), *(tensor for _, tensor in own)), target)
        files.put_in_place()
        if not is_temporary:
            remove_unused_data(written, data)
    return SavedFiles(target, data, written.size_bytes, layout.size_bytes)


def _write_data(
    files: FileSet, layout: DataLayout, target: Path, *, is_hashed: bool
) -> Path | None:
    """Write the data file, if there is one, and tell the layout its name."""
    if not layout.offsets:
        return None
    draft = Draft(target.with_name(f"{target.name}.data"), layout.size_bytes, layout.write)
    written = files.write(draft, mode_of=target)
    data = name_data(files, written, target) if is_hashed else written.target
    layout.location = data.name
    return data


def refuse_own_data(model: ir.Model, targets: Iterable[Path]) -> None:
    """Refuse to write over the external data of a model, which whoever made it could name so.

    Raises:
        UserError: A target is a file that holds weights of the model, or of its source.
    """
    source = source_of(model)
    data = set(() if source is None else source.external_files)
    tensors = [
        item for _, item in initializers_of(model.graph) if isinstance(item, ir.ExternalTensor)
    ]
    data |= {span.file.path for tensor in tensors if (span := span_of(tensor)) is not None}
    for target in targets:
        if any(_is_same(target, file) for file in data):
            raise UserError(
                "holds weights of the model", where=str(target), fix="choose another output"
            )


def _hold(tensors: Iterable[ir.TensorProtocol], target: Path) -> None:
    """Keep those files open that lose their names when a model is put at `target`."""
    files = {id(span.file): span.file for tensor in tensors if (span := span_of(tensor))}
    for file in files.values():
        if _is_same(file.path, target) or is_data_of(target, file.path):
            file.hold()


def _wants_data_file(model: ir.Model, size: int, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    source = source_of(model)
    if source is not None and source.had_external_data:
        return True
    # A clone of an opened model has lost its source, but not its tensors.
    is_external = any(isinstance(t, ir.ExternalTensor) for _, t in initializers_of(model.graph))
    return is_external or size > EXTERNAL_ABOVE_BYTES


def _inline_bytes(
    model: ir.Model, proto: onnx.ModelProto, nested: list[tuple[ir.ExternalTensor, TensorProto]]
) -> int:
    """Return about how large the model would be as one file."""
    tensors = [tensor for _, tensor in initializers_of(model.graph)]
    tensors += [tensor for tensor, _ in nested]
    return int(proto.ByteSize()) + sum(bytes_of(t.dtype, t.size) for t in tensors)


def _text(
    own: Sequence[tuple[str, ir.TensorProtocol]], proto: onnx.ModelProto, target: Path
) -> Draft:
    for name, tensor in own:
        proto.graph.initializer.append(whole_tensor(tensor, name))
    return Draft.of(target, format_text(proto, target.suffix))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False

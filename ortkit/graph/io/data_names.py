"""Names of external data: each content has its own, so that no model meets another's data.

A model `m.onnx` has its data in `m.onnx.HASH.data`. A model that is replaced keeps its own data
until it is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from ortkit.errors import UserError
from ortkit.graph.check.tensors import tensors_of
from ortkit.graph.io.atomic import FileSet, Written
from ortkit.private_folder import open_regular
from ortkit.temporary import is_named, open_entry, try_lock

_CHUNK_BYTES = 256 << 10
_HASH_DIGITS = 16
#: Files that may be models: their names for other files stand in them as they are.
_MODEL_SUFFIXES = (".onnx", ".onnxtxt", ".textproto", ".json", ".pb", ".pbtxt", ".ort")


def name_data(files: FileSet, data: Written, model: Path) -> Path:
    """Set the target of a data file by its content; return it.

    A file that lies there already with this content is used, and `data` is left out.

    Args:
        files: What `data` belongs to.
        data: The data, written.
        model: The model's path.

    Raises:
        UserError: The data cannot be read back.
    """
    try:
        digits = _hash_of(data.descriptor)
    except OSError as error:
        raise UserError(f"cannot be read back: {error.strerror}", where=str(data.path)) from error
    data.target = target = model.with_name(f"{model.name}.{digits}.data")
    if _is_there(files, data):
        files.discard(data)
    return target


def is_data_of(model: Path, path: Path) -> bool:
    """Say whether `path` has the name of data that was saved with a model at `model`."""
    return _pattern(model).fullmatch(path.name) is not None and _is_beside(path, model)


def remove_unused_data(model: Written, used: Path | None) -> None:
    """Remove data that was saved with earlier models at the path of `model`; never raises.

    A file is only removed if its name states its content, and if no model beside it names it. A
    copy of the earlier model may, or a model that somebody named so. What another process is about
    to use is left for that process or a later one.

    Args:
        model: A model that is in place.
        used: Its data.
    """
    pattern = _pattern(model.target)
    try:
        with os.scandir(model.target.parent) as entries:
            found = [entry for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for entry in found:
        if used is None or entry.name != used.name:
            with contextlib.suppress(OSError):
                _remove(Path(entry.path), model)


def _pattern(model: Path) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(model.name)}\.[0-9a-f]{{{_HASH_DIGITS}}}\.data")


def rename_data(model: onnx.ModelProto, old: str, new: str) -> None:
    """Let all tensors whose data lie in a file `old` name `new` instead."""
    for graph in _graphs_of(model):
        nested = (tensor for node in graph.node for tensor in tensors_of(node))
        for tensor in (*getattr(graph, "initializer", ()), *nested):
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == old:
                    entry.value = new


def _graphs_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for attribute in (each for node in graph.node for each in node.attribute):
            pending += [attribute.g] if attribute.HasField("g") else []
            pending += attribute.graphs


def _remove(path: Path, model: Written) -> None:
    descriptor = open_entry(path)
    try:
        # A process that saves to the same path holds its data until its model is in place.
        is_free = try_lock(descriptor) is not False
        is_ours = path.name.endswith(f".{_hash_of(descriptor)}.data")
        if (
            is_free and is_ours and not _is_named_by_models(path)
            and is_named(descriptor, path) and is_named(model.descriptor, model.target)
        ):  # fmt: skip
            path.unlink()
    finally:
        os.close(descriptor)


def _is_named_by_models(path: Path) -> bool:
    """Say whether a model in the folder of `path` holds its name, or cannot be looked at."""
    name = path.name.encode()
    with os.scandir(path.parent) as entries:
        models = [entry.path for entry in entries if entry.name.endswith(_MODEL_SUFFIXES)]
    for model in models:
        try:
            with open_regular(Path(model)) as file:
                if os.fstat(file.fileno()).st_size == 0:
                    continue
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
                    if content.find(name) >= 0:
                        return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _is_there(files: FileSet, data: Written) -> bool:
    """Say whether the target holds the data; it is then locked until `files` is closed."""
    try:
        descriptor = open_entry(data.target)
    except OSError:
        return False
    files.keep(descriptor)
    is_locked = try_lock(descriptor, shared=True) is not False
    return (
        is_locked and is_named(descriptor, data.target) and _are_equal(descriptor, data.descriptor)
    )


def _are_equal(descriptor: int, other: int) -> bool:
    if os.fstat(descriptor).st_size != os.fstat(other).st_size:
        return False
    return all(a == b for a, b in zip(_chunks(descriptor), _chunks(other), strict=False))


def _hash_of(descriptor: int) -> str:
    """Return the hash of a file by what is in it.

    Not by what was to be written, because the kernel makes the copies. Reading 350 MB back and
    SHA-256 take 0.3 s on a processor with instructions for it (AMD EPYC, 2026-11).
    """
    digest = hashlib.sha256()
    for chunk in _chunks(descriptor):
        digest.update(chunk)
    return digest.hexdigest()[:_HASH_DIGITS]


def _chunks(descriptor: int) -> Iterator[bytes]:
    at = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, at):
        yield chunk
        at += len(chunk)


def _is_beside(path: Path, other: Path) -> bool:
    try:
        return path.parent.samefile(other.parent)
    except OSError:
        return False

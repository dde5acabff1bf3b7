"""The kernel libraries that a file holds or names, for `ortkit trust`."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ortkit.errors import UserError
from ortkit.kernels.trust import digest
from ortkit.private_folder import open_regular, read_regular
from ortkit.runtime.libraries import library_of

_ELF = b"\x7fELF"
_CONTEXT = ("com.microsoft", "EPContext")


def library_hashes(path: Path) -> list[str]:
    """Return the hashes of a library itself, or of those that a model brings with it.

    A model brings the library beside it, one in its metadata, or those of its EPContext nodes.

    Raises:
        ModelError: The file is neither a library nor a valid model.
        UserError: It cannot be read, or has no kernel library.
    """
    try:
        with open_regular(path) as file:
            is_library = file.read(len(_ELF)) == _ELF
        if is_library:
            return [digest(read_regular(path))]
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path)) from error
    found = library_of(path, trust=True)
    if found.loaded is not None:
        return [digest(found.loaded.read_bytes())]
    hashes = _of_contexts(path)
    if not hashes:
        raise UserError(
            found.refusal or "has no kernel library", where=str(path), fix="name a library"
        )
    return hashes


def _of_contexts(path: Path) -> list[str]:
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError):
        return []
    found: dict[str, None] = {}
    for node in model.graph.node:
        if (node.domain, node.op_type) != _CONTEXT:
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "ep_cache_context" not in attributes:
            continue
        content: bytes = attributes["ep_cache_context"].s
        if "embed_mode" in attributes and attributes["embed_mode"].i == 0:
            content = _beside(path, content)
        found[digest(content)] = None
    return list(found)


def _beside(model: Path, name: bytes) -> bytes:
    """Return the library that an EPContext node names, by the provider's own rules."""
    text = name.decode("utf-8", "replace")
    path = model.resolve().parent / text
    try:
        data = read_regular(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise UserError(reason, where=str(path), fix="put it beside the model") from error
    is_named = text.endswith(f".{digest(data)[:12]}.so")
    if not is_named or path.resolve().parent != model.resolve().parent:
        raise UserError(
            "is no kernel library beside the model, named by its hash", where=str(path),
            fix="name the library itself",
        )  # fmt: skip
    return data

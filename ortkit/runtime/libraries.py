"""Which native libraries a session registers: a model's kernels, and onnxruntime-extensions."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import shlex
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import MissingDependencyError, UserError
from ortkit.graph.io.header import Header
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import source_of
from ortkit.kernels.metadata import EMBEDDED_KEY, LIBRARY_HASH_KEY, LIBRARY_KEY, library_path
from ortkit.kernels.sealed import sealed_copy
from ortkit.kernels.signature import DOMAIN
from ortkit.kernels.trust import digest, trust_refusal
from ortkit.private_folder import read_regular
from ortkit.runtime.settings import Kernels
from ortkit.runtime.source import header_at

#: Domains whose ops onnxruntime-extensions brings.
EXTENSION_DOMAINS = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})
_MAX_NAME_CHARS = 100


@dataclass(frozen=True)
class KernelLibrary:
    """The library that belongs to a model, or why none is loaded."""

    path: Path | None
    """The file as the user knows it, the model if the library is embedded in its file."""
    loaded: Path | None
    """The file to register: it holds the bytes that were hashed, and cannot be written."""
    refusal: str = ""
    """Empty if there is a library, or none is meant to be loaded."""

    @staticmethod
    def none(refusal: str = "") -> KernelLibrary:
        """Return that no library is loaded, and why."""
        return KernelLibrary(None, None, refusal)


def kernel_library(
    header: Header, model: Path | None, kernels: Kernels, *, trust: bool
) -> KernelLibrary:
    """Find a model's kernel library, by the rules of SECURITY.md.

    Without `kernels` naming one, the library is `STEM.ops.so` beside the model, or embedded in
    its metadata. Its bytes must have the SHA-256 that the metadata state, and be trusted.

    Args:
        header: The model's.
        model: Its file, None if it came from memory.
        kernels: What the caller wants.
        trust: Whether the user trusts the library of this model, whoever built it.

    Raises:
        UserError: The caller named a library that does not exist.
    """
    if kernels == "never":
        return KernelLibrary.none()
    if kernels not in ("auto", "require"):
        named = Path(kernels)
        if not named.is_file():
            raise UserError("no such file", where=f"kernels {named}", fix="check the path")
        return KernelLibrary(named.resolve(), named.resolve())
    wanted = header.metadata.get(LIBRARY_HASH_KEY, "").lower()
    embedded = header.metadata.get(EMBEDDED_KEY)
    if embedded is not None:
        return _embedded(embedded, wanted, model, trusted=trust)
    name = header.metadata.get(LIBRARY_KEY)
    if name is not None:
        return _beside(name, wanted, model, trusted=trust)
    return KernelLibrary.none("the model names no kernel library" if fused_ops(header) else "")


def library_of(model: Path, kernels: Kernels = "auto", *, trust: bool = False) -> KernelLibrary:
    """Find the kernel library of a model's file; see `kernel_library`.

    Raises:
        ModelError: There is no such model, or it is none.
        UserError: The caller named a library that does not exist.
    """
    return kernel_library(header_at(model), model, kernels, trust=trust)


def fused_ops(header: Header) -> tuple[str, ...]:
    """Return the model's fused ops as libraries note them in the options of a session."""
    return tuple(
        sorted(f"{domain}::{name}" for domain, name in header.functions if domain == DOMAIN)
    )


def extensions_library(header: Header) -> Path | None:
    """Return onnxruntime-extensions' library if the model has ops of it.

    Raises:
        MissingDependencyError: It has, and the package is not installed.
    """
    used = EXTENSION_DOMAINS & set(header.opsets)
    if not used:
        return None
    if importlib.util.find_spec("onnxruntime_extensions") is None:
        raise MissingDependencyError(
            f"the model has ops of {', '.join(sorted(used))}",
            fix="pip install onnxruntime-extensions",
        )
    module = importlib.import_module("onnxruntime_extensions")
    return Path(module.get_library_path())


def _embedded(text: str, wanted: str, model: Path | None, *, trusted: bool) -> KernelLibrary:
    what = "the kernel library inside the model"
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return KernelLibrary.none(f"{what} is not base64")
    return _checked(data, wanted, what, model, trusted=trusted)


def _beside(name: str, wanted: str, model: Path | None, *, trusted: bool) -> KernelLibrary:
    if model is None:
        return KernelLibrary.none(
            f"a model in memory has no folder; load its kernel library {_short(name)} "
            "with kernels=PATH"
        )
    # The name in the metadata decides nothing: a model file must not choose what is loaded.
    candidates = dict.fromkeys(library_path(each) for each in (model.absolute(), model.resolve()))
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        expected = next(iter(candidates)).name
        renamed = "" if name == expected else f", which was saved with {_short(name)}"
        return KernelLibrary.none(
            f"the kernel library {expected} is not beside the model{renamed}"
        )
    what = f"the kernel library {path.name}"
    if path.resolve().parent not in (candidate.parent.resolve() for candidate in candidates):
        return KernelLibrary.none(f"{what} is a link out of the model's folder")
    try:
        data = read_regular(path)
    except OSError as error:
        return KernelLibrary.none(f"{what} cannot be read: {error.strerror}")
    if trusted and _is_external_data(path, model):
        return KernelLibrary.none(f"{what} is also external data of the model")
    return _checked(data, wanted, what, path, trusted=trusted)


def _checked(
    data: bytes, wanted: str, what: str, path: Path | None, *, trusted: bool
) -> KernelLibrary:
    sha256 = digest(data)
    if sha256 != wanted:
        return KernelLibrary.none(f"{what} is not the one that the model was saved with")
    refusal = "" if trusted else trust_refusal(sha256)
    if refusal:
        return KernelLibrary.none(f"{what} {refusal}; {_how_to_trust(path)}")
    try:
        copy = sealed_copy(data)
        return KernelLibrary(path or copy, copy)
    except OSError as error:
        return KernelLibrary.none(f"{what} cannot be copied to memory: {error.strerror}")


def _how_to_trust(path: Path | None) -> str:
    command = "" if path is None else f"`ortkit trust {shlex.quote(str(path))}`, "
    return f"to run its native code: {command}--trust or trust=True"


def _short(name: str) -> str:
    """Return a name from a model, which may be of any length, for a message."""
    return repr(name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}...")


def _is_external_data(path: Path, model: Path) -> bool:
    """Return whether the model reads weights from the library's file.

    A library whose hash is on a list needs no such look: nobody lists a file of weights.
    """
    source = source_of(open_model(model))
    return source is not None and any(path.samefile(file) for file in source.external_files)

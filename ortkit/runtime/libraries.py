"""Which native libraries a session registers: a model's kernels, and onnxruntime-extensions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from ortkit.errors import MissingDependencyError, UserError
from ortkit.graph.header import Header
from ortkit.kernels.metadata import EMBEDDED_KEY, LIBRARY_HASH_KEY, LIBRARY_KEY
from ortkit.kernels.signature import DOMAIN
from ortkit.runtime.settings import Kernels

#: Domains whose ops onnxruntime-extensions brings.
EXTENSION_DOMAINS = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})


@dataclass(frozen=True)
class KernelLibrary:
    """The library that belongs to a model, or why none is loaded."""

    path: Path | None
    refusal: str
    """Empty if there is a library, or none is meant to be loaded."""


def kernel_library(
    header: Header,
    model: Path | None,
    kernels: Kernels,
    *,
    trust_embedded: bool,
    scratch: Callable[[], Path],
) -> KernelLibrary:
    """Find a model's kernel library, as SECURITY.md says.

    Without `kernels` naming one, it must lie beside the model under the name and with the
    SHA-256 that the model's metadata state, or be embedded there and be trusted to.

    Args:
        header: The model's.
        model: Its file, None if it came from memory.
        kernels: What the caller wants.
        trust_embedded: Whether a library inside the model may be loaded.
        scratch: Gives a folder for an embedded library.

    Raises:
        UserError: The caller named a library that does not exist.
    """
    if kernels == "never":
        return KernelLibrary(None, "")
    if kernels not in ("auto", "require"):
        named = Path(kernels)
        if not named.is_file():
            raise UserError("no such file", where=f"kernels {named}", fix="check the path")
        return KernelLibrary(named.resolve(), "")
    wanted = header.metadata.get(LIBRARY_HASH_KEY, "")
    embedded = header.metadata.get(EMBEDDED_KEY)
    if embedded is not None:
        return _embedded(embedded, wanted, trust_embedded, scratch)
    name = header.metadata.get(LIBRARY_KEY)
    if name is None:
        is_fused = any(domain == DOMAIN for domain, _ in header.functions)
        return KernelLibrary(None, "the model names no kernel library" if is_fused else "")
    return _beside(name, wanted, model)


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


def _embedded(text: str, wanted: str, trusted: bool, scratch: Callable[[], Path]) -> KernelLibrary:
    if not trusted:
        return KernelLibrary(
            None, "the kernel library inside the model is loaded with trust_embedded=True only"
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return KernelLibrary(None, "the kernel library inside the model is not base64")
    if hashlib.sha256(data).hexdigest() != wanted:
        return KernelLibrary(None, "the kernel library inside the model has another SHA-256")
    path = scratch() / "embedded.ops.so"
    path.write_bytes(data)
    return KernelLibrary(path, "")


def _beside(name: str, wanted: str, model: Path | None) -> KernelLibrary:
    if PurePath(name).name != name or name in (".", ".."):
        return KernelLibrary(None, f"the model names a kernel library elsewhere: {name!r}")
    if model is None:
        return KernelLibrary(
            None, f"a model in memory has nothing beside it: {name} is loaded with kernels=PATH"
        )
    path = model.resolve().with_name(name)
    if not path.is_file():
        return KernelLibrary(None, f"the kernel library {name} is not beside the model")
    if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
        return KernelLibrary(
            None, f"the kernel library {name} is not the one that the model was saved with"
        )
    return KernelLibrary(path, "")

"""Register what a model brings with the options of a session, by the rules of trust."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortkit.errors import RunError
from ortkit.runtime.libraries import extensions_library, fused_ops, kernel_library
from ortkit.runtime.options import message
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import Loadable


def register_libraries(
    options: Any, source: Loadable, settings: SessionSettings, notes: list[str]
) -> tuple[Path, ...]:
    """Register the libraries that a model needs with the options of its session.

    Args:
        options: An `onnxruntime.SessionOptions`, which has its `ortkit.fused.target` entry.
        source: The model.
        settings: Which kernels, whether its library is trusted, and what other libraries.
        notes: Takes a line where function bodies run in place of kernels.

    Returns:
        The libraries as the user knows them.

    Raises:
        RunError: A library that must be loaded cannot be.
        UserError: A library that is named does not exist.
        MissingDependencyError: The model needs onnxruntime-extensions, which is not installed.
    """
    registered = []
    path = source.content if isinstance(source.content, Path) else None
    found = kernel_library(source.header, path, settings.kernels, trust=settings.trust)
    refusal = found.refusal
    if found.path is not None and found.loaded is not None:
        try:
            options.register_custom_ops_library(str(found.loaded))
            registered.append(found.path)
        except Exception as error:  # noqa: BLE001  whatever it is becomes a note or an error
            refusal = f"{found.path.name} was refused: {message(error)}"
    if registered and (absent := missing_ops(options, fused_ops(source.header))):
        refusal = f"{registered[0].name} lacks {len(absent)} of the model's fused ops"
        refusal += _left_out(options, absent)
    if refusal:
        if settings.kernels not in ("auto", "never"):
            raise RunError(refusal, where=source.where, fix="name another library, or none")
        notes.append(f"{refusal}; function bodies run instead")
    for given in settings.libraries:
        # The system looks for a bare name elsewhere.
        path_there = Path(given).resolve()
        try:
            options.register_custom_ops_library(str(path_there))
        except Exception as error:
            raise RunError(message(error), where=f"libraries, {given}") from error
        registered.append(path_there)
    extensions = extensions_library(source.header)
    if extensions is not None:
        options.register_custom_ops_library(str(extensions))
        registered.append(extensions)
    return tuple(registered)


def missing_ops(options: Any, ops: Sequence[str]) -> list[str]:
    """Return the fused ops that no registered library has."""
    return [
        op for op in ops
        if entry(options, op) is None and entry(options, f"{op}@cuda") is None
    ]  # fmt: skip


def _left_out(options: Any, ops: Sequence[str]) -> str:
    """Return what the library notes of kernels that no GPU here runs, once for each reason."""
    noted = [text for op in ops if (text := entry(options, f"{op}@left_out")) is not None]
    reasons = dict.fromkeys(text.partition(" of kernel ")[0] for text in noted)
    return f" ({'; '.join(reasons)})" if reasons else ""


def entry(options: Any, key: str) -> str | None:
    """Return an entry of the configuration, None if there is none."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None

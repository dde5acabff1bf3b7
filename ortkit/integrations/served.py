"""The session of a server: settings that may stand beside the model, and those that may not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ortkit.errors import UserError
from ortkit.runtime.session import Session

#: What a server's configuration may say. It often comes with the model, so it names no library
#: and trusts none: the machine's list (`ortkit trust`) and `ORTKIT_TRUST` decide. Options of a
#: provider are none of them: TensorRT's and QNN's name libraries.
_KERNELS = ("auto", "require", "never")
_SETTINGS = ("target", "kernels", "threads")


def check_settings(settings: Mapping[str, object]) -> None:
    """Check what a server's configuration says, without loading anything.

    Args:
        settings: As `served_session` takes them.

    Raises:
        UserError: A setting is not known, or is not for a file to decide.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise UserError(
                "is no setting of a served model", where=str(name),
                fix=f"use {', '.join(_SETTINGS)}; trust a library with `ortkit trust`",
            )  # fmt: skip
    kernels = settings.get("kernels", "auto")
    if kernels not in _KERNELS:
        raise UserError(
            f"cannot be {kernels!r}", where="kernels", fix=f"use {', '.join(_KERNELS)}"
        )
    if not isinstance(target := settings.get("target", "auto"), str):
        raise UserError(f"cannot be {target!r}", where="target", fix="name one, without options")


def served_session(model: Path, settings: Mapping[str, object]) -> Session:
    """Load a model for a server.

    Args:
        model: Path of the model's file.
        settings: `target`, `kernels` (auto, require, never) and `threads`, as `Session` has them.

    Raises:
        UserError: A setting is not known, or is not for a file to decide.
        ModelError: It is no valid model.
        RunError: ONNX Runtime does not load it, or its kernels are required and not loaded.
    """
    check_settings(settings)
    return Session(model, **settings)  # type: ignore[arg-type]

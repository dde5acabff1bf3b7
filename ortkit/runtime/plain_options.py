"""`session_options`: plain options of ONNX Runtime, for hosts that make their own sessions."""

from __future__ import annotations

import difflib
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ortkit.errors import UserError
from ortkit.runtime.library_target import target_entry
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.registering import register_libraries
from ortkit.runtime.settings import Kernels, SessionSettings, SessionTarget
from ortkit.runtime.source import Loadable, header_at
from ortkit.runtime.targets import resolve

if TYPE_CHECKING:
    import onnxruntime


def session_options(
    model: str | os.PathLike[str],
    *,
    target: SessionTarget = "auto",
    kernels: Kernels = "auto",
    trust: bool = False,
    **onnxruntime_options: Any,
) -> onnxruntime.SessionOptions:
    """Return `onnxruntime.SessionOptions` with a model's kernel library registered.

    They are for everything that takes session options and makes the session itself. Where the
    library is not loaded, a warning says why, and the model runs on its function bodies.

    Args:
        model: The model's file.
        target: Where the session will run, as `Session` takes it. It decides whether kernels for
            the CPU or for CUDA are registered. The providers themselves are the host's to give.
        kernels: As `Session` takes them: `auto`, `require`, `never`, or a library's path.
        trust: Whether the model's library is loaded even if it was built elsewhere. It is native
            code: whoever made it decides what this process does.
        onnxruntime_options: Attributes of `onnxruntime.SessionOptions`, such as
            `intra_op_num_threads=2`.

    Raises:
        ModelError: There is no such model, or it is none.
        UserError: An option is not known, or ONNX Runtime refuses its value.
        RunError: `kernels` is `require` or a path, and the library cannot be loaded.
        MissingDependencyError: ONNX Runtime, or a provider in `target`, is not installed.
    """
    ort = import_onnxruntime()
    settings = SessionSettings(target, kernels, trust)
    options = ort.SessionOptions()
    _set(options, onnxruntime_options, ort)
    wanted = resolve(target, ort, fallback=False).wanted
    options.add_session_config_entry(*target_entry([provider.name for provider in wanted]))
    path = Path(model)
    notes: list[str] = []
    register_libraries(options, Loadable(path, header_at(path)), settings, notes)
    for note in notes:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return options


def _set(options: Any, given: dict[str, Any], ort: ModuleType) -> None:
    kind = ort.SessionOptions
    known = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or known
            raise UserError(
                "onnxruntime.SessionOptions has no such attribute", where=name,
                fix=f"use {', '.join(near)}",
            )  # fmt: skip
        try:
            setattr(options, name, value)
        except (TypeError, AttributeError, RuntimeError) as error:
            problem = str(error).partition("\n")[0]
            raise UserError(f"cannot be {value!r}: {problem}", where=name) from error

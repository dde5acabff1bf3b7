"""From a model and settings to a session that a worker can make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ortkit.errors import RunError
from ortkit.runtime.installation import Installation
from ortkit.runtime.libraries import extensions_library, fused_ops, kernel_library
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import loadable
from ortkit.runtime.targets import resolve


def plan_session(
    model: Path,
    settings: SessionSettings,
    scratch: Callable[[], Path],
    onnxruntime: Installation | None = None,
) -> SessionPlan:
    """Find everything that a session needs, as `Session` does, without making it.

    Args:
        model: The model's file; text is written to `scratch` as ONNX Runtime takes it.
        settings: Settings of the session.
        scratch: Gives a folder that outlives the session.
        onnxruntime: What makes it; None: the installed one.

    Raises:
        ModelError: There is no such model, or it is none.
        MissingDependencyError: ONNX Runtime, or a provider asked for, is not installed.
        RunError: `kernels="require"`, and there is no kernel library.
        UserError: A setting is not known.
    """
    known = import_onnxruntime() if onnxruntime is None else onnxruntime
    source = loadable(model, scratch)
    assert isinstance(source.content, Path)
    providers = resolve(settings.target, known, fallback=settings.fallback)
    notes = list(providers.notes)
    kernels = kernel_library(source.header, source.content, settings.kernels, trust=settings.trust)
    if kernels.refusal:
        if settings.kernels not in ("auto", "never"):
            raise RunError(kernels.refusal, where=str(model))
        notes.append(f"{model.name}: {kernels.refusal}; function bodies run instead")
    extensions = extensions_library(source.header)
    return SessionPlan(
        source.content,
        tuple(path for path in (kernels.loaded, extensions) if path is not None),
        tuple((provider.name, dict(provider.options)) for provider in providers.wanted),
        settings,
        tuple(notes),
        runs_bodies=kernels.loaded is None and bool(fused_ops(source.header)),
        onnxruntime=None if onnxruntime is None else onnxruntime.folder,
    )

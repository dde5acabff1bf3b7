"""One way to make a session in a process of its own: from a plan, in which all is decided.

Imports nothing large, so that a process takes no more memory than one that only runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ortkit.runtime.library_target import target_entry
from ortkit.runtime.options import session_options
from ortkit.runtime.settings import SessionSettings

CPU: tuple[tuple[str, Mapping[str, str]], ...] = (("CPUExecutionProvider", {}),)
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class SessionPlan:
    """A session that is ready to be made: nothing is left to be looked for."""

    model: Path
    libraries: tuple[Path, ...] = ()
    providers: Sequence[tuple[str, Mapping[str, str]]] = CPU
    settings: SessionSettings = field(default_factory=SessionSettings)
    """How; target, kernels and libraries are in `providers` and `libraries`."""
    notes: tuple[str, ...] = ()
    """What is not as it was asked for."""
    runs_bodies: bool = False
    """Whether fused nodes run their function bodies, for want of a kernel library."""
    weights_folder: Path | None = None
    """Where external data lies when it is not beside `model`."""
    onnxruntime: Path | None = None
    """Where the ONNX Runtime is that makes it; None: the installed one."""
    disabled_optimizers: tuple[str, ...] = ()
    """Those of ONNX Runtime's own optimizers that are switched off, by name."""
    share: Mapping[str, str] = field(default_factory=dict)
    """Inputs in whose memory runs write outputs: the caches of a decoder."""


def open_session(ort: ModuleType, plan: SessionPlan) -> Any:
    """Return the `InferenceSession`, without the fallback: it prints, and repeats what failed.

    Args:
        ort: The onnxruntime module.
        plan: What to make.

    Raises:
        Exception: ONNX Runtime's own.
    """
    options = session_options(plan.settings, ort)
    options.add_session_config_entry(*target_entry([name for name, _ in plan.providers]))
    for library in plan.libraries:
        options.register_custom_ops_library(str(library.absolute()))
    model: str | bytes = str(plan.model)
    if plan.weights_folder is not None:
        # A model that lies elsewhere than its weights must be given as bytes: only then
        # does ONNX Runtime (1.31.1) take the folder from this option.
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(plan.weights_folder))
        model = plan.model.read_bytes()
    providers = [(name, dict(given)) for name, given in plan.providers]
    more = {"disabled_optimizers": plan.disabled_optimizers} if plan.disabled_optimizers else {}
    return ort.InferenceSession(model, options, providers=providers, enable_fallback=0, **more)

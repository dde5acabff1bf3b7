"""From a model and settings to a loaded session: providers, libraries, what is not as asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ortkit.errors import MissingDependencyError, UserError
from ortkit.graph.io.open import ModelSource
from ortkit.runtime.capture_gate import GATE
from ortkit.runtime.layout_advice import advised
from ortkit.runtime.libraries import fused_ops
from ortkit.runtime.library_target import target_entry
from ortkit.runtime.options import explained, session_options
from ortkit.runtime.packed_model import PackedModel, packed_model
from ortkit.runtime.placement import providers_text, read_placement
from ortkit.runtime.python_ops import Failures, with_python_ops
from ortkit.runtime.python_slots import python_library
from ortkit.runtime.registering import entry, missing_ops, register_libraries
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import Loadable, Saveable, loadable
from ortkit.runtime.specs import TensorSpec, specs_of
from ortkit.runtime.targets import (
    CPU,
    CUDA,
    Provider,
    option_hint,
    preload,
    resolve,
    short_name,
)


@dataclass(frozen=True)
class Loaded:
    """What ONNX Runtime has loaded."""

    session: Any
    """The `onnxruntime.InferenceSession`."""
    providers: tuple[str, ...]
    """Most wanted first."""
    libraries: tuple[Path, ...]
    """Those that were registered."""
    runs_bodies: bool
    """Whether fused nodes run their function bodies, for want of a kernel library."""
    notes: tuple[str, ...]
    """What is not as it was asked for, a line each."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    failures: Failures | None = None
    """What ops that are defined in Python raise, if the model has some."""
    packed: PackedModel | None = None
    """What stands for a model without padding in CUDA graphs."""
    chooser: Any = None
    """Its `onnxruntime.InferenceSession` that says which tokens there are."""


def load(
    model: ModelSource | Saveable,
    settings: SessionSettings,
    scratch: Callable[[], Path],
    ort: ModuleType,
) -> Loaded:
    """Load a model; the errors are those of `Session`.

    Args:
        model: As `Session` takes it.
        settings: All settings of the session.
        scratch: Gives a folder that lives as long as the session.
        ort: The onnxruntime module.
    """
    source = loadable(model, scratch)
    providers = resolve(settings.target, ort, fallback=settings.fallback)
    wanted = _with_graphs(providers.wanted) if settings.cuda_graph else providers.wanted
    wanted = tuple(advised(item, source.header.metadata) for item in wanted)
    if settings.cuda_graph and wanted[0].name != CUDA:
        raise UserError("needs the CUDA provider", where="cuda_graph", fix="target='cuda'")
    notes = list(providers.notes)
    options = session_options(settings, ort)
    options.add_session_config_entry(*target_entry([one.name for one in wanted]))
    libraries = register_libraries(options, source, settings, notes)
    runs_bodies = bool(missing_ops(options, fused_ops(source.header)))
    source, failures, libraries = _with_python_ops(options, source, scratch, libraries)
    said = preload(ort) if any(one.name == CUDA for one in wanted) else ""
    packed, chooser = None, None
    if settings.cuda_graph and (packed := packed_model(source, scratch)) is not None:
        chooser = _create(loadable(packed.chooser, scratch), options, wanted, ort)
        source = loadable(packed.path, scratch)
    session = _create(source, options, wanted, ort)
    if failures is not None:
        failures.belong_to(session)
    got = tuple(session.get_providers())
    lost = [provider.name for provider in wanted if provider.name not in got]
    if lost:
        problem = f"{', '.join(lost)} could not be used{': ' + said if said else ''}"
        if not settings.fallback:
            raise MissingDependencyError(
                problem, where=source.where, fix="see what is missing with `ortkit doctor`"
            )
        notes.append(problem)
    if len(got) > 1:
        notes.extend(_placement_notes(session, got, fallback=settings.fallback))
    return Loaded(
        session, got, libraries, runs_bodies, tuple(notes),
        specs_of(session.get_inputs()), specs_of(session.get_outputs()), failures, packed, chooser,
    )  # fmt: skip


def _with_python_ops(
    options: Any, source: Loadable, scratch: Callable[[], Path], libraries: tuple[Path, ...]
) -> tuple[Loadable, Failures | None, tuple[Path, ...]]:
    """Let ops run that are defined in Python and that no library brings."""
    found = with_python_ops(
        source.content, source.header, lambda op: entry(options, op) is not None, scratch
    )
    if found is None:
        return source, None, libraries
    path, failures = found
    changed = loadable(path, scratch)
    if not failures.slots:
        return changed, None, libraries
    library = python_library()
    if library not in libraries:
        options.register_custom_ops_library(str(library))
        libraries = (*libraries, library)
    return changed, failures, libraries


def _create(source: Loadable, options: Any, wanted: tuple[Provider, ...], ort: ModuleType) -> Any:
    content = source.content if isinstance(source.content, bytes) else str(source.content)
    try:
        with GATE:
            session = ort.InferenceSession(
                content,
                options,
                providers=[(provider.name, dict(provider.options)) for provider in wanted],
                enable_fallback=0,
            )
    except Exception as error:
        refused = explained(error, source.where, loading=True)
        refused.fix = refused.fix or option_hint(refused.problem)
        raise refused from error
    session.disable_fallback()
    return session


def _placement_notes(session: Any, providers: tuple[str, ...], *, fallback: bool) -> list[str]:
    """Say where nodes went if the provider most wanted did not take all of them."""
    try:
        placement = read_placement(session)
    except UserError as error:
        return [error.problem]
    first = providers[0]
    elsewhere = sorted({item.op for item in placement if item.provider != first})
    if not elsewhere:
        return []
    if all(one.provider == CPU for one in placement) and not fallback:
        raise UserError(
            f"{first} takes none of the model's nodes",
            fix="target='cpu'; in Python also fallback=True",
        )
    named = ", ".join(elsewhere[:6]) + (", ..." if len(elsewhere) > 6 else "")
    return [f"nodes by provider: {providers_text(placement)}; not on {short_name(first)}: {named}"]


def _with_graphs(wanted: tuple[Provider, ...]) -> tuple[Provider, ...]:
    return tuple(
        replace(provider, options={**provider.options, "enable_cuda_graph": "1"})
        if provider.name == CUDA
        else provider
        for provider in wanted
    )

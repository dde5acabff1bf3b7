"""Profiling from a trace that was made elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ortkit.runtime.profiling.about import about_trace
from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.context import Context
from ortkit.runtime.profiling.peaks import load_peaks, threads_for
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace.read import read_trace

_NO_MODEL = "what the nodes compute is not known: name the model too"
_NO_PLAIN = "what a run takes without tracing is not known: the trace has traced runs only"


def profile_saved(
    path: Path, model: Path | None, *, warmup: int = 1, target: str = "auto", threads: int = 0
) -> Profile:
    """Read a trace and add it up.

    Args:
        path: What `end_profiling` named.
        model: The model that was traced. It is loaded once, to get the graph that ran.
        warmup: How many runs at its start are left out.
        target: Where it ran; `auto`: as the trace says.
        threads: Of the session that is loaded.

    Raises:
        UserError: It is no whole trace, or has no run after the warm-up.
        ModelError: `model` is none.
    """
    trace = read_trace(path)
    about = about_trace(trace, model)
    notes = [_NO_PLAIN]
    joined = peaks = None
    if model is None:
        notes.append(_NO_MODEL)
    else:
        from ortkit.kernels.metadata import is_made_by_ortkit
        from ortkit.kernels.tuning.calibration import machine
        from ortkit.runtime.profiling.joining import joined_with
        from ortkit.runtime.settings import SessionSettings
        from ortkit.runtime.source import header_at

        providers = list(about.providers) if target == "auto" and about.providers else target
        settings = SessionSettings(target=providers, threads=threads, fallback=True)
        joined = joined_with(trace.nodes, model, settings)
        if joined is None:
            notes.append("what the nodes compute is not known: the model does not load here")
        about = replace(about, made_by_ortkit=is_made_by_ortkit(header_at(model).metadata))
        first = about.providers[0] if about.providers else ""
        peaks = load_peaks(first, threads_for(first, about.threads), machine())
        if peaks is not None:
            about = replace(about, machine=peaks.machine)
            notes.append("compared with the peaks of this machine, which need not be the trace's")
    context = Context(
        about,
        peaks=peaks,
        joined=joined,
        notes=tuple(notes),
        device_times=bool(trace.kernels),
    )
    return profile_of(trace, context, warmup=warmup, where=str(path))

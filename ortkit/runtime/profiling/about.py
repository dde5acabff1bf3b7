"""What was profiled: the model's file, the runtime, the machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortkit.private_folder import open_regular
from ortkit.runtime.profiling.result import About
from ortkit.runtime.profiling.trace.trace import Trace

_CHUNK = 1 << 20


def about_trace(trace: Trace, model: object = None) -> About:
    """Return what a trace and the model's path say.

    Args:
        trace: The trace, as read from its file.
        model: A path; anything else is a model in memory, which has no name.
    """
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    seen = {signature.provider: None for signature in trace.nodes.signatures if signature.provider}
    return About(
        model=None if path is None else str(path),
        sha256=None if path is None else sha256_of(path),
        providers=tuple(seen),
        threads=threads_of(trace),
    )


def about_runs(
    trace: Trace, model: object, version: str, feeds: Mapping[str, object] | None = None
) -> About:
    """Return what is known of runs that were made here.

    Args:
        trace: The trace, as read from its file.
        model: What the session was made from.
        version: ONNX Runtime's.
        feeds: The inputs.
    """
    from ortkit.kernels.tuning.calibration import machine

    found = about_trace(trace, model)
    shapes = {
        name: tuple(np.shape(value))
        for name, value in (feeds or {}).items()
        if isinstance(value, np.ndarray)
    }
    return About(
        found.model, found.sha256, version, found.providers, found.threads, machine(), shapes
    )


def threads_of(trace: Trace) -> int | None:
    """Return how many threads work on a node; None: the trace does not say."""
    if not len(trace.nodes):
        return None
    last = len(trace.nodes) - 1
    scheduling = trace.nodes.scheduling(last)
    if scheduling is not None:
        return scheduling.threads
    return 1 if trace.nodes.has_no_pool(last) else None


def sha256_of(path: Path) -> str | None:
    """Return a file's hash, None if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()

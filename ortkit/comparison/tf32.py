"""Outputs without TF32, in which ONNX Runtime computes float32 products on CUDA by default.

TF32 keeps 10 bits of each factor: two models that are the same function differ by thousands of
float32's epsilons, and so does one model on two devices. Whether they are the same is judged
without it; what it costs in accuracy is said beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.targets import CUDA
from ortkit.runtime.workers.worker import Worker

_OPTION = "use_tf32"


def uses_tf32(plan: SessionPlan) -> bool:
    """Say whether a session may compute in TF32: it is on CUDA, and nobody said no."""
    options: Mapping[str, str] | None = dict(plan.providers).get(CUDA)
    return options is not None and options.get(_OPTION, "1") != "0"


def without_tf32(plan: SessionPlan) -> SessionPlan:
    """Return the same session, computing in float32."""
    providers = [
        (name, {**options, _OPTION: "0"} if name == CUDA else options)
        for name, options in plan.providers
    ]
    return replace(plan, providers=providers)


def keep_exact(plan: SessionPlan, feeds: Path, results: Path, timeout_seconds: float) -> None:
    """Run a session without TF32 once; writes its outputs into a new folder of tensors.

    Raises:
        WorkerError: It does not run so.
    """
    with Worker() as worker:
        worker.load(without_tf32(plan), timeout_seconds)
        worker.feed(feeds, timeout_seconds)
        worker.keep(results, timeout_seconds)

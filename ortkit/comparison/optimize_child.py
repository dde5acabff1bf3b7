"""ONNX Runtime optimizes a model and writes what it made of it, in a process of its own."""

from __future__ import annotations

from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import onnxruntime_in, preload_onnxruntime

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime


def write_optimized(plan: SessionPlan) -> str:
    """Make a session that writes its graph; returns why it cannot be made, empty if it is."""
    try:
        open_session(onnxruntime_in(plan.onnxruntime), plan)
    except Exception as error:  # noqa: BLE001  whatever stops it is the answer
        return " ".join(str(error).split()) or type(error).__name__
    return ""

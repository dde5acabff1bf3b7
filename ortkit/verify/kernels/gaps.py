"""Kernels of a candidate that a verification did not run, so that it says nothing of them."""

from __future__ import annotations

from pathlib import Path

from ortkit.runtime.libraries import fused_ops
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.source import header_at
from ortkit.verify.kernels.library import cuda_problem
from ortkit.verify.sessions import SessionResult
from ortkit.verify.verification import Gap


def fused_ops_in(path: Path) -> tuple[str, ...]:
    """Return a model's fused operators, as kernel libraries note them in a session's options."""
    return fused_ops(header_at(path))


def kernel_gaps(
    ops: tuple[str, ...], library: Path | None, deployed: SessionResult, refusal: str = ""
) -> tuple[Gap, ...]:
    """Return the kernels that did not run.

    Args:
        ops: The fused operators of the model.
        library: Their kernels, if there are some.
        deployed: What became of the session that was to run them.
        refusal: Why a library that belongs to the model is not loaded.
    """
    if library is None and ops:
        reason = f"{refusal or 'there is no kernel library'}: their function bodies were run"
        return (Gap(_kernels(len(ops)), reason, "give the library with --library FILE.so"),)
    return tuple(
        Gap(_kernels(item["count"]), item["reason"], needs_hardware=item["needs_hardware"])
        for item in deployed.not_run
    )


def bfloat16_gap(path: Path) -> Gap:
    """Return the kernels of a model in bfloat16 for CUDA, whose values no CPU provider holds."""
    what = _kernels(len(fused_ops_in(path)))
    if problem := cuda_problem(import_onnxruntime()):
        return Gap(what, f"they are for CUDA, and {problem}", needs_hardware=True)
    return Gap(what, "in bfloat16 their function bodies are compared, with every value rounded")


def _kernels(count: int) -> str:
    return "1 kernel" if count == 1 else f"{count} kernels"

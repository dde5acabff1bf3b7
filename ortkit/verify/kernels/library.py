"""Which kernels of a library a session runs on this machine; for the process that runs sessions.

It imports nothing but the standard library, so that this process starts fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypedDict

from ortkit.runtime.library_target import target_entry

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
#: What a library says where the processor is of a lower level; see custom_ops/native/register.cc.
_LOWER_LEVEL = "these kernels need a processor of level"
#: ONNX Runtime multiplies float32 in TF32 on CUDA unless an option forbids it.
_CUDA_OPTIONS = {"use_tf32": "0"}


class NotRun(TypedDict):
    """Kernels that a session does not run: function bodies stand in for them."""

    count: int
    reason: str
    needs_hardware: bool


@dataclass(frozen=True)
class Kernels:
    """Library and providers of a session, and the kernels that it does not run."""

    library: str
    """Empty if this machine runs no kernel of it."""
    providers: Sequence[str | tuple[str, dict[str, str]]]
    not_run: Sequence[NotRun]

    @property
    def target(self) -> tuple[str, str]:
        """The entry of the session's configuration that chooses among the kernels."""
        return target_entry(
            [provider if isinstance(provider, str) else provider[0] for provider in self.providers]
        )

    @property
    def with_options(self) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """The providers, each with its options."""
        return tuple(
            (provider, {}) if isinstance(provider, str) else provider
            for provider in self.providers
        )

    @property
    def is_cuda(self) -> bool:
        """Whether sessions run on CUDA."""
        return list(self.providers) != [CPU]


def kernels_here(ort: ModuleType, library: str, ops: Sequence[str]) -> Kernels:
    """Find out which kernels this machine runs, and what the session needs for them.

    Args:
        ort: The onnxruntime module.
        library: The kernel library.
        ops: The model's fused operators, as libraries note them in the options of a session.

    Raises:
        Exception: ONNX Runtime's, if it does not load the library.
    """
    try:
        on_cpu = _options(ort, library, "cpu")
    except Exception as error:
        text = " ".join(str(error).split())
        if _LOWER_LEVEL not in text:
            raise
        reason = text[text.index(_LOWER_LEVEL) :].partition("; ")[0]
        return Kernels("", [CPU], _not_run(len(ops), reason, needs_hardware=True))
    absent = [op for op in ops if _entry(on_cpu, op) is None]
    if not absent:
        return Kernels(library, [CPU], [])
    on_cuda = _options(ort, library, "cuda")
    noted = {op: _entry(on_cuda, f"{op}@left_out") for op in ops}
    lacking = {op: why for op, why in noted.items() if why is not None}
    ready = [op for op in ops if _entry(on_cuda, f"{op}@cuda") is not None]
    if not lacking and not ready:  # nothing of it is for CUDA
        return Kernels(library, [CPU], _not_run(len(absent), "the library has none for them"))
    if problem := cuda_problem(ort):
        reason = f"they are for CUDA, and {problem}"
        return Kernels(library, [CPU], _not_run(len(absent), reason, needs_hardware=True))
    unknown = [op for op in absent if op not in ready and op not in lacking]
    reasons = sorted({why.partition(" of kernel ")[0] for why in lacking.values()})
    return Kernels(
        library,
        [(CUDA, _CUDA_OPTIONS), CPU],
        [
            *_not_run(len(lacking), "; ".join(reasons), needs_hardware=True),
            *_not_run(len(unknown), "the library has none for them"),
        ],
    )


def _options(ort: ModuleType, library: str, target: str) -> Any:
    """Return options of a session that is never made, to ask what a library registers."""
    options = ort.SessionOptions()
    options.add_session_config_entry("ortkit.fused.target", target)
    options.register_custom_ops_library(library)
    return options


def _entry(options: Any, key: str) -> str | None:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _not_run(count: int, reason: str, *, needs_hardware: bool = False) -> list[NotRun]:
    made: NotRun = {"count": count, "reason": reason, "needs_hardware": needs_hardware}
    return [made] if count else []


def cuda_problem(ort: ModuleType) -> str:
    """Return why nothing runs on CUDA here, empty if it does."""
    import numpy as np

    if CUDA not in ort.get_available_providers():
        return "this machine has no ONNX Runtime with the CUDA provider"
    with contextlib.suppress(AttributeError):
        ort.preload_dlls()
    try:
        ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception as error:  # noqa: BLE001  whatever it is, the report says it
        return f"this machine has no CUDA device that runs: {' '.join(str(error).split())[:200]}"
    return ""

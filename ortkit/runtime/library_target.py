"""Which of a kernel library's kernels a session is to have."""

from __future__ import annotations

from collections.abc import Iterable


def target_entry(providers: Iterable[str]) -> tuple[str, str]:
    """Return the entry of a session's configuration for these execution providers.

    A library is registered before the providers are, and cannot see them: without this entry it
    takes CUDA for granted where there is a device.
    """
    return "ortkit.fused.target", "cuda" if "CUDAExecutionProvider" in providers else "cpu"

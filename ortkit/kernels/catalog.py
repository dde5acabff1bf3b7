"""The kernel backends, by name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ortkit.errors import UserError
from ortkit.kernels.backend import KernelBackend

BACKENDS: dict[str, str] = {
    "tvm": "ortkit.kernels.tvm.backend:TvmBackend",
    "triton": "ortkit.kernels.triton.backend:TritonBackend",
}


def load_backend(name: str) -> KernelBackend:
    """Return the backend called `name`, without importing its toolchain.

    Raises:
        UserError: There is none of this name.
    """
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise UserError(f"no kernel backend is called {name!r}", fix=f"use one of {known}")
    module, _, attribute = BACKENDS[name].partition(":")
    return cast(KernelBackend, getattr(import_module(module), attribute)())

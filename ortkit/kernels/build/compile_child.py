"""What a compiling process does: it loads a toolchain, and compiles one kernel after another."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from typing import cast

from ortkit.errors import OrtkitError
from ortkit.isolation.processes import one_line
from ortkit.kernels.backend import Kernel, KernelBackend
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tunable import Tunable
from ortkit.refusal import Refused
from ortkit.targets.target import Target


def load_toolchain(backend: str) -> None:
    """Import the toolchain of a backend, "module:attribute".

    Raises:
        Exception: Whatever stops it.
    """
    _backend(backend).load()


class Toolchain:
    """A backend with its toolchain."""

    def __init__(self, backend: str) -> None:
        """Take the name of a backend, "module:attribute"; `problem` loads it."""
        self._name = backend
        # Toolchains print the stack of a crash, which buries what they said before it.
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
            signal.signal(number, signal.SIG_DFL)

    def problem(self) -> str:
        """Return why the toolchain does not load; empty if it does."""
        try:
            load_toolchain(self._name)
        except Exception as error:  # noqa: BLE001  whatever stops a toolchain is the answer
            return one_line(str(error)) or type(error).__name__
        return ""

    def compile(
        self,
        signature: RegionSignature,
        target: Target,
        folder: Path,
        choices: str,
        is_trial: bool,
    ) -> Kernel | CudaKernel | Refused:
        """Compile a kernel into an empty folder; see `KernelBackend` and `Tunable`."""
        backend = _backend(self._name)
        try:
            if (choices or is_trial) and isinstance(backend, Tunable):
                return backend.compile_as(signature, target, folder, choices, is_trial=is_trial)
            return backend.compile(signature, target, folder)
        except OrtkitError as error:
            return Refused(one_line(error.problem))
        except Exception as error:  # noqa: BLE001  one region, never the whole call
            return Refused(one_line(f"{type(error).__name__}: {error}"))


def _backend(name: str) -> KernelBackend:
    module, _, attribute = name.partition(":")
    return cast(KernelBackend, getattr(import_module(module), attribute)())

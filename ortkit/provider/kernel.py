"""What a group runs when it is not Python: a function of the user's, or a kernel library's op."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ortkit.errors import UserError
from ortkit.provider import bridge
from ortkit.provider.native import KernelLibrary, library_path

#: What a function may be: the base of ctypes' functions has no public name.
_FUNCTIONS = (int, ctypes.c_void_p, ctypes.CFUNCTYPE(None).__mro__[1])


def header_folder() -> Path:
    """Return the folder of kernel.h, which kernels in C and C++ include.

    Raises:
        MissingDependencyError: ortkit is not installed.
    """
    return library_path().parent


@dataclass(frozen=True)
class Kernel:
    """A native kernel: `int32 function(void* user, OrtkitKernelContext*)`, as kernel.h has it.

    Either `function` or `library` and `op` are given.
    """

    function: object | None = None
    """A ctypes function or the address of one; must be ready for calls from several threads."""
    user: int = 0
    """Handed at each call to `function`, or to the function that `library` exports."""
    keep: object = None
    """Kept alive as long as the kernel: what `function` and `user` belong to. With a `user` the
    kernel is none for models that are compiled ahead of time."""
    library: Path | str | bytes | KernelLibrary | None = None
    """A kernel library of ortkit's: a file, its content, or one that is loaded."""
    op: str = ""
    """Which op of `library`, or which function that it exports."""
    label: str = ""
    """What messages and the trace call it; empty: the node's name."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """What the trace says beside its events."""
    inputs: tuple[int, ...] | None = None
    """Which of the subgraph's inputs the kernel's are, in order; None: the same."""
    outputs: tuple[int, ...] | None = None
    """Which of the subgraph's outputs the kernel's are; None: the same."""

    def __post_init__(self) -> None:
        if (self.function is None) == (self.library is None):
            raise UserError("a Kernel has either a function or a library")
        if self.function is not None and not isinstance(self.function, _FUNCTIONS):
            raise UserError(
                f"a Kernel's function is of type {type(self.function).__name__}",
                fix="give a ctypes function or an address; compile returns Python as it is",
            )
        if self.library is not None and not self.op:
            raise UserError("a Kernel of a library needs an op", fix="name one of the library's")

    def address(self) -> int | None:
        """Return where `function` begins; None if the kernel is a library's op."""
        if self.function is None:
            return None
        if isinstance(self.function, int):
            return self.function
        return ctypes.cast(cast(Any, self.function), ctypes.c_void_p).value

    def open_library(self) -> KernelLibrary | None:
        """Return the library that the kernel is of, if it is of one; loaded if it is not yet.

        Raises:
            UserError: It does not load.
        """
        if self.library is None:
            return None
        if isinstance(self.library, KernelLibrary):
            return self.library
        source = self.library if isinstance(self.library, bytes) else Path(self.library)
        return KernelLibrary(source)

    def kind(self) -> int:
        """Return what bridge.h calls it."""
        return bridge.KERNEL_FUNCTION if self.library is None else bridge.KERNEL_LIBRARY_OP

"""What a kernel compiler looks like to the rest of ortkit, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ortkit.kernels.signature import RegionSignature


@dataclass(frozen=True)
class Refused:
    """Why something cannot be done: a value, not an error."""

    reason: str


@dataclass(frozen=True)
class Target:
    """The machine that a kernel is made for.

    Args:
        kind: "cpu" or "cuda".
        level: For "cpu" one of `ortkit.kernels.cpu.LEVELS`, or "native" for the level of this
            machine.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    level: str = "native"


@dataclass(frozen=True)
class Kernel:
    """A compiled region on disk: what the linker and the shim need.

    Args:
        key: The signature's.
        backend: The backend's name.
        target: With its level resolved, never "native".
        artifact: An object file.
        symbol: The C function in it, `int32_t (void* tensor..., int64_t rows, int64_t columns)`.
        flops_per_point: The cost of one point of the iteration space, in simple operations.
        compile_seconds: 0 when it came from the cache.
    """

    key: str
    backend: str
    target: Target
    artifact: Path
    symbol: str
    flops_per_point: int
    compile_seconds: float


class KernelBackend(Protocol):
    """A compiler from signatures to kernels. Importing it must not import its toolchain."""

    @property
    def name(self) -> str:
        """The name in the catalog."""
        ...

    def available(self) -> Refused | None:
        """Say why the toolchain cannot be used here; None means that it can."""
        ...

    def fingerprint(self) -> str:
        """Name everything besides signature and target that decides what `compile` writes."""
        ...

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        """Say why `compile` may not be tried; None means that it may. Compiles nothing."""
        ...

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> Kernel:
        """Compile and write the artifact into `folder`.

        Raises:
            KernelError: The toolchain failed; the message holds its last lines of output.
        """
        ...

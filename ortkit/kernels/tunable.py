"""Backends that can make several kernels of one region, and how one of them is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from ortkit.kernels.backend import Kernel, Target
from ortkit.kernels.signature import RegionSignature


@runtime_checkable
class Tunable(Protocol):
    """A backend that can make several kernels of one region, which compute the same.

    Which one is told by choices, a text such as `vector=32,keep=0`: parameters that are not named
    have their defaults, and the empty text names none.
    """

    def parameters(
        self, signature: RegionSignature, target: Target
    ) -> Mapping[str, tuple[int, ...]]:
        """Return what can be chosen for an accepted region, and the default first of each."""
        ...

    def is_choice(self, choices: str) -> bool:
        """Say whether a text names choices that this version of the backend knows."""
        ...

    def compile_as(
        self, signature: RegionSignature, target: Target, folder: Path, choices: str
    ) -> Kernel:
        """Do what `compile` does, as `choices` say.

        Raises:
            KernelError: The toolchain failed.
        """
        ...

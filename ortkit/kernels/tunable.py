"""Backends that can make several kernels of one region, and how one of them is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from ortkit.kernels.backend import Kernel, Target
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature


@runtime_checkable
class Tunable(Protocol):
    """A backend that can make several kernels of one region, which compute the same.

    Which one is told by choices, a text such as `vector=32,keep=0`: parameters that are not named
    have their defaults, and the empty text names none.
    """

    @property
    def name(self) -> str:
        """The name in the catalog."""
        ...

    def parameters(
        self, signature: RegionSignature, target: Target
    ) -> Mapping[str, tuple[int, ...]]:
        """Return what can be chosen for an accepted region, and the default first of each."""
        ...

    def kind(self, signature: RegionSignature, target: Target) -> str:
        """Return what an accepted region is like: regions of one kind are served by one choice.

        Empty for one that nothing can be chosen for.
        """
        ...

    def is_choice(self, choices: str) -> bool:
        """Say whether a text names choices that this version of the backend knows."""
        ...

    def compile_as(
        self,
        signature: RegionSignature,
        target: Target,
        folder: Path,
        choices: str,
        *,
        is_trial: bool = False,
    ) -> Kernel | CudaKernel:
        """Do what `compile` does, as `choices` say.

        Args:
            signature: See `compile`.
            target: See `compile`.
            folder: See `compile`.
            choices: Which kernel.
            is_trial: It is only to be timed on the target itself, on aligned tensors: what other
                machines and tensors need may be left out.

        Raises:
            KernelError: The toolchain failed.
        """
        ...

"""Backends that can make several kernels of one region, and how one of them is named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from ortkit.kernels.backend import Kernel
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target

Chosen = TypeVar("Chosen")


def choices_text(chosen: Any) -> str:
    """Return what differs from the defaults in a dataclass of integers: `vector=32,keep=0`."""
    return ",".join(
        f"{field.name}={getattr(chosen, field.name)}"
        for field in fields(chosen)
        if getattr(chosen, field.name) != field.default
    )


def read_as(kind: type[Chosen], values: Mapping[str, tuple[int, ...]], text: str) -> Chosen | None:
    """Read what `choices_text` returns; None if it is no such text, or out of bounds.

    Args:
        kind: The dataclass, whose fields are the parameters.
        values: Of each parameter.
        text: What was chosen.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in values or name in found or not value.isdecimal():
            return None
        found[name] = int(value)
        if found[name] not in values[name]:
            return None
    return kind(**found)


def symbol_of(signature: RegionSignature, choices: str) -> str:
    """Return a kernel's C name; kernels for one region that differ can be linked together."""
    chosen = f"_{hashlib.sha256(choices.encode()).hexdigest()[:8]}" if choices else ""
    return f"ortkit_{signature.key}{chosen}"


@runtime_checkable
class Tunable(Protocol):
    """A backend that can make several kernels of one region, which compute the same.

    Which one is named by choices, a text such as `vector=32,keep=0`: parameters that are not named
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

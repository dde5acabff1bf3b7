"""The machine that a kernel is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A kind of machine, and a level or architectures of that kind.

    Args:
        kind: "cpu" or "cuda".
        level: For "cpu" one of `ortkit.targets.cpu.LEVELS`, or "native" for the level of this
            machine. For "cuda" architectures, separated by commas, such as "sm_80,sm_90"; "native"
            for those that have images of their own by default.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    level: str = "native"

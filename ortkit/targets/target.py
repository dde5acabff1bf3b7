"""The machine that a kernel is made for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.targets.catalog import Kind, traits_of
from ortkit.targets.traits import Traits


@dataclass(frozen=True)
class Target:
    """A kind of machine, and a level or architectures of that kind.

    Args:
        kind: Of `ortkit.targets.catalog.KINDS`. What it has is asked of `traits`, never its name.
        level: For "cpu" one of `ortkit.targets.cpu.LEVELS`, or "native" for the level of this
            machine. For "cuda" architectures, separated by commas, such as "sm_80,sm_90"; "native"
            for those that have images of their own by default.
    """

    kind: Kind = "cpu"
    level: str = "native"

    @property
    def traits(self) -> Traits:
        """What targets of this kind have."""
        return traits_of(self.kind)

    @property
    def levels(self) -> tuple[str, ...]:
        """The single levels that its level names, the newest first."""
        return self.traits.levels(self.level)

    def resolved(self) -> Target:
        """Return the same with its level in the one spelling that equal levels share.

        Raises:
            UserError: The level is unknown, or belongs to another kind of machine.
        """
        return replace(self, level=self.traits.resolve(self.level))

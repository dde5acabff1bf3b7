"""What can be chosen of a kernel in TE that has no schedule of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.kernels.tunable import choices_text, read_as

#: Parameter -> the values that it may have, the default first.
VALUES: Mapping[str, tuple[int, ...]] = {
    "vector": (16, 4, 8, 32, 64),
    "unroll": (1, 2, 4, 8),
    "reassociate": (0, 1),
}


@dataclass(frozen=True)
class Choices:
    """Which of the kernels is made.

    Args:
        vector: Lanes of the vectors along the last axis of outputs.
        unroll: Vectors in one step.
        reassociate: Whether floating-point numbers may be added up in another order (0 or 1):
            then a reduction along a row runs in vectors.
    """

    vector: int = 16
    unroll: int = 1
    reassociate: int = 0

    def __str__(self) -> str:
        """Return what differs from the defaults, such as `vector=32,unroll=2`."""
        return choices_text(self)


DEFAULTS = Choices()


def read_choices(text: str) -> Choices | None:
    """Read what `str` of choices returns; None if it is no such text, or out of bounds."""
    return read_as(Choices, VALUES, text)

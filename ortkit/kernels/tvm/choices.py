"""What the code generator may choose for a kernel, as data: its parameters and their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.kernels.tunable import choices_text, read_as

#: Parameter -> the values that it may have.
VALUES: Mapping[str, tuple[int, ...]] = {
    "vector": (4, 8, 16, 32, 64),
    "unroll": (1, 2, 4, 8),
    "accumulators": (1, 2, 4, 8, 16),
    "keep": (0, 1),
    "tile": (4, 8, 16),
    "unit_points": (64, 512, 4096, 32768),
    "reciprocal": (0, 1),
    "fetch": (0, 1024, 4096),
    "claim": (0, 1024, 4096),
    "pixels": (0, 4, 6, 8, 10, 12, 14),
    "panel": (0, 1, 2, 3, 4, 6),
    "keys": (0, 32, 64, 256, 512),
}


@dataclass(frozen=True)
class Choices:
    """Which of the kernels that compute the same is made; the defaults suit AVX-512.

    Args:
        vector: Lanes of a vector loop; more than a register has take several registers, whose
            operations do not wait for each other.
        unroll: Vectors in one step of a loop over points.
        accumulators: Vectors that a reduction along a row adds up into, side by side.
        keep: Whether what several passes over a row need is kept on the stack, and not computed
            again (0 or 1).
        tile: Rows and columns of tiles that are transposed in registers.
        unit_points: A unit of work should have this many points, so that finding its place
            costs little.
        reciprocal: Whether what is divided by the same number in all lanes is multiplied by its
            inverse, which is rounded once more (0 or 1).
        fetch: How many bytes ahead inputs are asked for, so that they have come when they are
            read; 0: left to the processor, whose own guesses end with each page.
        claim: How many bytes ahead the memory of outputs is asked for; 0: left to the processor.
        pixels: Of a convolution that are computed side by side; 0: as many as its rule says.
        panel: Vectors of channels, or of queries, that are; 0: as many as its rule says.
        keys: Of a block of attention; 0: as many as its rule says.
    """

    vector: int = 16
    unroll: int = 1
    accumulators: int = 4
    keep: int = 1
    tile: int = 16
    unit_points: int = 512
    reciprocal: int = 0
    fetch: int = 0
    claim: int = 0
    pixels: int = 0
    panel: int = 0
    keys: int = 0

    def __str__(self) -> str:
        """Return what differs from the defaults, such as `vector=32,keep=0`."""
        return choices_text(self)


DEFAULTS = Choices()


def read_choices(text: str) -> Choices | None:
    """Read what `str` of choices returns; None if it is no such text, or out of bounds."""
    return read_as(Choices, VALUES, text)

"""What tuning may choose for a Triton kernel, as data: its parameters and their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.kernels.tunable import choices_text, read_as

#: Parameter -> the values that it may have; 0 leaves it to the analytical model.
VALUES: Mapping[str, tuple[int, ...]] = {
    "tile": (0, 256, 512, 1024, 2048, 4096, 8192),
    "rows": (0, 1, 2, 4, 8, 16, 32, 64),
    "warps": (0, 1, 2, 4, 8, 16),
    "stages": (0, 1, 2, 3, 4),
}


@dataclass(frozen=True)
class Choices:
    """Which of the kernels that compute the same is made; 0: what the model says.

    Args:
        tile: Points of a tile: of one dim, or what there is of a row in a loop over tiles.
        rows: Of a tile of two dims; where nothing is reduced its points stay as many.
        warps: Of 32 threads.
        stages: Turns of a loop that are loaded ahead, as Triton counts them.
    """

    tile: int = 0
    rows: int = 0
    warps: int = 0
    stages: int = 0

    def __str__(self) -> str:
        """Return what differs from the defaults, such as `tile=512,warps=4`."""
        return choices_text(self)


DEFAULTS = Choices()


def read_choices(text: str) -> Choices | None:
    """Read what `str` of choices returns; None if it is no such text, or out of bounds."""
    return read_as(Choices, VALUES, text)

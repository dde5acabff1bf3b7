"""The manners in which a model may be written, its sizes, and what it is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["normal", "positive", "mask", "blank", "positions"]
"""Of inputs; `mask` keeps the first places of each row, `blank` none in the last row."""
#: How many rows the tables have that `ids` and `positions` look into.
ROWS = 32


@dataclass(frozen=True)
class Manner:
    """What is the same all over one model."""

    opset: int
    dynamic: bool = True
    """Named sizes stay symbolic; otherwise they are numbers."""
    constants: Literal["initializer", "node", "vector"] = "initializer"
    """Where numbers live; `vector`: initializers of shape [1] instead of []."""
    swapped: bool = False
    """Operands of Add, Mul, Min and Max the other way round."""
    read: bool = False
    """Whether a node reads the result; otherwise it is an output of the graph."""

    @property
    def text(self) -> str:
        """A short name."""
        words = ["dynamic" if self.dynamic else "static", self.constants]
        words += ["swapped"] * self.swapped + ["read"] * self.read
        return "-".join([str(self.opset), *words])


#: Every opset once; the other traits in all pairs.
MANNERS = (
    Manner(17, True, "node", False, True),
    Manner(20, True, "initializer", True, False),
    Manner(13, False, "initializer", False, True),
    Manner(18, False, "vector", True, True),
    Manner(14, True, "node", True, False),
    Manner(23, True, "vector", False, False),
    Manner(15, False, "node", False, False),
    Manner(21, False, "initializer", True, True),
    Manner(16, True, "vector", True, True),
    Manner(24, True, "initializer", False, True),
    Manner(19, False, "node", True, True),
    Manner(22, True, "initializer", False, False),
)
#: The sizes of two runs: B batch, S and T lengths, P past, X and Y of an image.
SIZES: tuple[Mapping[str, int], Mapping[str, int]] = (
    {"B": 2, "S": 6, "T": 7, "P": 3, "X": 8, "Y": 4},
    {"B": 1, "S": 9, "T": 4, "P": 5, "X": 4, "Y": 12},
)


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return a number, or the size that text such as `P+S` means."""
    return dim if isinstance(dim, int) else sum(sizes[name] for name in dim.split("+"))


def values_of(random: np.random.Generator, kind: Kind, dims: Sequence[int]) -> np.ndarray:
    """Draw what an input of a kind is fed."""
    match kind:
        case "normal":
            return 2 * random.standard_normal(dims)
        case "positive":
            return 0.5 + random.random(dims)
        case "mask":
            # Padding at the right; the first place of a row is never masked.
            lengths = random.integers(1, dims[-1] + 1, dims[:-1])
            return np.arange(dims[-1]) < lengths[..., None]
        case "blank":
            lengths = random.integers(1, dims[-1] + 1, dims[:-1])
            lengths[-1] = 0
            return np.arange(dims[-1]) < lengths[..., None]
        case _:
            return np.broadcast_to(np.arange(dims[-1]), dims) + 1

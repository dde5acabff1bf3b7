"""What `compare --nodes` finds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

SCHEMA = "ortkit.compare-nodes/1"

State: TypeAlias = Literal[
    "same", "rounding", "carried", "sensitive", "diverges", "fails", "not compared"
]
"""`same`: no error at all; `rounding`: within the tolerance; `carried`: too far off, but B makes
it right from what A has before it; `sensitive`: it is no further off than A's own nodes bring
it when their inputs are rounded otherwise; `diverges`: B makes another value from the same
inputs; `fails`: B does not run so far; `not compared`: random, or one of both has no value."""


@dataclass(frozen=True)
class ValueRow:
    """A value that both models have, and the nodes that make it from the values before it."""

    value: str
    before: tuple[str, ...]
    """Nodes of A."""
    after: tuple[str, ...]
    """Nodes of B."""
    op_before: str
    """The operator that makes it in A."""
    op_after: str
    """... in B; empty for a constant."""
    state: State
    dtype: str = ""
    shape: tuple[int, ...] = ()
    error_eps: float | None = None
    """How far the value is off in B, in epsilons of its type at the scale of its row."""
    own_error_eps: float | None = None
    """How far it is off when B makes it from what A has before it."""
    allowed_eps: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the fields; an infinite error, which JSON has not, comes as a text."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: object) -> object:
    return "infinite" if isinstance(value, float) and math.isinf(value) else value


@dataclass(frozen=True)
class Reproducer:
    """A step as two models, with its inputs."""

    original: Path
    candidate: Path
    inputs: Path
    library: Path | None
    command: str
    """That shows the divergence."""


@dataclass(frozen=True)
class Divergence:
    """The first value, in A's order, that B makes otherwise."""

    row: ValueRow
    inputs: tuple[str, ...]
    """What the step reads: equal in both when it is compared."""
    inside: str = ""
    """Where the two part within a body of control flow; empty elsewhere."""
    blame: str = ""
    """What more is known: whether a kernel or the function of its node is wrong."""
    reproducer: Reproducer | None = None

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        made = self.reproducer
        return {
            "value": self.row.to_json(),
            "inputs": list(self.inputs),
            "inside": self.inside,
            "blame": self.blame,
            "reproducer": None
            if made is None
            else {
                "original": str(made.original),
                "candidate": str(made.candidate),
                "inputs": str(made.inputs),
                "library": None if made.library is None else str(made.library),
                "command": made.command,
            },
        }


@dataclass(frozen=True)
class NodeReport:
    """Two models, value by value."""

    before: str
    after: str
    rows: tuple[ValueRow, ...]
    """In the order in which A computes them."""
    first: Divergence | None
    outputs: tuple[str, ...]
    """Outputs of the models that are further off than is allowed."""
    suspect: ValueRow | None
    """Where outputs differ and no value diverges: the one with the largest part of its own."""
    nodes_before: int
    nodes_after: int
    notes: tuple[str, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether no value diverges and all outputs agree."""
        return self.first is None and not self.outputs

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit compare --nodes --json`."""
        return {
            "schema": SCHEMA,
            "before": self.before,
            "after": self.after,
            "good": self.is_good,
            "first": None if self.first is None else self.first.to_json(),
            "outputs": list(self.outputs),
            "suspect": None if self.suspect is None else self.suspect.to_json(),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "values": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }

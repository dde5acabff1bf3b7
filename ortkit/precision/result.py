"""What fewer bits cost and gained: the content of the report's `precision`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ortkit.precision.budget import Point
from ortkit.precision.whole_model import WholeTime
from ortkit.verify.accuracy import OutputAccuracy


@dataclass(frozen=True)
class NodeOutcome:
    """One product: what it costs and gains in its form, and whether it took it."""

    name: str
    """Of what it computes."""
    op: str
    form: str
    own_error: float
    """Of its value, on what the original gives it."""
    harm: float
    """The error of the outputs when it alone takes its form."""
    float_us: float | None
    """Its time in float32, as measured; None if it was not timed."""
    lowered_us: float | None
    """Its time in its form; of convolutions without what converts at the ends."""
    lowered: bool
    reason: str
    """Why it is not lowered, or not to the precision that was asked for; else empty."""


@dataclass(frozen=True)
class PrecisionReport:
    """What became of the products, and how far the outputs are off."""

    precision: str
    max_error: float
    nodes: tuple[NodeOutcome, ...]
    """The candidates, in the order of the graph."""
    curve: tuple[Point, ...]
    """The trade-off, from no product lowered to all."""
    outputs: tuple[OutputAccuracy, ...]
    """Of the result against the original; empty if it was not measured."""
    data: str
    """What it was measured on."""
    is_random: bool
    """Whether that was made up."""
    samples: int
    smoothed: int
    """Norms whose outliers were moved into the weights behind them."""
    notes: tuple[str, ...]
    taken: int = 0
    """Which point of the trade-off it is: its `lowered`."""
    time: WholeTime | None = None
    """Of the whole model in float32 and in the lower precision; None if it was not timed."""

    @property
    def lowered(self) -> int:
        """How many products take their form."""
        return sum(node.lowered for node in self.nodes)

    @property
    def error(self) -> float | None:
        """The error of the worst output; None if it was not measured."""
        return max((output.error for output in self.outputs), default=None)

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON's types; what is infinite or no number comes as None."""
        error = self.error
        return {
            "precision": self.precision,
            "max_error": self.max_error,
            "lowered": self.lowered,
            "taken": self.taken,
            "error": error if error is not None and math.isfinite(error) else None,
            "data": self.data,
            "is_random": self.is_random,
            "samples": self.samples,
            "smoothed": self.smoothed,
            "time": None if self.time is None else asdict(self.time),
            "outputs": [output.to_json() for output in self.outputs],
            "nodes": [_finite(asdict(node)) for node in self.nodes],
            "curve": [_finite(asdict(point)) for point in self.curve],
            "notes": list(self.notes),
        }


def _finite(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }

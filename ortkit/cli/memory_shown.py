"""What `ortkit memory` found, ready to be printed or plotted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.graph.analysis.weights import Weights
    from ortkit.measure.layout_result import Layouts
    from ortkit.runtime.memory.arena_options import ArenaOptions
    from ortkit.runtime.memory.node_table import Peak
    from ortkit.runtime.memory.point import Point


@dataclass(frozen=True)
class ShownPoint:
    """One set of sizes and what was measured there."""

    sizes: Mapping[str, int]
    """Those that were given."""
    inputs: Mapping[str, tuple[int, ...]]
    input_bytes: int
    point: Point
    cache_bytes: int | None = None
    """Of a decoder, with the new tokens; None: it is no decoder."""

    @property
    def peak(self) -> Peak | None:
        """The fullest arena's; None if that is not known."""
        from ortkit.runtime.memory.node_table import NodeMemory

        nodes = self.point.nodes
        peaks = nodes.peaks if isinstance(nodes, NodeMemory) else ()
        return max(peaks, key=lambda one: one.bytes, default=None)


@dataclass(frozen=True)
class Shown:
    """Everything that was measured."""

    model: Path
    target: str
    weights: Weights
    points: tuple[ShownPoint, ...]
    swept: tuple[str, ...]
    """Names of the sizes that differ from point to point."""
    stopped: str
    """At which sizes it did not run any more, and why; empty if it did at all."""
    options: ArenaOptions | None
    layouts: Layouts | None

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return {
            "model": str(self.model),
            "target": self.target,
            "weights": self.weights.to_json(),
            "points": [
                {
                    "sizes": dict(point.sizes),
                    "inputs": {name: list(shape) for name, shape in point.inputs.items()},
                    "input_bytes": point.input_bytes,
                    "cache_bytes": point.cache_bytes,
                    **point.point.to_json(),
                }
                for point in self.points
            ],
            "stopped": self.stopped,
            "arena": None if self.options is None else self.options.to_json(),
            "layout": None if self.layouts is None else self.layouts.to_json(),
        }

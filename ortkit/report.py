"""What an optimization did, refused and cost: the content of `--report` and `--json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ortkit.graph.summary import Summary

if TYPE_CHECKING:
    from ortkit.rewrite.log import Hit, Miss
    from ortkit.rewrite.pipeline import Step
    from ortkit.verify.verification import Verification

SCHEMA = "ortkit.optimize/1"


@dataclass(frozen=True)
class RegionReport:
    """One region: what it is and what became of it."""

    kind: str
    at: str
    """Its last node's output, as the original model names it."""
    nodes: int
    emitted_as: str | None
    """The fused node's op type, None if it stays as it is."""
    reason: str
    """Why it stays, empty if it does not."""


@dataclass(frozen=True)
class Report:
    """Everything that `ortkit optimize` has to say."""

    source: str
    target: str
    level: int
    before: Summary
    after: Summary
    steps: tuple[Step, ...]
    settled: bool
    hits: tuple[Hit, ...]
    misses: tuple[Miss, ...]
    regions: tuple[RegionReport, ...]
    rolled_back: tuple[str, ...]
    """Ids of rewrites that changed results beyond the tolerance, and were undone."""
    verification: Verification | None
    """None if it was not asked for."""
    kernel_note: str
    """Why no kernel library was made, empty if one was or none was asked for."""
    seconds: dict[str, float]
    """Wall time of each stage."""

    def rewrites_by_pass(self) -> dict[str, int]:
        """Count the rewrites of each pass, most first."""
        return dict(Counter(hit.pass_name for hit in self.hits).most_common())

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON types; docs/cli.md describes the keys."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "target": self.target,
            "level": self.level,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "rewrites_by_pass": self.rewrites_by_pass(),
            "rewrites": [asdict(hit) for hit in self.hits],
            "refused": [asdict(miss) for miss in self.misses],
            "regions": [asdict(region) for region in self.regions],
            "rolled_back": list(self.rolled_back),
            "verification": None if self.verification is None else self.verification.to_json(),
            "kernel_note": self.kernel_note,
            "settled": self.settled,
            "steps": [asdict(step) for step in self.steps],
            "seconds": self.seconds,
        }

"""The verdict on one candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ortkit.verify.compare import OutputComparison

Verdict: TypeAlias = Literal["yes", "no", "not possible"]


@dataclass(frozen=True)
class Verification:
    """Whether a candidate gives what the original gives, and how that is known."""

    verdict: Verdict
    reason: str
    outputs: tuple[OutputComparison, ...] = ()
    samples: int = 0
    seconds: float = 0.0
    excluded: tuple[str, ...] = ()
    """Outputs that depend on random numbers, which no two runs share."""

    @property
    def is_good(self) -> bool:
        """Whether the candidate agrees with the original."""
        return self.verdict == "yes"

    @property
    def near_ties(self) -> int:
        """How many elements differ, but are as good an answer."""
        return sum(output.near_ties for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        """Return the fields, as JSON's types."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "outputs": [output.to_json() for output in self.outputs],
            "samples": self.samples,
            "seconds": round(self.seconds, 3),
            "excluded": list(self.excluded),
        }

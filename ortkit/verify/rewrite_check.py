"""What the comparison of the values of two graphs found."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.verify.compare import OutputComparison
from ortkit.verify.inputs.guard_coverage import GuardCoverage


@dataclass(frozen=True)
class RewriteCheck:
    """What stage 1 found."""

    compared: tuple[str, ...] = ()
    """The values that were compared, by name."""
    wrong: tuple[OutputComparison, ...] = ()
    inconclusive: tuple[OutputComparison, ...] = ()
    late: tuple[str, ...] = ()
    """The values that there was no time for, by name."""
    problem: str = ""
    """Why nothing was compared; empty if something was."""
    guards: GuardCoverage | None = None
    """What the input sets meet of the original; None if that was not measured."""

    def with_part(self, other: RewriteCheck) -> RewriteCheck:
        """Return what this and another one found, on other values of the same models."""
        return RewriteCheck(
            self.compared + other.compared,
            self.wrong + other.wrong,
            self.inconclusive + other.inconclusive,
            self.late + other.late,
            self.problem or other.problem,
            self.guards or other.guards,
        )

    def to_json(self) -> dict[str, object]:
        """Return the fields, as JSON's types."""
        return {
            "compared": list(self.compared),
            "wrong": [each.to_json() for each in self.wrong],
            "inconclusive": [each.to_json() for each in self.inconclusive],
            "late": list(self.late),
            "problem": self.problem,
        }

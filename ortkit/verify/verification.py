"""The verdict on one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

from ortkit.verify.compare import ILL_CONDITIONED, OutputComparison
from ortkit.verify.rewrite_check import RewriteCheck

Verdict: TypeAlias = Literal["yes", "no", "partly", "not possible"]

#: Longer lists of what was not compared are cut; the JSON has all of them.
_MOST_NAMED = 6


@dataclass(frozen=True)
class Gap:
    """Something that was not compared."""

    what: str
    """An output or kernels, such as `output 'y'`."""
    reason: str
    fix: str = ""
    """What the user can give to have it compared; empty if nothing helps."""
    needs_hardware: bool = False
    """Whether only another machine can compare it: it has hardware that this one lacks."""


@dataclass(frozen=True)
class Verification:
    """Whether a candidate gives what the original gives, and how that is known."""

    verdict: Verdict
    """`partly`: all that was compared agrees, and `not_compared` holds the rest."""
    reason: str
    outputs: tuple[OutputComparison, ...] = ()
    samples: int = 0
    seconds: float = 0.0
    excluded: tuple[str, ...] = ()
    """Outputs that depend on random numbers, which no two runs share."""
    not_compared: tuple[Gap, ...] = ()
    fix: str = ""
    """What the user can give to make a verification possible; empty if nothing helps."""
    has_run: bool = True
    """Whether the models ran as they are, and not only in float32."""
    values: RewriteCheck = field(default_factory=RewriteCheck)
    """The values between the inputs and the outputs, compared in float32."""
    notes: tuple[str, ...] = ()
    """What is odd about the inputs that were given."""
    batch: str = ""
    """How a fixed batch was compared; empty if there is none."""
    input_sets: tuple[str, ...] = ()
    """The sizes and kinds of values of each input set; `samples` of them."""
    dropped_sets: tuple[str, ...] = ()
    """Those that were made and not used, with the reasons."""

    @property
    def is_good(self) -> bool:
        """Whether the candidate agrees with the original in all that was compared."""
        return self.verdict in ("yes", "partly")

    @property
    def lacks_hardware_only(self) -> bool:
        """Whether a machine with other hardware can compare all that was not compared."""
        return self.verdict == "partly" and all(gap.needs_hardware for gap in self.not_compared)

    @property
    def near_ties(self) -> int:
        """How many elements differ, but are as good an answer."""
        return sum(output.near_ties for output in self.outputs)

    def beside(self, gaps: tuple[Gap, ...], remark: str) -> Verification:
        """Return this verdict with a remark, and with what another check did not compare.

        Args:
            gaps: Of the other check, which found nothing wrong either.
            remark: How this one was made.
        """
        added = tuple(gap for gap in gaps if gap not in self.not_compared)
        reason = f"{self.reason}; {remark}"
        if not added or not self.is_good:
            return replace(self, reason=reason)
        return replace(
            self,
            verdict="partly",
            reason=f"{reason}; not compared: {gaps_text(added)}",
            not_compared=self.not_compared + added,
        )

    def with_ill_conditioned_compared(self, remark: str) -> Verification:
        """Return this verdict where another check compared what is ill-conditioned in this one.

        Args:
            remark: What that check did.
        """
        unsure = {
            f"output {output.name!r}"
            for output in self.outputs
            if output.is_inconclusive and output.reason.startswith(ILL_CONDITIONED)
        }
        left = tuple(gap for gap in self.not_compared if gap.what not in unsure)
        if self.verdict != "partly" or left == self.not_compared:
            return self
        missing = f"not compared: {gaps_text(self.not_compared)}"
        instead = f"{remark}; not compared: {gaps_text(left)}" if left else remark
        return replace(
            self,
            verdict="partly" if left else "yes",
            reason=self.reason.replace(missing, instead),
            not_compared=left,
        )

    def to_json(self, schema: int = 2) -> dict[str, object]:
        """Return the fields, as JSON's types.

        Args:
            schema: 1 leaves out what came with 2, and says `yes` for `partly` as it did then.
        """
        content: dict[str, object] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "outputs": [output.to_json() for output in self.outputs],
            "samples": self.samples,
            "seconds": round(self.seconds, 3),
            "excluded": list(self.excluded),
        }
        if schema == 1:
            return {**content, "verdict": "yes" if self.is_good else self.verdict}
        return {
            **content,
            "not_compared": [asdict(gap) for gap in self.not_compared],
            "fix": self.fix,
            "values": self.values.to_json(),
            "notes": list(self.notes),
            "batch": self.batch,
            "input_sets": list(self.input_sets),
            "dropped_sets": list(self.dropped_sets),
            "guards": None if self.values.guards is None else self.values.guards.to_json(),
        }


def gaps_text(gaps: Iterable[Gap]) -> str:
    """Return what was not compared on one line, things with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        by_reason.setdefault(gap.reason, []).append(gap.what)
    parts = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        parts.append(f"{', '.join(names[:_MOST_NAMED])}{more} ({reason})")
    return "; ".join(parts)

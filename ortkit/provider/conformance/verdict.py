"""What came of one case."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["right", "wrong", "error", "crash", "not claimed", "not run"]
#: `wrong`: claimed, and other results than expected. `error`: ONNX Runtime without the provider
#: runs it, with it not. `crash`: the process died, or hung. `not run`: ONNX Runtime does not run
#: it without the provider either.
STATUSES: tuple[Status, ...] = ("right", "wrong", "error", "crash", "not claimed", "not run")
FAULTS = frozenset({"wrong", "error", "crash"})
SCHEMA = "ortkit.provider/1"


@dataclass(frozen=True)
class Verdict:
    """What a provider did with one case.

    Args:
        case: Its name.
        status: See `STATUSES`.
        claimed: The operators that the provider took, sorted.
        detail: What is wrong, empty if nothing is.
        seconds: That it took.
    """

    case: str
    status: Status
    claimed: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        """Whether the provider is to blame."""
        return self.status in FAULTS


@dataclass(frozen=True)
class Conformance:
    """What came of all cases.

    Args:
        provider: Its name.
        options: That it was given.
        versions: Of what was tested with.
        verdicts: In the order of the cases.
    """

    provider: str
    options: dict[str, str]
    versions: dict[str, str]
    verdicts: tuple[Verdict, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many cases there are of each status."""
        found = Counter(verdict.status for verdict in self.verdicts)
        return {status: found[status] for status in STATUSES}

    @property
    def faults(self) -> tuple[Verdict, ...]:
        """Those that the provider is to blame for."""
        return tuple(verdict for verdict in self.verdicts if verdict.is_fault)

    def by_operator(self) -> dict[str, Counter[str]]:
        """Return how many cases of each status there are for each operator that was claimed."""
        found: dict[str, Counter[str]] = {}
        for verdict in self.verdicts:
            for op in verdict.claimed:
                found.setdefault(op, Counter())[verdict.status] += 1
        return dict(sorted(found.items()))

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit provider test --json`."""
        return {
            "schema": SCHEMA,
            "provider": self.provider,
            "options": self.options,
            "versions": self.versions,
            "conforms": not self.faults,
            "counts": dict(self.counts),
            "cases": [asdict(verdict) for verdict in self.verdicts],
        }

"""The verdicts on kernels that were run alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from ortkit.verify.verification import Gap

Verdict: TypeAlias = Literal["passed", "failed", "not run"]

#: What is not known of a kernel that Triton's interpreter ran.
INTERPRETED = "interpreted, not run on a GPU"


@dataclass(frozen=True)
class KernelRow:
    """The verdict on one kernel."""

    op_type: str
    verdict: Verdict
    reason: str = ""
    """The case that failed and how, or why it was not run."""
    needs_hardware: bool = False
    """Whether only another machine can run it."""
    error: float = 0.0
    """The kernel's error where it is largest beside what is allowed, in epsilons of the result."""
    body_error: float = 0.0
    """What its body in working precision errs there."""
    ratio: float = 0.0
    """The error as a part of what is allowed."""
    cases: int = 0
    """Sizes and kinds of values that were tried."""
    runs: int = 0
    """Runs of the kernel: a case is run in several ways."""
    skipped: int = 0
    """Cases at which the body does not run."""
    left_out: int = 0
    """Sizes that there was no time for."""
    seconds: float = 0.0
    reference: str = "float64"
    """What it was compared with."""
    is_cached: bool = False
    """Whether the verdict is that of an earlier run."""
    is_interpreted: bool = False
    """Whether Triton's interpreter ran it, and no GPU."""
    note: str = ""
    """Which variants of it were not run, and why."""


@dataclass(frozen=True)
class KernelReport:
    """The verdicts on the distinct kernels of a model."""

    rows: tuple[KernelRow, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[KernelRow, ...]:
        """The kernels that give something else than their bodies."""
        return tuple(row for row in self.rows if row.verdict == "failed")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The kernels that were not run, and those that were interpreted instead.

        Kernels that lack hardware and have no source are listed by the check of the whole model.
        """
        found = Counter(gap for row in self.rows if (gap := _gap(row)) is not None)
        return tuple(
            replace(gap, what="1 kernel" if count == 1 else f"{count} kernels")
            if not gap.what
            else gap
            for gap, count in found.items()
        )

    def summary(self) -> str:
        """Say in a few words what was checked."""
        run = [row for row in self.rows if row.verdict == "passed"]
        if not run:
            return "no kernel was run alone"
        parts = []
        for is_interpreted in (False, True):
            rows = [row for row in run if row.is_interpreted is is_interpreted]
            count = "1 kernel" if len(rows) == 1 else f"{len(rows)} kernels"
            how = "interpreted alone" if is_interpreted else "run alone"
            cases = sum(row.cases for row in rows)
            parts += [f"{count} {how} in {cases} cases"] if rows else []
        worst = max(row.ratio for row in run)
        return f"{', '.join(parts)}, at most {worst:.0%} of the allowed error"

    def to_json(self) -> dict[str, object]:
        """Return the rows, as JSON's types."""
        return {"rows": [asdict(row) for row in self.rows], "seconds": round(self.seconds, 3)}


def _gap(row: KernelRow) -> Gap | None:
    """Return what is not known of a kernel, None for nothing; equal ones have no name."""
    if row.verdict == "passed" and row.is_interpreted:
        return Gap("", f"alone: {INTERPRETED}", needs_hardware=True)
    if row.verdict != "not run":
        return None
    if row.is_interpreted:
        return Gap(f"kernel {row.op_type!r}", f"alone: not run: {row.reason}", needs_hardware=True)
    return None if row.needs_hardware else Gap("", f"alone: {row.reason}")

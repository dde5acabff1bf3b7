"""The one call: a provider against the cases, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ortkit.errors import UserError
from ortkit.provider.conformance.cases import SAMPLE, case_folder, chosen
from ortkit.provider.conformance.pool import Bench, judge_all
from ortkit.provider.conformance.subject import Subject
from ortkit.provider.conformance.verdict import Conformance
from ortkit.version import __version__


def _silent(stage: str) -> None:
    """Ignore progress."""


def _uncounted(done: int, total: int) -> None:
    """Ignore how far it is."""


@dataclass(frozen=True)
class ConformanceOptions:
    """How to test; the defaults are those of `ortkit provider test`."""

    pattern: str = ""
    """Only cases whose names match, as a shell has it."""
    sample: int | None = SAMPLE
    """About how many of these, the same each time; None for all."""
    jobs: int = 0
    """Processes at a time; 0: as many as there are cores, at most 8."""
    seconds: float = 60.0
    """After so long a case counts as hung."""
    progress: Callable[[str], None] = _silent
    """Called with the name of each stage as it begins."""
    count: Callable[[int, int], None] = _uncounted
    """Called with how many cases are judged, and of how many."""

    def __post_init__(self) -> None:
        if self.jobs < 0 or self.seconds <= 0:
            raise UserError("--jobs and --seconds are positive numbers", where="provider test")


def conform(subject: Subject, options: ConformanceOptions | None = None) -> Conformance:
    """Judge what a provider does with the node cases of the ONNX standard.

    Raises:
        UserError: There is no such provider, it does not register, or no case matches.
    """
    options = options or ConformanceOptions()
    options.progress("start")
    with ExitStack() as stack:
        first = stack.enter_context(Bench(subject, options.seconds))
        names = chosen(case_folder().names, options.pattern, options.sample)
        if not names:
            fix = "see the names in onnx/backend/test/case/node, such as 'test_add*'"
            raise UserError(f"no case matches {options.pattern!r}", where="--only", fix=fix)
        jobs = min(options.jobs or _cores(), len(names))
        more = [stack.enter_context(Bench(subject, options.seconds)) for _ in range(jobs - 1)]
        options.progress("cases")
        order = {name: index for index, name in enumerate(names)}
        found = sorted(
            judge_all([first, *more], names, options.count),
            key=lambda verdict: order[verdict.case],
        )
    versions = {name: _version(name) for name in ("onnxruntime", "onnx")}
    return Conformance(
        first.provider, dict(subject.options), {"ortkit": __version__, **versions}, tuple(found)
    )


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"

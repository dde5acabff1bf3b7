"""Which rewrite breaks a model? The content of `ortkit bisect`."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.optimization.call import OptimizeOptions, Source, optimize
from ortkit.rewrite.log import Hit
from ortkit.temporary import TemporaryFolder
from ortkit.verify.fixed_batch import verifier_of

SCHEMA = "ortkit.bisect/1"

Verdict = Literal["sound", "guilty", "not found", "not possible"]


@dataclass(frozen=True)
class BreakingRewrite:
    """A rewrite without which the result is right."""

    id: str
    """`pass:rule:output`, as reports name it."""
    pass_name: str
    rule: str
    node: str
    """The op type and name of the node it was found at."""


@dataclass(frozen=True)
class Bisection:
    """What breaks a model, if anything does."""

    source: str
    verdict: Verdict
    """`not found`: the result is wrong and no small set of rewrites is to blame; `not
    possible`: the original cannot be compared with."""
    reason: str
    """What was compared, or how the result with all rewrites is wrong."""
    rewrites: int
    """Rewrites that were done."""
    guilty: tuple[BreakingRewrite, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit bisect --json`."""
        return {"schema": SCHEMA, **asdict(self)}


def bisect_model(source: Source, options: OptimizeOptions | None = None) -> Bisection:
    """Find the rewrites that change what a model computes; writes nothing.

    Args:
        source: As for `optimize`.
        options: As for `optimize`; verification is on whatever they say.

    Raises:
        CheckError: The result is wrong even without any rewrite.
        ModelError, UserError, MissingDependencyError: As `optimize`.
    """
    options = options or OptimizeOptions()
    options = replace(options, verify=options.verify or True)
    started = time.perf_counter()
    where = str(source) if isinstance(source, str | os.PathLike) else "(memory)"
    report = optimize(source, options).report
    found = report.verification
    if found is None or found.verdict == "not possible":
        verdict: Verdict = "not possible"
    elif report.rolled_back:
        verdict = "guilty"
    else:
        verdict = "sound" if found.is_good else "not found"
    hits, reason = report.hits, found.reason if found is not None else ""
    if report.rolled_back:
        options.progress("show what it breaks")
        hits, reason = _all_rewrites(source, options)
    known = {hit.id: hit for hit in hits}
    guilty = tuple(
        BreakingRewrite(hit.id, hit.pass_name, hit.rule, hit.node)
        for hit in (known[identity] for identity in report.rolled_back)
    )
    seconds = round(time.perf_counter() - started, 3)
    return Bisection(where, verdict, reason, len(hits), guilty, seconds)


def _all_rewrites(source: Source, options: OptimizeOptions) -> tuple[tuple[Hit, ...], str]:
    """Return every rewrite that is done when none is held back, and how the result is wrong."""
    with TemporaryFolder("bisect") as folder:
        broken = optimize(source, replace(options, verify=False, check_load=False))
        candidate, original = folder / "candidate.onnx", folder / "original.onnx"
        save_model(broken.model, candidate, is_temporary=True)
        if isinstance(source, str | os.PathLike):
            original = Path(source)
        else:
            save_model(open_model(source), original, is_temporary=True)
        with verifier_of(
            original,
            samples=options.samples,
            coverage=options.coverage,
            inputs=options.inputs,
            shapes=options.shapes,
            seconds=options.verify_seconds,
            memory_mib=options.verify_memory,
            tolerance=options.tolerance,
            is_usual=options.precision != "fp32",
        ) as verifier:
            found = verifier.check(candidate, library=broken.library, keeps_names=True)
        return broken.report.hits, found.reason

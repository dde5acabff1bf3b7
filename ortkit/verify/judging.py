"""What a candidate's results are worth beside the original's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ortkit.verify.compare import OutputComparison, compare_outputs, worse
from ortkit.verify.exchange import read_values
from ortkit.verify.feeds import Value
from ortkit.verify.reference import Reference
from ortkit.verify.sessions import SessionResult
from ortkit.verify.summary import DEPLOYED

_OFF = "with optimizations off"


def judge(
    reference: Reference, folder: Path, results: Sequence[SessionResult]
) -> tuple[tuple[OutputComparison, ...], str]:
    """Return the worst comparison per output, and why the candidate is not good, if so.

    Args:
        reference: The original's.
        folder: Holds the candidate's results, `plain` and `optimized`.
        results: Of these two sessions.
    """
    worst: dict[str, OutputComparison] = {}
    reason = ""
    settings = (("plain", _OFF), ("optimized", DEPLOYED))
    for result, (name, setting) in zip(results, settings, strict=True):
        if name == "optimized" and reference.own_problem:
            continue  # the original does not run so either: nothing to hold the candidate to
        reason = reason or _broken(reference, result, setting)
        if reason:
            break
        for found, where in _compare(reference, folder / name, setting):
            known = worst.get(found.name)
            worst[found.name] = found if known is None else worse(known, found)
            if not found.equal and not reason:
                reason = f"output {found.name!r} {where}: {found.reason}"
    return tuple(worst.values()), reason


def _broken(reference: Reference, result: SessionResult, setting: str) -> str:
    """Say why a session gave no results to compare, or has another interface."""
    if not result.is_loaded:
        return f"the candidate cannot be loaded {setting}: {result.problem}"
    for kind, wanted, got in (
        ("output", reference.outputs, result.outputs),
        ("input", reference.inputs, result.inputs),
    ):
        lost = [name for name in wanted if name not in got]
        new = [name for name in got if name not in wanted]
        if lost:
            return f"the candidate lacks the {kind} {lost[0]!r}"
        if new:
            return f"the candidate has another {kind}, {new[0]!r}"
    if result.problem:
        return f"the candidate fails {setting}: {result.problem}"
    return ""


def _compare(
    reference: Reference, results: Path, setting: str
) -> Iterator[tuple[OutputComparison, str]]:
    """Compare every output of every input set; say where each was found."""
    optimized = setting == DEPLOYED
    for number, feeds in enumerate(reference.feeds):
        expected = reference.expected(feeds)
        actual = read_values(results / feeds.name)
        rounded: dict[str, Value] = {}
        if reference.rounded is not None:
            rounded = read_values(reference.rounded / feeds.name)
        times = reference.kernel_roundings if optimized else 1.0
        for name in reference.outputs:
            if name in reference.excluded:
                continue
            found = compare_outputs(
                name,
                expected[name],
                actual[name],
                own_error_eps=times * reference.own_errors_eps.get(name, 0.0),
                optimized=optimized,
                computed_in=reference.computed_in.get(name, ""),
                stated=reference.stated,
                rounded=rounded.get(name),
                tie=reference.tie(name, feeds, optimized=optimized),
            )
            yield found, f"{setting}, input set {number}"

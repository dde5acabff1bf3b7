"""What a candidate's results are worth beside the original's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortkit.verify.compare import OutputComparison, compare_outputs, is_telling, worse
from ortkit.verify.exchange import read_values
from ortkit.verify.feeds import Value
from ortkit.verify.reference import Reference
from ortkit.verify.sessions import SessionResult
from ortkit.verify.summary import DEPLOYED
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.verification import Gap

_OFF = "with optimizations off"


@dataclass(frozen=True)
class Judged:
    """Result of the comparison of a candidate."""

    outputs: tuple[OutputComparison, ...]
    """The worst comparison per output."""
    reason: str
    """Why the candidate is not good; empty if it is."""
    gaps: tuple[Gap, ...]
    """Outputs, or parts of them, that were not compared."""


def judge(reference: Reference, folder: Path, results: Sequence[SessionResult]) -> Judged:
    """Compare a candidate's results with the original's.

    Args:
        reference: The original's.
        folder: Holds the candidate's results, `plain` and `optimized`.
        results: Of these two sessions.
    """
    worst: dict[str, OutputComparison] = {}
    telling: set[str] = set()
    vague: set[str] = set()
    reason = ""
    settings = (("plain", _OFF), ("optimized", DEPLOYED))
    for result, (name, setting) in zip(results, settings, strict=True):
        if name == "optimized" and reference.own_problem:
            continue  # the original does not run so either: nothing to hold the candidate to
        reason = reason or _broken(reference, result, setting)
        if reason:
            break
        for found, where, tells in _compare(reference, folder / name, setting):
            if tells:
                telling.add(found.name)
            if _is_vague(found):
                vague.add(found.name)
            known = worst.get(found.name)
            worst[found.name] = found if known is None else worse(known, found)
            if not found.equal and not reason:
                reason = f"output {found.name!r} {where}: {found.reason}"
    return Judged(tuple(worst.values()), reason, _gaps(reference, telling, vague))


def _gaps(reference: Reference, telling: set[str], vague: set[str]) -> tuple[Gap, ...]:
    """Say what of the original's outputs no comparison could find wrong."""
    found = [
        Gap(f"output {name!r}", "it depends on random numbers") for name in reference.excluded
    ]
    silent = "on the inputs tried it is absent, empty, NaN or infinite"
    found += [
        Gap(f"output {name!r}", silent, "give --inputs FILE.npz on which it has numbers")
        for name in reference.outputs
        if name not in reference.excluded and name not in telling
    ]
    loose = f"{DEPLOYED}: ONNX Runtime's own optimizations change it by as much as its values"
    found += [
        Gap(f"output {name!r}", loose, "give usual inputs with --inputs FILE.npz")
        for name in reference.outputs
        if name in vague
    ]
    if reference.own_problem:
        why = f"the original does not run so: {reference.own_problem}"
        found.append(Gap(f"what comes out {DEPLOYED}", why))
    return tuple(found)


def _is_vague(found: OutputComparison) -> bool:
    """Say whether an error as large as the values themselves would have been allowed."""
    kind = TOLERANCES.get(found.dtype)
    return kind is not None and found.allowed_eps * kind.epsilon > 1


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
) -> Iterator[tuple[OutputComparison, str, bool]]:
    """Compare every output of every input set; say where, and whether it could be wrong."""
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
            if reference.tolerance is not None and found.equal:
                beyond = reference.tolerance.exceeds(name, expected[name], actual[name])
                found = replace(found, equal=not beyond, reason=beyond)
            yield found, f"{setting}, input set {number}", is_telling(expected[name])

"""What a candidate's results are worth beside the original's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ortkit.verify.accuracy import DEFAULT, Allowance, measure
from ortkit.verify.budget import MORE_TIME, NO_TIME
from ortkit.verify.compare import OutputComparison, compare_outputs, is_telling, worse
from ortkit.verify.conditioned import Moved, compare_conditioned, disagreement, is_close, limits_of
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.perturbed.perturbation import CHOICE_RUNS
from ortkit.verify.perturbed.runs import runs_for, unit_of
from ortkit.verify.reference import Reference
from ortkit.verify.sessions import SessionResult
from ortkit.verify.summary import DEPLOYED
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.verification import Gap

_OFF = "with optimizations off"
RANDOM = "it depends on random numbers"


@dataclass(frozen=True)
class Judged:
    """Result of the comparison of a candidate."""

    outputs: tuple[OutputComparison, ...]
    """The worst comparison per output."""
    reason: str
    """Why the candidate is not good; empty if it is."""
    gaps: tuple[Gap, ...]
    """Outputs, or parts of them, that were not compared."""


def judge(
    reference: Reference,
    folder: Path,
    results: Sequence[SessionResult],
    allowance: Allowance = DEFAULT,
) -> Judged:
    """Compare a candidate's results with the original's.

    Args:
        reference: The original's.
        folder: Holds the candidate's results, `plain` and `optimized`.
        results: Of these two sessions.
        allowance: What the candidate may do that the original does not.
    """
    worst: dict[str, OutputComparison] = {}
    telling: set[str] = set()
    late: list[Gap] = []
    reason = ""
    settings = (("plain", _OFF), ("optimized", DEPLOYED))
    for own, result, (name, setting) in zip(reference.sessions, results, settings, strict=True):
        if name == "optimized" and reference.own_problem:
            continue  # the original does not run so either: nothing to hold the candidate to
        reason = reason or _broken(reference, own, result, setting)
        if reason:
            break
        feeds = [each for each in reference.feeds if each.name in result.done]
        if result.is_late:
            what = f"{len(reference.feeds) - len(feeds)} of {len(reference.feeds)} input sets"
            late.append(Gap(f"{what} {setting}", f"the candidate: {result.problem}", MORE_TIME))
        for found, where, tells in _compare(reference, folder / name, feeds, setting, allowance):
            if tells:
                telling.add(found.name)
            known = worst.get(found.name)
            worst[found.name] = found if known is None else worse(known, found)
            if not found.equal and not reason:
                reason = f"output {found.name!r} {where}: {found.reason}"
    found_all = tuple(worst.values())
    # What there was no time for says nothing of its outputs.
    names = set(reference.outputs) if late else telling
    return Judged(found_all, reason, (*late, *_gaps(reference, names, found_all)))


def _gaps(
    reference: Reference, telling: set[str], found: Sequence[OutputComparison]
) -> tuple[Gap, ...]:
    """Say what of the original's outputs no comparison could find wrong."""
    gaps = [Gap(f"output {name!r}", RANDOM) for name in reference.excluded]
    silent = "on the inputs tried it is absent, empty, NaN or infinite"
    gaps += [
        Gap(f"output {name!r}", silent, "give --inputs FILE.npz on which it has numbers")
        for name in reference.outputs
        if name not in reference.excluded and name not in telling
    ]
    usual = "give usual inputs with --inputs FILE.npz"
    fix = MORE_TIME if reference.perturbed.is_late else usual
    gaps += [
        Gap(f"output {each.name!r}", each.reason, fix) for each in found if each.is_inconclusive
    ]
    if reference.own_problem:
        why = f"the original does not run so: {reference.own_problem}"
        gaps.append(Gap(f"what comes out {DEPLOYED}", why))
    return tuple(gaps)


def _broken(reference: Reference, own: SessionResult, result: SessionResult, setting: str) -> str:
    """Say why a session gave no results to compare, or has another interface.

    A candidate that ran out of time is broken where the original took a small part of that.
    """
    if result.is_slower_than(own):
        return (
            f"the candidate {result.problem} {setting}: it ran for {result.seconds:.0f} s,"
            f" the original for {own.seconds:.1f} s"
        )
    if not result.is_loaded and result.is_late:
        return ""
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
    if result.problem and not result.is_late:
        return f"the candidate fails {setting}: {result.problem}"
    return ""


def _compare(
    reference: Reference,
    results: Path,
    sets: Sequence[Path],
    setting: str,
    allowance: Allowance,
) -> Iterator[tuple[OutputComparison, str, bool]]:
    """Compare every output on input sets; say where, and whether it could be wrong.

    The perturbed runs are made only where something is off without them.
    """
    limits = limits_of(allowance.computed_in or reference.coarsest)
    unit = TOLERANCES[allowance.computed_in].epsilon if allowance.computed_in else 0.0
    for feeds in sets:
        number = reference.feeds.index(feeds)
        expected = reference.expected(feeds)
        actual = read_values(results / feeds.name)
        is_deployed = setting == DEPLOYED
        # What the original gives under the same settings is as good.
        own = read_values(reference.optimized / feeds.name) if is_deployed else expected
        for name in reference.outputs:
            if name in reference.excluded:
                continue
            want, got = expected[name], actual[name]
            if allowance.stated:
                # The functions' bodies round otherwise than the kernels that the error is of.
                if is_deployed:
                    found = _compare_stated(name, want, got, reference, feeds, allowance.stated)
                    yield found, f"{setting}, input set {number}", is_telling(want)
                continue
            found = compare_conditioned(name, want, got, limits)
            if is_deployed and not found.equal:
                beside = compare_conditioned(name, own[name], got, limits)
                found = beside if beside.equal else found
            if not found.equal or found.is_inconclusive:
                for count in (runs_for([found.dtype]), CHOICE_RUNS):
                    runs = [run[name] for run in reference.runs(feeds, unit, count)]
                    moved = [Moved(want, runs, limits.cap)]
                    found = compare_conditioned(name, want, got, limits, moved)
                    if not is_close(found):
                        break
            if found.is_inconclusive and allowance.computed_in:
                # What is ill-conditioned in half precision must not be computed in it.
                found = replace(found, equal=False, is_inconclusive=False)
            found = _without_runs(found, reference)
            if reference.tolerance is not None and found.equal:
                beyond = reference.tolerance.exceeds(name, want, got)
                found = replace(found, equal=not beyond, reason=beyond or found.reason)
            yield found, f"{setting}, input set {number}", is_telling(want)


def _without_runs(found: OutputComparison, reference: Reference) -> OutputComparison:
    """Return no verdict on an output that is off where there was no time for perturbed runs."""
    if found.equal or not reference.perturbed.is_late:
        return found
    reason = f"{found.reason}; what roundings move is not known: {NO_TIME}"
    return replace(found, equal=True, is_inconclusive=True, reason=reason)


def _compare_stated(
    name: str, want: Value, got: Value, reference: Reference, feeds: Path, stated: float
) -> OutputComparison:
    """Compare an output of a lowered model: choices may be others where the error explains it."""
    exact = compare_outputs(name, want, got)
    found = measure(name, want, got)
    if found is not None:
        is_good = found.error <= stated
        reason = "" if is_good else f"off by {found.error:.3g}, {stated:g} is allowed"
        return replace(exact, equal=is_good, reason=reason)
    if exact.equal or not isinstance(want, np.ndarray):
        return exact
    runs = reference.runs(feeds, unit_of(stated), CHOICE_RUNS)
    ties = disagreement(want, [run[name] for run in runs])
    return _without_runs(compare_outputs(name, want, got, tie=lambda _: ties), reference)

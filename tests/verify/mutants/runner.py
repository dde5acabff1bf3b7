"""Planting, observing and judging; the same seed gives the same faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from mutants import compiled, integers, lowered, rewriting
from mutants.draft import Fault
from mutants.inputs import input_sets
from mutants.kinds import Kind, plant_one
from mutants.observe import LOWERED, ROUNDING, LoweringObserver, Observer
from mutants.subjects import Subject, candidates, original
from ortkit.errors import ModelError
from ortkit.temporary import TemporaryFolder
from ortkit.verify.verifier import Verifier

KINDS: tuple[Kind, ...] = (*rewriting.KINDS, *integers.CATALOG.kinds)
#: Times an output's limit that an element may be off in fewer bits, as `optimize` allows.


@dataclass(frozen=True)
class Outcome:
    """What became of one fault.

    Args:
        group: The row of the table that it counts in.
        subject: The original, and the form of the candidate.
        fault: The kind of the fault.
        moved: By how much it moves a value, relative to the largest of its row.
        is_observable: Whether that is more than rounding, or than the noise of lowering.
        is_caught: Whether verification says "no".
        reason: What verification says.
    """

    group: str
    subject: str
    fault: str
    moved: float
    is_observable: bool
    is_caught: bool
    reason: str


def check(verifier: Verifier, fault: Fault) -> tuple[bool, str]:
    """Judge a candidate as `ortkit optimize` does: whether it is refused, and why."""
    found = verifier.check(
        ir.from_proto(fault.model),
        library=fault.library,
        stated=fault.max_error,
        computed_in=fault.computed_in,
    )
    return found.verdict == "no", f"{found.verdict}: {found.reason}"


def measure(subject: Subject, count: int, seed: int = 0) -> Iterator[Outcome]:
    """Plant faults in every form of a candidate and judge those that move a value.

    Args:
        subject: The original.
        count: Most faults of a form that are judged.
        seed: Decides which, and where.

    Raises:
        AssertionError: A candidate without a fault is refused or cannot be judged.
    """
    model = original(subject)
    sets = [each.arrays for each in input_sets(model)]
    with Verifier(ir.from_proto(model)) as verifier:
        for number, (form, candidate) in enumerate(candidates(subject).items()):
            name = f"{subject.name}, {form}"
            good = verifier.check(ir.from_proto(candidate))
            assert good.is_good, f"{name}: without a fault {good.verdict}: {good.reason}"
            observer = Observer(model, candidate, sets)
            faults = _planted(candidate, KINDS, (seed, subject.seed, number))
            pairs = ((fault, observer.moved(fault.model)) for fault in faults)
            yield from _judged(verifier, pairs, count, subject.type, name, ROUNDING)


def measure_kernels(subject: Subject, count: int, seed: int = 0) -> Iterator[Outcome]:
    """Plant faults in kernels alone and judge those that move a value; see `measure`."""
    model = original(subject)
    sets = [each.arrays for each in input_sets(model, large=True)]
    rng = np.random.default_rng((seed, subject.seed))
    with (
        TemporaryFolder("mutants") as folder,
        compiled.compiled(model, folder) as candidate,
        Verifier(ir.from_proto(model)) as verifier,
    ):
        if not candidate.kernels:
            return  # on this processor none pays
        library = candidate.library("good")
        is_off, reason = check(verifier, Fault("none", "kernel", candidate.model, library))
        assert not is_off, f"{subject.name}: without a fault {reason}"
        observer = Observer(model, candidate.model, sets, library)
        faults = compiled.plant(candidate, rng)
        pairs = ((fault, observer.moved(fault.model, fault.library)) for fault in faults)
        yield from _judged(verifier, pairs, count, "kernels", subject.name, ROUNDING)


def measure_lowering(subject: Subject, count: int, seed: int = 0) -> Iterator[Outcome]:
    """Plant faults in candidates in fewer bits; see `measure`.

    A fault counts where it makes a value's error more than twice what lowering makes it.

    Raises:
        AssertionError: A candidate without a fault is refused, though within its limit.
    """
    model = original(subject)
    sets = [each.arrays for each in input_sets(model) if each.is_usual]
    rewritten = candidates(subject)["rewritten"]
    with Verifier(ir.from_proto(model)) as verifier:
        for number, how in enumerate(lowered.LOWERINGS):
            made = lowered.lowered(rewritten, how.name)
            if len(made.graph.node) == len(rewritten.graph.node):
                continue  # it has nothing to lower
            candidate = Fault(
                "none", "lowering", made, max_error=how.max_error, computed_in=how.computed_in
            )
            name = f"{subject.name}, {how.name}"
            is_off, reason = check(verifier, candidate)
            if is_off:  # over the limit, which is no matter of faults
                assert "is allowed" in reason, f"{name}: without a fault {reason}"
                continue
            observer = LoweringObserver(model, candidate.model, sets)
            seeds = (seed, subject.seed, number)
            planted = _planted(candidate.model, lowered.KINDS, seeds)
            faults = (replace(candidate, name=f.name, model=f.model) for f in planted)
            pairs = ((fault, observer.moved(fault.model)) for fault in faults)
            yield from _judged(verifier, pairs, count, how.name, name, LOWERED)


def _planted(
    candidate: onnx.ModelProto, kinds: Sequence[Kind], seed: tuple[int, ...]
) -> Iterator[Fault]:
    """Yield faults of kinds in random order."""
    for at in np.random.default_rng(seed).permutation(len(kinds)):
        fault = plant_one(candidate, np.random.default_rng((*seed, int(at))), kinds[at])
        if fault is not None:
            yield fault


def _judged(
    verifier: Verifier,
    pairs: Iterator[tuple[Fault, float | None]],
    count: int,
    group: str,
    subject: str,
    least: float,
) -> Iterator[Outcome]:
    """Judge up to `count` faults that move a value by more than `least`; some do not run."""
    judged = 0
    for fault, moved in pairs:
        if judged == count:
            return
        if moved is None:
            continue
        is_caught, reason = False, "moves nothing"
        if moved > least:
            try:
                is_caught, reason = check(verifier, fault)
            except ModelError:
                continue  # ONNX Runtime loads it, and yet it is no valid model: no fault either
            judged += 1
        row = f"{group}, {fault.kind}"
        yield Outcome(row, subject, fault.name, moved, moved > least, is_caught, reason)


@dataclass(frozen=True)
class Share:
    """One row of the table."""

    group: str
    caught: int
    observable: int
    unobservable: int

    @property
    def percent(self) -> float:
        """The share of the observable faults that are caught."""
        return 100 * self.caught / max(self.observable, 1)


def shares(outcomes: Sequence[Outcome]) -> dict[str, Share]:
    """Count outcomes by group."""
    found = {}
    for group in sorted({each.group for each in outcomes}):
        own = [each for each in outcomes if each.group == group]
        seen = [each for each in own if each.is_observable]
        caught = sum(each.is_caught for each in seen)
        found[group] = Share(group, caught, len(seen), len(own) - len(seen))
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return shares by group, the faults that move nothing, and those that passed."""
    lines = [f"{'faults':32} {'caught':>7} {'of':>5} {'share':>7} {'unobservable':>13}"]
    lines += [
        f"{row.group:32} {row.caught:7} {row.observable:5} {row.percent:6.1f}%"
        f" {row.unobservable:13}"
        for row in shares(outcomes).values()
    ]
    idle = Counter(each.fault for each in outcomes if not each.is_observable)
    lines += [f"moves nothing: {name} ({count})" for name, count in sorted(idle.items())]
    passed = [each for each in outcomes if each.is_observable and not each.is_caught]
    lines += [f"passed: {each.subject}: {each.fault} (moves {each.moved:.1e})" for each in passed]
    return "\n".join(lines)

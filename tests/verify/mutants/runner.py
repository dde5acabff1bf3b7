"""Planting, observing and judging; the same seed gives the same faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from mutants import integers, rewriting
from mutants.draft import Fault
from mutants.inputs import input_sets
from mutants.kinds import Kind, plant_one
from mutants.observe import ROUNDING, Observer
from mutants.subjects import Subject, candidates, original
from ortkit.verify.verifier import Verifier

KINDS: tuple[Kind, ...] = (*rewriting.KINDS, *integers.CATALOG.kinds)


@dataclass(frozen=True)
class Outcome:
    """What became of one fault.

    Args:
        group: The row of the table that it counts in.
        subject: The original, and the form of the candidate.
        fault: The kind of the fault.
        moved: By how much it moves a value, relative to the largest of its row.
        is_caught: Whether verification says "no".
        reason: What verification says.
    """

    group: str
    subject: str
    fault: str
    moved: float
    is_caught: bool
    reason: str

    @property
    def is_observable(self) -> bool:
        """Whether it moves a value by more than rounding."""
        return self.moved > ROUNDING


def check(verifier: Verifier, fault: Fault) -> tuple[bool, str]:
    """Judge a candidate as `ortkit verify` does: whether it is refused, and why."""
    found = verifier.check(ir.from_proto(fault.model), library=fault.library)
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
            judged = 0
            for fault, moved in _faults(candidate, observer, (seed, subject.seed, number)):
                if judged == count:
                    break
                is_caught, reason = False, "moves nothing"
                if moved > ROUNDING:
                    is_caught, reason = check(verifier, fault)
                    judged += 1
                group = f"{subject.type}, {fault.kind}"
                yield Outcome(group, name, fault.name, moved, is_caught, reason)


def _faults(
    candidate: onnx.ModelProto, observer: Observer, seed: tuple[int, ...]
) -> Iterator[tuple[Fault, float]]:
    """Yield faults that run, of kinds in random order, and by how much they move a value."""
    rng = np.random.default_rng(seed)
    for at in rng.permutation(len(KINDS)):
        fault = plant_one(candidate, np.random.default_rng((*seed, int(at))), KINDS[at])
        moved = None if fault is None else observer.moved(fault.model)
        if fault is not None and moved is not None:
            yield fault, moved


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
    """Return shares by group, and the faults that passed."""
    lines = [f"{'faults':32} {'caught':>7} {'of':>5} {'share':>7} {'unobservable':>13}"]
    lines += [
        f"{row.group:32} {row.caught:7} {row.observable:5} {row.percent:6.1f}%"
        f" {row.unobservable:13}"
        for row in shares(outcomes).values()
    ]
    passed = [each for each in outcomes if each.is_observable and not each.is_caught]
    lines += [f"passed: {each.subject}: {each.fault} (moves {each.moved:.1e})" for each in passed]
    return "\n".join(lines)

"""Steps of two models, judged by perturbed runs where they are off by more than the floor.

Runs are made of the steps that are off, on the input sets on which they are, and none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.verify.compare import OutputComparison
from ortkit.verify.conditioned import Limits, Moved, compare_conditioned, is_close
from ortkit.verify.constant_error import unexplained
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.perturbed.perturbation import CHOICE_RUNS, RUNS, perturb, perturb_constants
from ortkit.verify.perturbed.runs import read_runs, runs_for
from ortkit.verify.rounded_constants import Rounded, RoundedConstants, epsilon_of
from ortkit.verify.sessions import SessionResult, Setting
from ortkit.verify.steps import give, prune

#: A step is a few nodes; ONNX Runtime's kernels for one node differ from the standard's order of
#: operations by up to 14 epsilons of float32 (BatchNormalization folded into a convolution of 576
#: products; onnxruntime 1.31.1).
LIMITS = Limits({"float32": 32.0}, 2.0**-10)

#: Folders of repeated runs: the original's steps with its values perturbed, and with the constants
#: that the candidate lacks; the candidate's steps with the constants that the original lacks.
_PERTURBED, _LOST, _NEW = _KINDS = "perturbed", "lost", "new"

#: Runs of one model with perturbed constants that are made first. Fewer tell less of their rms.
_FEW_RUNS = 4


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    steps: ir.Model
    weights: Path
    """The folder of its weights."""


@dataclass(frozen=True)
class Off:
    """A value that is off, or inconclusive."""

    found: OutputComparison
    """On the first of the sets, or the first on which it is wrong."""
    sets: tuple[Path, ...]
    """The input sets on which it is."""


class Runner(Protocol):
    """Runs parts of the two models."""

    def setting(
        self,
        model: ir.Model,
        weights: Path,
        results: Path,
        given: Path | None = None,
        repeats: int = 1,
        first: int = 0,
    ) -> Setting:
        """Write a model, and return how it is run; see `Setting`."""

    def run(
        self, settings: Sequence[Setting], feeds: Sequence[Path] | None = None
    ) -> list[SessionResult]:
        """Run models on input sets, by default on all."""


Wrong: TypeAlias = dict[str, OutputComparison]


class StepJudge:
    """Compares the values that two models compute from the same ones."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        feeds: Sequence[Path],
        folder: Path,
        rounded: Callable[[], RoundedConstants],
        runner: Runner,
    ) -> None:
        """Say of what.

        Args:
            sides: The original and the candidate.
            feeds: Folders of input sets.
            folder: Holds the values of both, `expected` and `actual`.
            rounded: Returns the constants that only one of the two has.
            runner: Makes the runs.
        """
        self._sides = sides
        self._feeds = tuple(feeds)
        self._folder = folder
        self._rounded = rounded
        self._runner = runner

    def judge(self, names: Collection[str], unit: float) -> tuple[Wrong, frozenset[str]]:
        """Find the values that are off by more than roundings of `unit` move them.

        Returns:
            Them, and the names of those for whose perturbed runs no time was left.
        """
        off = self._off(dict.fromkeys(names, self._feeds))
        if not off:
            return {}, frozenset()
        runs = _Runs(self._sides, self._rounded(), self._folder, unit, self._runner)
        # These take a tenth of the time that runs with all values perturbed take.
        for count, kinds in runs.of_constants:
            runs.add(off, count, kinds)
            off = self._off(_sets(off), runs)
            if not off:
                return {}, frozenset()
        found: dict[str, Off] = {}
        for count in (runs_for(each.found.dtype for each in off.values()), CHOICE_RUNS):
            runs.add(off, count)
            found = {name: each for name, each in found.items() if name not in off}
            found |= self._off(_sets(off), runs)
            if runs.is_late:
                late = frozenset(name for name, each in found.items() if not each.found.equal)
                return _comparisons(found), late
            if runs.problem:
                found |= {n: _without_runs(found[n], runs.problem) for n in off if n in found}
                break
            # Of many rows, some are off by more than the few runs show of what roundings move.
            off = {name: each for name, each in found.items() if is_close(each.found)}
            if not off or count == CHOICE_RUNS:
                break
        return _comparisons(found), frozenset()

    def _off(
        self, wanted: Mapping[str, Collection[Path]], runs: _Runs | None = None
    ) -> dict[str, Off]:
        """Return the values that are off, or inconclusive, on some of their input sets."""
        found: dict[str, Off] = {}
        for feeds in self._feeds:
            names = [name for name, sets in wanted.items() if feeds in sets]
            if not names:
                continue
            expected = read_values(self._folder / "expected" / feeds.name, names)
            actual = read_values(self._folder / "actual" / feeds.name, names)
            near, lost, new = ([], [], []) if runs is None else runs.of(feeds, names)
            for name in names:
                compared = _compared(
                    name, expected[name], actual[name],
                    [run[name] for run in near],
                    [run[name] for run in lost],
                    [run[name] for run in new],
                    None if runs is None else runs.rounded,
                )  # fmt: skip
                if compared.equal and not compared.is_inconclusive:
                    continue
                known = found.get(name)
                is_first = known is None or known.found.equal
                sets = (feeds,) if known is None else (*known.sets, feeds)
                found[name] = Off(compared if is_first or known is None else known.found, sets)
        return found


class _Runs:
    """Repeated runs of some steps, of which more are made when they are needed."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        rounded: RoundedConstants,
        folder: Path,
        unit: float,
        runner: Runner,
    ) -> None:
        self.rounded = rounded
        self.problem = ""
        """Why some of the runs failed; empty if none did."""
        self.is_late = False
        """Whether there was no time for some of them."""
        self._sides = sides
        self._unit = unit
        self._given = folder / "expected"
        self._folder = folder / f"perturbed-{unit:g}"
        self._runner = runner
        self._run_counts = dict.fromkeys((_PERTURBED, _LOST, _NEW), 0)

    @property
    def of_constants(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """How many runs are made, of which kinds, before any in which values are perturbed.

        Few of one model explain most values: fewer runs and one model allow less than all do.
        """
        constants = {_LOST: self.rounded.lost, _NEW: self.rounded.new}
        kinds = tuple(kind for kind, names in constants.items() if names)
        return ((_FEW_RUNS, kinds[:1]), (RUNS, kinds)) if kinds else ()

    def add(self, off: Mapping[str, Off], count: int, kinds: Collection[str] = _KINDS) -> None:
        """Make the runs that lack, on the input sets on which values are off.

        Args:
            off: The values; those of an earlier call, or fewer, on the same sets or fewer.
            count: Runs, those of earlier calls included.
            kinds: Those of which runs are made.
        """
        self._folder.mkdir(exist_ok=True)
        settings = []
        original, candidate = self._sides
        for side, kind, constants in (
            (original, _PERTURBED, None),
            (original, _LOST, self.rounded.lost),
            (candidate, _NEW, self.rounded.new),
        ):
            first = self._run_counts[kind]
            has_none = constants is not None and not constants
            if kind not in kinds or has_none or first >= count:
                continue
            self._run_counts[kind] = count
            model = side.steps.clone()
            give(model, off)
            prune(model)
            if constants is None:
                perturb(model, lambda _: self._unit, first=first, with_weights=True)
            else:
                perturb_constants(model, _epsilons(constants), first=first)
            results = self._folder / kind
            rest = (side.weights, results, self._given, count - first, first)
            settings.append(self._runner.setting(model, *rest))
        sets = [feeds for each in off.values() for feeds in each.sets]
        for result in self._runner.run(settings, list(dict.fromkeys(sets))):
            self.problem = self.problem or result.problem
            self.is_late = self.is_late or result.is_late

    def of(self, feeds: Path, names: Collection[str]) -> list[list[dict[str, Value]]]:
        """Return the values in all runs on an input set, by kind."""
        kinds = (_PERTURBED, _LOST, _NEW)
        return [read_runs(self._folder / kind, feeds.name, names) for kind in kinds]


def _epsilons(
    constants: Mapping[str, Rounded],
) -> dict[str, tuple[float, np.ndarray | None]]:
    return {name: (epsilon_of(each.dtype), each.changed) for name, each in constants.items()}


def _compared(
    name: str,
    want: Value,
    got: Value,
    near: Sequence[Value],
    lost: Sequence[Value],
    new: Sequence[Value],
    rounded: RoundedConstants | None,
) -> OutputComparison:
    """Compare a value with what it moves to in runs: perturbed, without and with constants."""
    limits = LIMITS if rounded is None else replace(LIMITS, largest=rounded.largest)
    cap = 0.0 if rounded is None else rounded.cap
    moved = [Moved(want, near, LIMITS.cap), Moved(want, lost, cap, 1.0), Moved(got, new, cap, 1.0)]
    found = compare_conditioned(name, want, got, limits, moved)
    if not found.equal or found.is_inconclusive:
        return found
    reason = unexplained(want, got, lost, new, near, limits.largest)
    return replace(found, equal=False, reason=reason) if reason else found


def _sets(off: Mapping[str, Off]) -> dict[str, tuple[Path, ...]]:
    return {name: each.sets for name, each in off.items()}


def _comparisons(off: Mapping[str, Off]) -> Wrong:
    return {name: each.found for name, each in off.items()}


def _without_runs(off: Off, problem: str) -> Off:
    """Say that what roundings move is not known, so that only the floor is allowed."""
    reason = f"{off.found.reason}; its perturbed runs fail: {problem}"
    return replace(off, found=replace(off.found, reason=reason))

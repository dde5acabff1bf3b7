"""Whether the outputs of one variant are those of another, and how far they are apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ortkit.comparison.values import Distance, Statistics, distance, statistics
from ortkit.refusal import Refused
from ortkit.text import plural
from ortkit.verify.compare import OutputComparison, is_telling
from ortkit.verify.conditioned import Moved, compare_conditioned, limits_of
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.perturbed.runs import runs_for
from ortkit.verify.reference import Reference


@dataclass(frozen=True)
class OutputDifference:
    """One output of a variant against that of another."""

    judged: OutputComparison
    """Whether it is equal: as `ortkit verify` judges it."""
    distance: Distance | None
    """None where there is nothing to subtract: other shapes, strings, sequences."""
    before: Statistics | None
    after: Statistics | None

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            **self.judged.to_json(),
            "distance": None if self.distance is None else self.distance.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }


@dataclass(frozen=True)
class Judge:
    """What is known of a model's outputs in addition to themselves."""

    state: Reference | None
    """What verification found out about the first model."""
    random: Collection[str]
    """Outputs that depend on random numbers, which no two runs share."""
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(state: Reference | Refused, random: Collection[str]) -> Judge:
        """Take over what verification found out about the first model."""
        if isinstance(state, Refused):
            note = f"the model's conditioning is not known: {state.reason}"
            return Judge(None, random, () if random else (note,))
        return Judge(state, random)

    def compare(
        self, expected: Mapping[str, Value], actual: Mapping[str, Value]
    ) -> tuple[OutputDifference, ...]:
        """Compare the outputs of a variant with those of the one it stands against."""
        return tuple(
            self._difference(name, value, actual)
            for name, value in expected.items()
            if name not in self.random
        )

    def _difference(self, name: str, want: Value, actual: Mapping[str, Value]) -> OutputDifference:
        if name not in actual:
            lacking = OutputComparison(name, _kind(want), np.inf, 0.0, (), False, 0, "is missing")
            return OutputDifference(lacking, None, _statistics(want), None)
        got = actual[name]
        limits = limits_of("" if self.state is None else self.state.coarsest)
        judged = compare_conditioned(name, want, got, limits)
        if self.state is not None and (not judged.equal or judged.is_inconclusive):
            others = self.state.runs(self.state.feeds[0], count=runs_for([judged.dtype]))
            runs = [run[name] for run in others]
            judged = compare_conditioned(name, want, got, limits, [Moved(want, runs, limits.cap)])
        difference = None
        if isinstance(want, np.ndarray) and isinstance(got, np.ndarray):
            same = want.shape == got.shape and want.dtype == got.dtype
            difference = distance(want, got) if same else None
        if judged.is_inconclusive and difference is not None and difference.not_finite:
            reason = f"{plural(difference.not_finite, 'element')} NaN or infinite in one only"
            judged = replace(judged, equal=False, is_inconclusive=False, reason=reason)
        return OutputDifference(judged, difference, _statistics(want), _statistics(got))


def says_nothing(values: Mapping[str, Value], random: Collection[str]) -> bool:
    """Say whether no comparison with these outputs can fail: they are empty, NaN or infinite."""
    return not any(is_telling(value) for name, value in values.items() if name not in random)


def _statistics(value: Value) -> Statistics | None:
    return statistics(value) if isinstance(value, np.ndarray) else None


def _kind(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return value.dtype.name
    return "none" if value is None else "sequence"

"""One region that is being tuned: what was tried of it, the next batch, and what is certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ortkit.errors import KernelError
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning.database import Record, RecordKey, TrialRecord
from ortkit.runtime.intervals import speedup_of
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.result import TunedRegion
from ortkit.tune.search import next_choices, space_size
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Request, Timer, Times, time_choices

#: Kernels that are compiled and timed together.
BATCH = 12
#: How many are timed again before one of them is chosen, and how.
_FINALISTS = 3
_TRIES = 3
_FINAL = Effort(processes=3, rounds=21, seconds=0.001)
#: A kernel that was less faster than this beside others is none to look at again.
_LEAST_GAIN = 1.01
#: This part of the rounds counts: what others add to a time says nothing about a kernel.
_QUIET = 0.25


#: Returns up to this many choices to try next, after the ratios of those that were tried.
Proposer: TypeAlias = Callable[[Mapping[str, float | None], int], list[str]]


@dataclass
class TuningRegion:
    """One region at given sizes, and its trials.

    Args:
        case: The region.
        backend: Of its kernels; a name of the catalog, unless `timer` makes them.
        target: The resolved target.
        record_key: Where its record belongs.
        record: What is known.
        timer: Who measures; None: this machine.
        shipped: The choices that ship for regions of this kind, empty for the rules.
        stale: Batches since one was better than what was known.
        name: For people; empty: what the region's operator is called.
        propose: What else than the search through `parameters` says what to try next.
    """

    case: TuneCase
    backend: str
    target: Target
    record_key: RecordKey
    record: Record
    timer: Timer | None = None
    shipped: str = ""
    stale: int = 0
    new_trials: int = 0
    problem: str = ""
    times: tuple[float, float] | None = None
    """Of the default and the best, in ns, as last confirmed."""
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What can be chosen, and the default first of each; empty: what the backend says."""
    name: str = ""
    propose: Proposer | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.case.signature.op_type
        if not self.parameters and self.propose is None:
            tunable = load_backend(self.backend)
            if isinstance(tunable, Tunable):
                self.parameters = dict(tunable.parameters(self.case.signature, self.target))
        if not any(values[0] for values in self.parameters.values()):
            # A rule chooses them for these sizes already: it is better more seldom.
            self.stale = 1

    @property
    def promise(self) -> float:
        """What another batch may be worth: the share of time, less where nothing was found."""
        return self.case.share / (1 + self.stale) ** 2

    @property
    def tried(self) -> dict[str, float | None]:
        """Choices -> their ratio to the default, None if they failed."""
        return {trial.choices: trial.ratio for trial in self.record.trials}

    @property
    def is_pending(self) -> bool:
        """Whether there are promising trials that were not looked at again."""
        return self.record.confirmed < len(self.record.trials) and bool(self._finalists())

    def batch(self, most: int) -> list[str]:
        """Return what to try next, nothing if everything was tried or something is wrong."""
        if self.problem or not (self.parameters or self.propose):
            return []
        tried = self.tried
        # What would be made otherwise: the best of another version of the generator, if it is
        # not known how good it is now, and what ships for the kind.
        known = dict.fromkeys((self.record.best, self.shipped))
        first = [item for item in known if item and item not in tried]
        before, count = {**tried, **dict.fromkeys(first)}, min(most, BATCH)
        if self.propose is None:
            return [*first, *next_choices(self.parameters, before, count)][:count]
        try:
            return [*first, *self.propose(before, count - len(first))][:count]
        except KernelError as error:
            self.problem = str(error)
            return first[:count]

    def run(self, choices: list[str], store: TuneStore) -> None:
        """Time a batch beside the default, and keep what came of it.

        Raises:
            UserError: It cannot be kept.
        """
        try:
            found = self._timed(choices)
        except KernelError as error:
            self.problem = str(error)
            return
        self.keep(found, store)

    def request(self, choices: list[str]) -> Request:
        """Return what `run` times, for those who time several regions together."""
        return Request(self.case, self.backend, ["", *choices])

    def keep(self, found: Sequence[Times], store: TuneStore) -> None:
        """Keep the times of a batch, the default first.

        Raises:
            UserError: They cannot be kept.
        """
        best = max(self.record.ratios.values())
        default, others = found[0], found[1:]
        trials = tuple(
            TrialRecord(
                other.choices, None if other.problem else _ratio(default, other), other.problem
            )
            for other in others
        )
        self.record = replace(self.record, trials=(*self.record.trials, *trials))
        self.new_trials += len(trials)
        top = max((trial.ratio for trial in trials if trial.ratio is not None), default=0.0)
        self.stale = 0 if top > best * _LEAST_GAIN else self.stale + 1
        store.put(self.record_key, self.record)

    def _timed(self, choices: list[str]) -> list[Times]:
        """Time a batch; if one of it crashes, each by itself.

        Raises:
            KernelError: The default cannot be timed.
        """
        try:
            return self._times(choices, Effort())
        except KernelError:
            if len(choices) == 1:
                raise
        found = self._times([], Effort())
        for choice in choices:
            try:
                found.append(self._times([choice], Effort())[1])
            except KernelError as error:
                found.append(Times(choice, (), str(error)))
        return found

    def _times(self, choices: list[str], effort: Effort) -> list[Times]:
        timer = self.timer or time_choices
        return timer(self.case, self.target, self.backend, ["", *choices], effort)

    def conclude(self, store: TuneStore) -> None:
        """Keep that the default is best, where trials say so and nothing else is promising.

        Raises:
            UserError: It cannot be kept.
        """
        tried = len(self.record.trials)
        if self.problem or self.record.confirmed == tried or self._finalists():
            return
        self.record = replace(self.record, best="", gain=1.0, confirmed=tried)
        store.put(self.record_key, self.record)

    def _finalists(self) -> list[str]:
        ratios = {**self.tried, self.record.best: self.record.gain}
        good = [
            (ratio, text)
            for text, ratio in ratios.items()
            if text and ratio is not None and ratio > _LEAST_GAIN
        ]
        return [text for _, text in sorted(good, reverse=True)[:_FINALISTS]]

    def confirm(self, store: TuneStore) -> None:
        """Time the best again, in processes of their own; only what is faster for sure is chosen.

        Raises:
            UserError: It cannot be kept.
        """
        finalists = self._finalists()
        elapsed: list[Times] = []
        for _ in range(_TRIES):
            try:
                elapsed = _joined(elapsed, self._times(finalists, _FINAL))
            except KernelError as error:
                self.problem = str(error)
                return
            if not any(_is_open(elapsed[0], times) for times in elapsed[1:]):
                break
        default, *others = elapsed
        best, gain = default, 1.0
        for other in others:
            if _is_faster(default, other) and (ratio := _sure_ratio(default, other)) > gain:
                best, gain = other, ratio
        self.times = (default.median_ns, best.median_ns)
        tried = len(self.record.trials)
        self.record = replace(self.record, best=best.choices, gain=gain, confirmed=tried)
        store.put(self.record_key, self.record)

    def result(self) -> TunedRegion:
        """Return what there is to say."""
        times = (None, None) if self.times is None else (1e-3 * time for time in self.times)
        default_us, best_us = times
        return TunedRegion(
            op=self.name,
            nodes=self.case.nodes,
            sizes=self.case.sizes,
            share=self.case.share,
            kernels=1 + space_size(self.parameters) if self.propose is None else None,
            trials=len(self.record.trials),
            new_trials=self.new_trials,
            failed=sum(trial.ratio is None for trial in self.record.trials),
            choices=self.record.best,
            gain=self.record.gain,
            default_us=default_us,
            best_us=best_us,
            problem=self.problem,
        )


def _joined(before: list[Times], more: list[Times]) -> list[Times]:
    """Return the times of both, by kernel."""
    if not before:
        return more
    return [
        Times(one.choices, (*one.processes, *other.processes), one.problem or other.problem)
        for one, other in zip(before, more, strict=True)
    ]


def _sure_ratio(default: Times, other: Times) -> float:
    """Return how many times as fast a kernel is, by its quiet rounds and its fastest alike."""
    if other.problem:
        return 0.0
    return min(_ratio(default, other), default.fastest_ns / other.fastest_ns)


def _is_faster(default: Times, other: Times) -> bool:
    if _sure_ratio(default, other) <= _LEAST_GAIN:
        return False
    found = speedup_of(default.processes, other.processes, floor=_LEAST_GAIN - 1)
    return found.direction == "faster"


def _is_open(default: Times, other: Times) -> bool:
    """Say whether a kernel looks faster, and more processes may show that it is."""
    return _sure_ratio(default, other) > _LEAST_GAIN and not _is_faster(default, other)


def _ratio(default: Times, other: Times) -> float:
    """Return how many times as fast a kernel is in its quiet rounds."""
    first, second = (
        float(np.quantile(np.concatenate([np.asarray(each) for each in one.processes]), _QUIET))
        for one in (default, other)
    )
    return first / second

"""The trials of several kernels within a time: each batch goes where it promises the most."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ortkit.errors import KernelError
from ortkit.targets.target import Target
from ortkit.tune.region import TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, time_all

#: What confirming the best of a region takes, about.
_CONFIRM_SECONDS = 2.0


@dataclass
class Loop:
    """The regions that are tuned, and where what is found of them is kept.

    Args:
        store: The database.
        target: Of the kernels.
        trials: Kernels to try at most; None: as many as the time allows.
        budget: Seconds; None: as long as the trials take.
        progress: Called with what was found so far.
        workers: Batches that are compiled or measured at once.
        together: Whether batches are compiled together, rather than each somewhere else.
        regions: What is tuned.
        notes: What was left undone.
        began: When the budget began.
        in_turns: Whether all get as many trials, rather than more where they promise more: of
            kernels that are no model's nobody knows the share.
    """

    store: TuneStore
    target: Target
    trials: int | None
    budget: float | None
    progress: Callable[[str], None]
    workers: int = 1
    together: bool = True
    regions: list[TuningRegion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    in_turns: bool = False

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float("inf") if self.budget is None else self.budget - self.spent

    @property
    def new_trials(self) -> int:
        """How many kernels were tried."""
        return sum(region.new_trials for region in self.regions)

    def predicted_gain(self) -> float:
        """Return how many times as fast everything should be, from what is known."""
        saved = sum(region.case.share * (1 - 1 / region.record.gain) for region in self.regions)
        return 1 / (1 - saved)

    def search(self, until: float) -> None:
        """Try kernels, each time of the region where it promises the most.

        Args:
            until: Seconds since the beginning; confirming what was found is to end by then.
        """
        while self.spent + self._reserved() < until:
            most = 1 << 30 if self.trials is None else self.trials - self.new_trials
            if most <= 0:
                return
            turn: list[tuple[TuningRegion, list[str]]] = []
            for region in sorted(self.regions, key=self._order):
                if len(turn) < self.workers and most > 0 and (batch := region.batch(most)):
                    turn.append((region, batch))
                    most -= len(batch)
            if not turn:
                return
            self._run(turn)
            self.progress(self._state(turn[0][0]))

    def _order(self, region: TuningRegion) -> tuple[int, float]:
        return region.new_trials if self.in_turns else 0, -region.promise

    def _run(self, turn: Sequence[tuple[TuningRegion, list[str]]]) -> None:
        """Try batches of several regions: here, or each on a machine of its own."""
        if self.together and len(turn) > 1:
            requests = [region.request(batch) for region, batch in turn]
            for (region, batch), found in zip(
                turn, time_all(requests, self.target, Effort()), strict=True
            ):
                if isinstance(found, KernelError):
                    region.run(batch, self.store)  # which finds out which of them it was
                else:
                    region.keep(found, self.store)
            return
        with ThreadPoolExecutor(len(turn)) as pool:
            tasks = [pool.submit(region.run, batch, self.store) for region, batch in turn]
        for task in tasks:
            task.result()

    def _state(self, region: TuningRegion) -> str:
        best = max(region.record.ratios.values())
        return (
            f"{self.new_trials} trials; {region.name}: "
            f"best {best:.2f} times the default; confirmed in all: {self.predicted_gain():.3f}"
        )

    def _reserved(self) -> float:
        """Return the seconds that confirming takes; the budget is not to end in trials alone."""
        return _CONFIRM_SECONDS * sum(region.is_pending for region in self.regions)

    def confirm(self) -> None:
        """Time the best of each region again, and keep what is faster for sure."""
        for region in self.regions:
            region.conclude(self.store)
        pending = [region for region in self.regions if region.is_pending]
        for region in sorted(pending, key=lambda tuning_region: -tuning_region.case.share):
            if self.left <= 0:
                self.notes.append(f"{region.name}: no time was left to confirm its best kernel")
                continue
            region.confirm(self.store)
            self.progress(f"confirm; gain in all so far {self.predicted_gain():.3f}")

"""Optimizers that slow a model down: sessions without them are timed, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ortkit.runtime.intervals import Speedup, median_of, noise_floor, speedup_of
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.workers.interleave import Samples, Schedule, run_interleaved
from ortkit.upgrades.result import Tried
from ortkit.upgrades.search import first_bad
from ortkit.upgrades.trying import Trying

#: Optimizers that are confirmed after each other; each costs some seconds.
_MAX_FOUND = 3
#: Sessions that are timed in one interleaved run.
_MAX_INTERLEAVED = 12


class SlowSearch:
    """Times sessions of one model with optimizers off."""

    def __init__(
        self, trying: Trying, schedule: Schedule, progress: Callable[[str], None]
    ) -> None:
        """Time nothing yet.

        Args:
            trying: Plans and judges the sessions.
            schedule: How long each is timed.
            progress: Called with what is being done.
        """
        self.trying = trying
        self.schedule = schedule
        self.progress = progress
        self.notes: list[str] = []

    def timed_levels(self, levels: Sequence[tuple[str, Tried]]) -> tuple[tuple[str, Tried], ...]:
        """Return the levels with the medians of their runs, in ms."""
        self.progress("time the levels")
        plans = [self.trying.planned((), level) for level, _ in levels]
        samples = self._run(plans)
        return tuple(
            (level, tried if elapsed.problem else replace(tried, median_ms=_median_ms(elapsed)))
            for (level, tried), elapsed in zip(levels, samples, strict=True)
        )

    def slow(
        self, fired: Sequence[str], order: Sequence[str]
    ) -> tuple[tuple[str, ...], dict[str, Speedup]]:
        """Return the optimizers without which the model is faster, and by how much each.

        Each is found in one measurement and confirmed in another, beside sessions that have it
        on: the best of several is the luckiest of them, too.

        Args:
            fired: Those that changed the graph.
            order: All that can be switched off, in the order in which they run.
        """
        found: list[str] = []
        gains: dict[str, Speedup] = {}
        left = list(fired)
        while left and len(found) < _MAX_FOUND:
            name = self._best(left, found)
            if name is None:
                break
            gain = self._gain(found, [*found, name])
            if gain is None or gain.direction != "faster":
                break
            found.append(name)
            gains[name] = gain
            # With it off others may fire.
            now = {applied.name for applied in self.trying.applied("", found) if applied.modified}
            left = [item for item in order if item in now]
        if not found and (last := self._in_order(order)) is not None:
            found, gains = [last[0]], {last[0]: last[1]}
        return tuple(found), gains

    def gain(self, names: Sequence[str]) -> Speedup | None:
        """Return how many times as fast the model is without some optimizers."""
        return self._gain((), names)

    def _best(self, names: Sequence[str], off: Sequence[str]) -> str | None:
        """Return the optimizer without which the model is fastest, if it is faster at all."""
        best: tuple[float, str] | None = None
        for begin in range(0, len(names), _MAX_INTERLEAVED):
            part = names[begin : begin + _MAX_INTERLEAVED]
            self.progress(f"time {len(part)} sessions, each without one optimizer")
            gains = self._gains(off, [[*off, name] for name in part])
            for name, gain in zip(part, gains, strict=True):
                if gain is not None and gain.direction == "faster":
                    best = max(best or (0.0, ""), (gain.ratio, name))
        return None if best is None else best[1]

    def _in_order(self, order: Sequence[str]) -> tuple[str, Speedup] | None:
        """Search in the order of the optimizers where all together slow a model and none alone."""
        whole = self.gain(order)
        if whole is None or whole.direction != "faster":
            return None
        limit = whole.ratio**0.5
        self.progress("search in the order of the optimizers")

        def is_slow(off: Sequence[str]) -> bool:
            gain = self._gain((), list(off)) if off else None
            return gain is None or gain.ratio < limit

        name = first_bad(order, (), lambda off: is_slow(list(off)))
        gain = self.gain([name])
        if gain is None or gain.direction != "faster":
            self.notes.append(
                f"with all {len(order)} off the model is {whole.ratio:.3f} times as fast, but "
                f"with no single one off; the last to slow it is {name}"
            )
            return None
        return name, gain

    def _gain(self, before: Sequence[str], after: Sequence[str]) -> Speedup | None:
        return self._gains(before, [after])[0]

    def _gains(
        self, before: Sequence[str], variants: Sequence[Sequence[str]]
    ) -> list[Speedup | None]:
        """Return how many times as fast sessions are as the one with `before` off."""
        plans = [self.trying.planned(names) for names in (before, *variants, before)]
        samples = self._run(plans)
        first, *others, again = samples
        if first.problem or again.problem:
            return [None for _ in variants]
        control = speedup_of(first.rounds, again.rounds)
        floor = noise_floor(control, [sample.rounds for sample in samples if not sample.problem])
        return [
            None if other.problem else speedup_of(first.rounds, other.rounds, floor=floor)
            for other in others
        ]

    def _run(self, plans: Sequence[SessionPlan]) -> list[Samples]:
        self.trying.sessions += len(plans) * self.schedule.processes
        return run_interleaved(plans, self.trying.feeds, self.schedule)


def _median_ms(elapsed: Samples) -> float:
    return median_of([[1e3 * each for each in rounds] for rounds in elapsed.rounds]).value

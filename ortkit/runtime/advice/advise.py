"""Settings of a session by measurement: threads, waiting, independent nodes, the arena."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ortkit.errors import RunError, UserError
from ortkit.runtime.advice.result import Advice, Measured, Round
from ortkit.runtime.advice.use import Use
from ortkit.runtime.cpu_limits import CpuLimits, cpu_limits
from ortkit.runtime.machine import LoadWatch
from ortkit.runtime.opening import CPU, SessionPlan
from ortkit.runtime.rounds import rotated
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers.worker import Worker, WorkerError

#: Every row of a step has its turn in each, so that drift hits all alike.
ROUNDS = 3
#: For so long the machine is watched before anything is measured.
_IDLE_SECONDS = 0.5
_Changes = Mapping[str, object]
#: What is measured the other way round beside the best number of threads.
_OTHERS = ("parallel", "memory_arena")


def _silent(stage: str) -> None:
    """Ignore progress."""


def advise(
    plan: SessionPlan,
    inputs: Path,
    use: Use,
    progress: Callable[[str], None] = _silent,
) -> Advice:
    """Measure settings under the use that is meant, and choose.

    One kind of setting after the other is measured beside the best so far. It is changed only if
    that is better in every round, by 3 % in the median: else it stays as it is. What is chosen is
    measured once more beside the session as it is, and stays only if that holds again: of several
    equal settings the luckiest one looks better.

    Args:
        plan: The session as it is; each measured one is made from it, in processes of its own.
        inputs: Inputs of all runs: a folder of tensors, or an npz file.
        use: What the sessions are to do.
        progress: Called with what is being measured.

    Raises:
        UserError: The session is for another provider than the CPU.
        RunError: The session as it is cannot be made or run.
    """
    if [name for name, _ in plan.providers] != [CPU[0][0]]:
        raise UserError("is for sessions on the CPU alone", where="advice", fix="target='cpu'")
    with LoadWatch() as idle:
        time.sleep(_IDLE_SECONDS)
    others = idle.found().others_cpus or 0.0
    limits = cpu_limits()
    bench = _Bench(plan, inputs, use, progress)
    best, reasons, gain = Measured({}, (), -1), list[str](), 0.0
    with LoadWatch() as watch:
        turned = [{name: not getattr(plan.settings, name)} for name in _OTHERS]
        for step in (_threads(limits, use, others, plan.settings), turned):
            tried = [{**best.changes, **each} for each in step if not _is_set(plan, best, each)]
            if not tried:
                continue
            best, reason = bench.step(best, tried)
            reasons.append(reason)
        if best.changes:
            best, gain, reason = bench.confirmed(best)
            reasons.append(reason)
    return Advice(
        use, limits, replace(watch.found(), others_cpus=others), bench.rows, best, reasons,
        gain, replace(plan.settings, **best.changes),  # type: ignore[arg-type]
    )  # fmt: skip


def _threads(
    limits: CpuLimits, use: Use, others: float, settings: SessionSettings
) -> list[_Changes]:
    """Return numbers of threads worth measuring, with and without active waiting."""
    free = max(1, round(limits.whole - others))
    share = max(1, limits.whole // (use.sessions * use.callers))
    counts = {1, share, free, limits.whole, max(1, limits.whole // 2)}
    found: list[_Changes] = [{"threads": 1}, {"spinning": not settings.spinning}]
    # As many as there are processors is what ONNX Runtime does by itself, without an option.
    if settings.threads:
        found.append({"threads": 0})
    for count in sorted(counts - {1, limits.allowed}):
        found += [{"threads": count, "spinning": waits} for waits in (True, False)]
    return found


def _is_set(plan: SessionPlan, best: Measured, changes: _Changes) -> bool:
    """Say whether the best so far has these settings anyway."""
    settings = {name: best.changes.get(name, getattr(plan.settings, name)) for name in changes}
    return settings == changes


@dataclass
class _Bench:
    """Measures settings, and keeps what was measured."""

    plan: SessionPlan
    inputs: Path
    use: Use
    progress: Callable[[str], None]
    rows: list[Measured] = field(default_factory=list)
    """The first of each settings."""

    def step(self, best: Measured, tried: list[dict[str, object]]) -> tuple[Measured, str]:
        """Measure the best so far beside others; return which is best now, and why."""
        measured = self._measure([dict(best.changes), *tried])
        before, *others = measured
        known = [row.changes for row in self.rows]
        self.rows += [row for row in measured if row.changes not in known]
        ran = [row for row in others if row.rounds]
        if not ran:
            return before, f"{before.label}: nothing else ran ({others[0].problem})"
        goal = self.use.goal
        fastest = max(ran, key=lambda row: row.gain_over(before, goal))
        sure = [row for row in ran if row.is_surely_better(before, goal)]
        chosen = max(sure, key=lambda row: row.gain_over(before, goal), default=before)
        shown = fastest if chosen is before else chosen
        verb = "instead of" if chosen is not before else "is not surely better than"
        return chosen, f"{shown.label} {verb} {before.label}: {self._compared(shown, before)}"

    def confirmed(self, best: Measured) -> tuple[Measured, float, str]:
        """Measure what was chosen beside the session as it is, in rounds that chose nothing.

        Returns:
            What is best then, the part that it saves, and why.
        """
        before, again = self._measure([{}, dict(best.changes)])
        goal = self.use.goal
        if not again.rounds:
            return before, 0.0, f"{best.label} did not run again ({again.problem})"
        compared = self._compared(again, before)
        if not again.is_surely_better(before, goal):
            return before, 0.0, f"{best.label} is not better once more: {compared}"
        return again, again.gain_over(before, goal), f"{best.label} once more: {compared}"

    def _compared(self, row: Measured, other: Measured) -> str:
        """Return what two settings take, and what the first one saves."""
        gain = row.gain_over(other, self.use.goal)
        saved = f"{'saves' if gain > 0 else 'costs'} {abs(gain):.0%}"
        numbers = f"{_numbers(row, self.use)} and {_numbers(other, self.use)}"
        return f"{numbers}, {saved} in the median of {ROUNDS} rounds"

    def _measure(self, settings: list[dict[str, object]]) -> list[Measured]:
        """Return a row for each, rounds interleaved."""
        rounds: list[list[Round]] = [[] for _ in settings]
        peaks, problems = [-1] * len(settings), [""] * len(settings)
        for number in range(ROUNDS):
            for index in rotated(list(range(len(settings))), number):
                if problems[index]:
                    continue
                made = Measured(settings[index], (), -1)
                self.progress(f"round {number + 1} of {ROUNDS}: {made.label}")
                try:
                    found, peak = self._round(settings[index])
                except WorkerError as error:
                    problems[index], rounds[index] = str(error), []
                    if index == 0:
                        raise RunError(str(error), where=str(self.plan.model)) from error
                    continue
                rounds[index].append(found)
                peaks[index] = max(peaks[index], peak)
        return [
            Measured(*each)
            for each in zip(settings, map(tuple, rounds), peaks, problems, strict=True)
        ]

    def _round(self, changes: Mapping[str, object]) -> tuple[Round, int]:
        """Make the sessions, let all of them run at a time, and end them."""
        use = self.use
        settings = replace(self.plan.settings, **changes)  # type: ignore[arg-type]
        plan = replace(self.plan, settings=settings)
        with self._workers(plan) as workers, ThreadPoolExecutor(len(workers)) as pool:
            asked = [
                pool.submit(
                    each.concurrent, use.callers, use.seconds / ROUNDS, use.timeout_seconds
                )
                for each in workers
            ]
            runs = [each.result() for each in asked]
            used = [each.usage()["peak_resident"] for each in workers]
        times = 1e3 * np.concatenate([each.seconds for each in runs])
        p50, p95 = (float(each) for each in np.quantile(times, (0.5, 0.95)))
        rate = sum(len(each.seconds) / each.wall for each in runs)
        return Round(p50, p95, rate), -1 if min(used) < 0 else sum(used)

    @contextlib.contextmanager
    def _workers(self, plan: SessionPlan) -> Iterator[list[Worker]]:
        """Give as many processes as sessions, each loaded and warm."""
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(Worker()) for _ in range(self.use.sessions)]
            for each in workers:
                each.load(plan, self.use.timeout_seconds)
                each.feed(self.inputs, self.use.timeout_seconds)
            yield workers


def _numbers(row: Measured, use: Use) -> str:
    """Return what the goal is about."""
    if use.goal == "latency":
        return f"p95 {row.middle('p95'):.3g} ms"
    return f"{row.middle('per_second'):.3g} runs a second"

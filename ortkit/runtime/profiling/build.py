"""From a trace to a profile: who took how long in which run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.balance import balances
from ortkit.runtime.profiling.call_work import CallWork, work_by_trace
from ortkit.runtime.profiling.context import Context, Joined
from ortkit.runtime.profiling.kernels import kernel_rows
from ortkit.runtime.profiling.overall import overall_of
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.providers import ASYNCHRONOUS
from ortkit.runtime.profiling.result import OpRow, Profile, Row, Times
from ortkit.runtime.profiling.roofline import summed, work_of
from ortkit.runtime.profiling.rows import rows_of
from ortkit.runtime.profiling.times import grouped, typical
from ortkit.runtime.profiling.trace.counted import counted_runs
from ortkit.runtime.profiling.trace.gaps import Gaps, gaps_of
from ortkit.runtime.profiling.trace.nesting import nesting
from ortkit.runtime.profiling.trace.trace import Trace

#: A median above that much of the fastest run: the machine was not left alone.
_DISTURBED = 1.5
T = TypeVar("T")
Numbers = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def profile_of(
    trace: Trace,
    context: Context | None = None,
    *,
    warmup: int = 1,
    quiet_half: bool = False,
    where: str = "",
) -> Profile:
    """Add up a trace.

    Args:
        trace: The trace, as read from its file.
        context: What else is known.
        warmup: How many runs at its start are left out.
        quiet_half: Whether only the faster half of the others counts, which other processes
            disturbed least.
        where: What to call the trace in an error.

    Raises:
        UserError: No run is left.
    """
    known = context or Context()
    counted, notes = counted_runs(trace, warmup, quiet_half, where)
    return _Build(trace, known, counted, notes).profile()


def read_profile(path: Path, *, warmup: int = 1, quiet_half: bool = False) -> Profile:
    """Read the file that `InferenceSession.end_profiling` names, and add it up.

    Raises:
        UserError: It is no such file, or holds no run after the warm-up.
    """
    from ortkit.runtime.profiling.trace.read import read_trace

    return profile_of(read_trace(path), warmup=warmup, quiet_half=quiet_half, where=str(path))


class _Build:
    """One call of `profile_of`: what its steps share."""

    def __init__(
        self, trace: Trace, context: Context, counted: Numbers, notes: tuple[str, ...]
    ) -> None:
        self.trace, self.context, self.counted = trace, context, counted
        self.notes = [*notes, *context.notes]
        self.nodes = nodes = trace.nodes
        nested = nesting(nodes)
        self.all_rows = rows_of(nodes, nested.holder)
        self.gaps: Gaps = gaps_of(trace, nested.holder, counted)
        counted_index = np.full(len(trace.runs) + 1, -1, np.int64)
        counted_index[counted] = np.arange(len(counted))
        # Of counted runs; what is of no run has run -1: the last element, which is -1.
        self.events = np.flatnonzero(counted_index[nodes.run] >= 0)
        self.run = counted_index[nodes.run[self.events]]
        self.own = nested.own_us[self.events].astype(np.float64)
        # Rows by time; those of which no call counts have number -1.
        numbers, runs = self.all_rows.of[self.events], len(counted)
        times = np.zeros(len(self.all_rows.first) * runs)
        np.add.at(times, numbers * runs + self.run, self.own)
        total = typical(times.reshape(-1, runs))
        seen = np.bincount(numbers, minlength=len(self.all_rows.first)) > 0
        order = np.argsort(-np.where(seen, total, -1.0), kind="stable")[: int(seen.sum())]
        self.rank = np.full(len(self.all_rows.first) + 1, -1, np.int64)
        self.rank[order] = np.arange(len(order))
        self.order = order
        self.row = self.rank[numbers]

    def profile(self) -> Profile:
        """Do one step after the other."""
        runs = len(self.counted)
        flat: Values = np.zeros(len(self.order) * runs)
        np.add.at(flat, self.row * runs + self.run, self.own)
        run_times: Values = flat.reshape(len(self.order), runs)
        rows = self._described(run_times)
        whole = overall_of(self.trace, self.counted, self.gaps, run_times, self.context)
        for times in (whole.plain, whole.profiled):
            if times is not None and times.median_us > _DISTURBED * times.least_us:
                self.notes.append(
                    f"half of the runs took over {_DISTURBED:g} times as long as the fastest: "
                    "other processes were at work"
                )
                break
        if not self.context.device_times and any(row.provider in ASYNCHRONOUS for row in rows):
            self.notes.append(
                "times of nodes on a device are those of launching them: what it did meanwhile is "
                "not in the trace"
            )
        lost = int((self.nodes.run < 0).sum())
        if lost:
            self.notes.append(f"{lost} calls of nodes belong to no run, or to one of several")
        return Profile(
            about=self.context.about,
            rows=rows,
            ops=self._ops(rows, run_times),
            overall=whole,
            runs=runs,
            load_us=self.trace.load_us,
            initialize_us=self.trace.initialize_us,
            peaks=self.context.peaks,
            notes=tuple(self.notes),
            regions={} if self.context.joined is None else self.context.joined.region_bytes,
            kernels=kernel_rows(self.trace, self.counted),
            trace=self.trace,
            counted=tuple(int(run) for run in self.counted),
            row_of=self.rank[self.all_rows.of],
            run_times=run_times,
        )

    def _described(self, run_times: Values) -> tuple[Row, ...]:
        count, runs = len(self.order), len(self.counted)
        calls = grouped(self.own, self.row, count)
        per_run, own = _each(run_times), typical(run_times)
        gaps: Values = np.zeros(count * runs)
        np.add.at(gaps, self.row * runs + self.run, self.gaps.before[self.events])
        gap = typical(gaps.reshape(count, runs))
        waiting = balances(self.nodes, self.rank[self.all_rows.of], self.counted, count)
        device, copies = self._device()
        whole = float(own.sum()) or 1.0
        by_row = self._signatures()
        works = [[(calls, self._call_work(item)) for item, calls in each] for each in by_row]
        weights = sum(call_work.weight_bytes for each in works for _, call_work in each[:1])
        rows = []
        for at, number in enumerate(self.order):
            most = by_row[at][0][0]
            signature, holder_index = (
                self.nodes.signatures[most],
                int(self.all_rows.holder[number]),
            )
            elapsed = _elapsed(signature.provider, float(own[at]), device, at)
            rows.append(
                Row(
                    name=signature.name,
                    op=signature.op,
                    domain=self._joined(lambda found: found.domains, most, None),
                    provider=signature.provider,
                    holder=int(self.rank[holder_index]) if holder_index >= 0 else None,
                    calls=calls[at].count / runs,
                    own_us=float(own[at]),
                    share=float(own[at]) / whole,
                    run=per_run[at],
                    call=calls[at],
                    gap_us=float(gap[at]),
                    inputs=works[at][0][1].inputs,
                    outputs=signature.outputs,
                    shapes=len(by_row[at]),
                    output_bytes=signature.output_bytes,
                    work=work_of(works[at], elapsed, self._peaks(signature.provider), weights),
                    balance=waiting[at],
                    device_us=None if device is None else float(device[at]),
                    copies_us=None if copies is None else float(copies[at]),
                    origins=self._joined(lambda found: found.origins, most, ()),
                    region=self._joined(lambda found: found.regions, most, None),
                )
            )
        return tuple(rows)

    def _peaks(self, provider: str) -> Peaks | None:
        peaks = self.context.peaks
        return peaks if peaks is not None and peaks.provider == provider else None

    def _signatures(self) -> list[list[tuple[int, float]]]:
        """Return for each row its signatures with their calls in a run, most calls first."""
        count = len(self.nodes.signatures)
        pairs, calls = np.unique(
            self.row * count + self.nodes.signature[self.events], return_counts=True
        )
        found: list[list[tuple[int, float]]] = [[] for _ in self.order]
        for pair, number in sorted(
            zip(pairs.tolist(), calls.tolist(), strict=True), key=_by_calls
        ):
            found[pair // count].append((pair % count, number / len(self.counted)))
        return found

    def _call_work(self, number: int) -> CallWork:
        known = self._joined(lambda found: found.work, number, None)
        return known or work_by_trace(self.nodes.signatures[number])

    def _joined(self, field_of: Callable[[Joined], Sequence[T]], number: int, default: T) -> T:
        return default if self.context.joined is None else field_of(self.context.joined)[number]

    def _device(self) -> tuple[Values | None, Values | None]:
        """Return for each row the device's time in its kernels and copies, in one run."""
        if not self.context.device_times:
            return None, None
        found = (np.zeros(len(self.order)), np.zeros(len(self.order)))
        counted = set(self.counted.tolist())
        for event in self.trace.kernels:
            if event.node >= 0 and event.run in counted:
                row = self.rank[self.all_rows.of[event.node]]
                found[event.kind != "kernel"][row] += event.duration_us / len(self.counted)
        return found

    def _ops(self, rows: Sequence[Row], run_times: Values) -> tuple[OpRow, ...]:
        members: dict[tuple[str, str], list[int]] = {}
        for at, row in enumerate(rows):
            members.setdefault((row.label, row.provider), []).append(at)
        if not members:
            return ()
        op_of = np.empty(len(rows), np.int64)
        for number, each in enumerate(members.values()):
            op_of[each] = number
        calls = grouped(self.own, op_of[self.row], len(members))
        sums = np.zeros((len(members), run_times.shape[1]))
        np.add.at(sums, op_of, run_times)
        per_run, own = _each(sums), typical(sums)
        found = []
        for number, ((op, provider), each) in enumerate(members.items()):
            mine = [rows[at] for at in each]
            work, uncounted = summed([(one.work, _row_elapsed(one)) for one in mine])
            device = [item.device_us for item in mine if item.device_us is not None]
            found.append(
                OpRow(
                    op=op,
                    provider=provider,
                    nodes=len(each),
                    calls=sum(one.calls for one in mine),
                    own_us=float(own[number]),
                    share=sum(one.share for one in mine),
                    run=per_run[number],
                    call=calls[number],
                    work=work,
                    uncounted=uncounted,
                    device_us=sum(device) if device else None,
                )
            )
        return tuple(sorted(found, key=lambda op_row: -op_row.own_us))


def _each(values: Values) -> list[Times]:
    """Describe each line of a matrix."""
    lines, width = values.shape
    return grouped(values.ravel(), np.repeat(np.arange(lines), width), lines) if lines else []


def _by_calls(pair: tuple[int, int]) -> tuple[int, int]:
    return -pair[1], pair[0]


def _elapsed(provider: str, own_us: float, device: Values | None, row: int) -> float | None:
    """Return the time in which a row's work was done, None if it is not known."""
    if provider not in ASYNCHRONOUS:
        return own_us
    return None if device is None else float(device[row])


def _row_elapsed(row: Row) -> float | None:
    return row.device_us if row.provider in ASYNCHRONOUS else row.own_us

"""What was computed and moved in the time taken, against the machine's peaks.

Source:
    Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures" (2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import Bound, Work

NOTHING = Work(None, None, None, None, None, None, None)


def work_of(
    calls: Sequence[tuple[float, CallWork]],
    elapsed_us: float | None,
    peaks: Peaks | None,
    weight_bytes: int,
) -> Work:
    """Return the work of a node in one run.

    Args:
        calls: (how many in a run, what each does).
        elapsed_us: Its time in a run; None: not known, as with what a device does meanwhile.
        peaks: Of the provider that runs it.
        weight_bytes: Of the whole model: weights are read in turn, so that more of them than a
            cache holds come from the memory in each run.
    """
    flops = _total((count, call_work.flops) for count, call_work in calls)
    moved = _total((count, item.bytes_moved) for count, item in calls)
    elapsed = elapsed_us or 0.0
    least, bound = _least(calls, peaks, weight_bytes)
    attained = least / elapsed_us if least is not None and elapsed_us else None
    return Work(flops, moved, _rate(flops, elapsed), _rate(moved, elapsed), bound, attained, least)


def summed(rows: Sequence[tuple[Work, float | None]]) -> tuple[Work, int]:
    """Return the sum over rows of one operator, and how many are left out as not known.

    Args:
        rows: Each with its time in a run.
    """
    known = [(work, elapsed) for work, elapsed in rows if work.flops is not None]
    moving = [(work, elapsed) for work, elapsed in rows if work.bytes_moved is not None]
    flops = sum(work.flops or 0 for work, _ in known) if known else None
    moved = sum(work.bytes_moved or 0 for work, _ in moving) if moving else None
    least = [
        (work.least_us, elapsed) for work, elapsed in rows if work.least_us is not None and elapsed
    ]
    least_us = sum(item for item, _ in least) if least else None
    elapsed_us = sum(elapsed or 0.0 for _, elapsed in least)
    bounds: dict[Bound, float] = {}
    for work, _ in rows:
        if work.bound is not None:
            bounds[work.bound] = bounds.get(work.bound, 0.0) + (work.least_us or 0.0)
    most = sorted(bounds, key=bounds.__getitem__)
    total = Work(
        flops,
        moved,
        _rate(flops, sum(elapsed or 0.0 for _, elapsed in known)),
        _rate(moved, sum(elapsed or 0.0 for _, elapsed in moving)),
        most[-1] if most else None,
        least_us / elapsed_us if least_us is not None and elapsed_us else None,
        least_us,
    )
    return total, len(rows) - len(known)


def _least(
    calls: Sequence[tuple[float, CallWork]], peaks: Peaks | None, weight_bytes: int
) -> tuple[float | None, Bound | None]:
    if peaks is None:
        return None, None
    total = computing = moving = 0.0
    for count, call_work in calls:
        if call_work.flops is None or call_work.bytes_moved is None:
            return None, None
        compute = peaks.compute_us(call_work.flops, call_work.dtype) if call_work.flops else 0.0
        if compute is None:
            return None, None
        rest = max(0, call_work.bytes_moved - call_work.weight_bytes)
        weights = min(call_work.weight_bytes, call_work.bytes_moved)
        move = peaks.move_us(rest) + peaks.move_us(weights, weight_bytes)
        total += count * max(compute, move)
        computing += count * compute
        moving += count * move
    return total, None if not total else "arithmetic" if computing > moving else "memory"


def _total(counts: Iterable[tuple[float, int | None]]) -> int | None:
    total = 0.0
    for count, number in counts:
        if number is None:
            return None
        total += count * number
    return round(total)


def _rate(count: int | None, elapsed_us: float) -> float | None:
    """Return thousands per microsecond: G per second."""
    return None if count is None or not elapsed_us else count / elapsed_us / 1e3

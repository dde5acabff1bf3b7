"""From profiles to the sides of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.context import Context, Joined
from ortkit.runtime.profiling.diff import Side, Work
from ortkit.runtime.profiling.diff_interval import Medians
from ortkit.runtime.profiling.diff_rounds import Traced
from ortkit.runtime.profiling.result import Profile, Row, Times

Numbers = npt.NDArray[np.float64]
_Key = tuple[str, ...]


def side_of_profile(profile: Profile, label: str) -> Side:
    """Return a profile that was taken by itself."""
    whole = profile.overall.plain or profile.overall.profiled
    return Side(
        label=label,
        nodes=tuple(_work(row) for row in profile.rows),
        times_us=(),
        medians_us=_medians([row.run for row in profile.rows]),
        run_us={"median": whole.median_us, "low": whole.low_us, "high": whole.high_us},
        peak_bytes=profile.overall.peak_bytes,
    )


def side_of_traces(
    traced: Sequence[Traced],
    joined: Joined | None,
    label: str,
    run_us: Mapping[str, float | None],
) -> Side:
    """Return what several processes of one session took; the nodes are those of the first.

    Args:
        traced: By process.
        joined: What the first trace's nodes stand for.
        label: What the user called the model.
        run_us: Of whole runs without tracing.
    """
    profiles = [
        profile_of(item.trace, Context(joined=joined if item is traced[0] else None), where=label)
        for item in traced
    ]
    first = profiles[0]
    row_of = {key: at for at, key in enumerate(_keys(first.rows))}
    times = []
    for one, profile in zip(traced, profiles, strict=True):
        elapsed = _of_counted(profile, one.counted)
        ordered = np.zeros((len(first.rows), elapsed.shape[1]))
        for at, key in enumerate(_keys(profile.rows)):
            if key in row_of:
                ordered[row_of[key]] = elapsed[at]
        times.append(ordered)
    together = np.hstack(times)
    return Side(
        label=label,
        nodes=tuple(_work(row) for row in first.rows),
        times_us=tuple(times),
        medians_us=Medians(np.median(together, axis=-1), None, None),
        run_us=run_us,
        peak_bytes=first.overall.peak_bytes,
    )


def _of_counted(profile: Profile, counted: npt.NDArray[np.int64]) -> Numbers:
    assert profile.run_times is not None
    column = {run: at for at, run in enumerate(profile.counted)}
    return profile.run_times[:, [column[int(run)] for run in counted]]


def _keys(rows: Sequence[Row]) -> list[_Key]:
    """Return what a node is found by in another process: it and the nodes it is in."""
    found = []
    for row in rows:
        key, holder = [row.name, row.op, row.provider], row.holder
        while holder is not None:
            key.append(rows[holder].name)
            holder = rows[holder].holder
        found.append(tuple(key))
    return found


def _work(row: Row) -> Work:
    return Work(row.name, row.label, row.origins, row.output_bytes, row.provider)


def _medians(times: Sequence[Times]) -> Medians:
    median = np.array([time.median_us for time in times], np.float64)
    if any(item.low_us is None or item.high_us is None for item in times):
        return Medians(median, None, None)
    low = np.array([one.low_us for one in times], np.float64)
    return Medians(median, low, np.array([one.high_us for one in times], np.float64))

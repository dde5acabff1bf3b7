"""Which runs of a trace count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ortkit.errors import UserError
from ortkit.runtime.profiling.trace.trace import Trace

Numbers = npt.NDArray[np.int64]


def counted_runs(
    trace: Trace, warmup: int, quiet_half: bool, where: str
) -> tuple[Numbers, tuple[str, ...]]:
    """Return the runs that count, ascending, and what there is to say of it.

    Raises:
        UserError: None is left; `where` is what the trace is called then.
    """
    runs = np.arange(len(trace.runs))
    calls = np.bincount(trace.nodes.run[trace.nodes.run >= 0], minlength=len(runs))
    notes: tuple[str, ...] = ()
    if warmup < 0:
        raise UserError(f"{warmup} runs cannot be left out", where="warmup", fix="0 or more")
    left = runs[warmup:]
    if not len(left):
        raise UserError(
            f"the profile holds {len(runs)} runs and {warmup} are warm-up",
            where=where,
            fix=f"run the session at least {warmup + 1} times, or lower warmup",
        )
    with_nodes = left[calls[left] > 0]
    if len(with_nodes) == 0 and calls.any():
        # A CUDA graph: the runs that captured it are the only ones that say anything of nodes.
        with_nodes = runs[calls > 0][-1:]
        notes = (
            "the runs after the warm-up show no nodes, as those do that replay a CUDA graph; "
            "the numbers are those of the last run that does",
        )
    elif 0 < len(with_nodes) < len(left):
        notes = (
            f"{len(left) - len(with_nodes)} of {len(left)} runs show no nodes, as those do that "
            "replay a CUDA graph; they do not count",
        )
    counted = with_nodes if len(with_nodes) else left
    if quiet_half:
        elapsed = np.array([trace.runs[run].duration_us for run in counted])
        counted = np.sort(counted[np.argsort(elapsed, kind="stable")[: (len(counted) + 1) // 2]])
    return counted, notes

"""Nodes in the bodies of other nodes: whose they are, and what is left to the holder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.trace.events import HOLDERS
from ortkit.runtime.profiling.trace.trace import NodeEvents

Numbers = npt.NDArray[np.int64]
#: Begins and durations are cut to whole microseconds, so that an end may come out too late.
_CUT_US = 1


class Nesting(NamedTuple):
    """For each event."""

    holder: Numbers
    """[events] the innermost event of an If, Loop or Scan that it ran in, -1 for none."""
    own_us: Numbers
    """[events] its time without that of what ran in it."""


def nesting(nodes: NodeEvents) -> Nesting:
    """Find what ran within what: on one thread, a body's nodes begin and end within its holder."""
    holder = np.full(len(nodes), -1, np.int64)
    own = nodes.duration_us.copy()
    holds = np.array([signature.op in HOLDERS for signature in nodes.signatures], bool)
    if not holds.any():
        return Nesting(holder, own)
    is_holder = holds[nodes.signature]
    end = nodes.start_us + nodes.duration_us
    for thread in np.unique(nodes.thread[is_holder]):
        mine = np.flatnonzero(nodes.thread == thread)
        # The longer first where two begin together, a holder before what it may hold.
        keys = (~is_holder[mine], -nodes.duration_us[mine], nodes.start_us[mine])
        open_holders: list[int] = []
        for index in mine[np.lexsort(keys)].tolist():
            # Between the end of one kernel and the begin of the next some time passes: what
            # begins when a holder ends is after it.
            while open_holders and end[open_holders[-1]] <= nodes.start_us[index]:
                open_holders.pop()
            if open_holders and end[index] <= end[open_holders[-1]] + _CUT_US:
                holder[index] = open_holders[-1]
                own[open_holders[-1]] -= nodes.duration_us[index]
            if is_holder[index]:
                open_holders.append(index)
    return Nesting(holder, np.maximum(own, 0))

"""Which events are calls of the same node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.trace.trace import NodeEvents

Numbers = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """The nodes that were called."""

    of: Numbers
    """[events] number of the node."""
    holder: Numbers
    """[rows] number of the node in whose body it is, -1 for none."""
    first: Numbers
    """[rows] one of its events."""


def rows_of(nodes: NodeEvents, holder: Numbers) -> Rows:
    """Number the nodes: by name, number and operator, and by the node that holds them.

    Names are unique within a graph, not among the bodies of a model.

    Args:
        nodes: The events.
        holder: [events] the event in which each ran, -1 for none.
    """
    names: dict[tuple[str, int | None, str, str], int] = {}
    same = np.array(
        [
            names.setdefault(
                (signature.name, signature.index, signature.op, signature.provider), len(names)
            )
            for signature in nodes.signatures
        ],
        np.int64,
    )
    identity = same[nodes.signature]
    of = np.full(len(nodes), -1, np.int64)
    holders: list[Numbers] = []
    count = 0
    # One level of nesting after the other: the holder's number comes first.
    level = np.flatnonzero(holder < 0)
    while len(level):
        above = np.where(holder[level] < 0, -1, of[holder[level]])
        pairs = (above + 1) * len(names) + identity[level]
        unique, index = np.unique(pairs, return_inverse=True)
        of[level] = count + index
        holders.append(unique // len(names) - 1)
        count += len(unique)
        level = np.flatnonzero((of < 0) & (holder >= 0) & (of[holder] >= 0))
    _, first = np.unique(of, return_index=True)
    found = np.concatenate(holders) if holders else np.empty(0, np.int64)
    return Rows(of, found.astype(np.int64), first.astype(np.int64))

"""Which of several sets of nodes may become one node each, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def in_cycles(groups: Sequence[Sequence[int]], feeders: Mapping[int, Sequence[int]]) -> list[int]:
    """Return which groups stand in a cycle once each is one node, or between two of them.

    Each group for itself may be convex: a cycle runs through two at least.

    Args:
        groups: Disjoint sets of nodes.
        feeders: For each node, those whose results it reads; a graph without cycles.
    """
    owner = {node: -1 - number for number, group in enumerate(groups) for node in group}
    readers: dict[int, set[int]] = {}
    sources: dict[int, set[int]] = {}
    for node, others in feeders.items():
        mine = owner.get(node, node)
        sources.setdefault(mine, set())
        for other in others:
            theirs = owner.get(other, other)
            sources.setdefault(theirs, set())
            if theirs != mine:
                sources[mine].add(theirs)
                readers.setdefault(theirs, set()).add(mine)
    left = _stripped(sources, readers)  # what waits for a cycle
    left &= _stripped(readers, sources, left)  # and what a cycle waits for
    return sorted(-1 - item for item in left if item < 0)


def _stripped(
    before: Mapping[int, set[int]], after: Mapping[int, set[int]], among: set[int] | None = None
) -> set[int]:
    """Return what is left when nodes without anything before them are taken away in turn."""
    every = set(before) | set(after) if among is None else among
    waiting = {node: len(before.get(node, set()) & every) for node in every}
    ready = [node for node, count in waiting.items() if not count]
    while ready:
        node = ready.pop()
        del waiting[node]
        for other in after.get(node, ()):
            if other in waiting:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
    return set(waiting)

"""Joining groups of nodes that only one model has, where they read the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortkit.graph.analysis.value_names import Key, Side

Indices = tuple[list[int], list[int]]
"""Nodes of A and nodes of B, by their numbers."""
_Reads = frozenset[int | tuple[Key]]
"""The groups and the model's inputs that a group reads."""


def join_lonely(sides: tuple[Side, Side], indices: Mapping[int, Indices]) -> list[Indices]:
    """Join each group that only A has with the one that only B has and that reads the same.

    They are taken in the order of how many such groups lie before each: what those were
    joined to is then known.
    """
    owners = {
        key: int(not mine) for key, (mine, others) in indices.items() if not mine or not others
    }
    reads: dict[int, _Reads] = {}
    levels: dict[int, list[int]] = {}
    for index, side in enumerate(sides):
        groups = {at: key for key, pair in indices.items() for at in pair[index]}
        own = {key: _read(side, indices[key][index], groups, key)
               for key, owner in owners.items() if owner == index}  # fmt: skip
        reads |= own
        for key, level in _levels(own).items():
            levels.setdefault(level, []).append(key)
    joined: dict[int, int] = {}
    for level in sorted(levels):
        joined |= _join(levels[level], owners, reads, joined)
    found = {key: pair for key, pair in indices.items() if key not in joined}
    for after, before in joined.items():
        found[before] = indices[before][0], indices[after][1]
    return list(found.values())


def _join(
    keys: Sequence[int], owners: Mapping[int, int], reads: Mapping[int, _Reads],
    joined: Mapping[int, int],
) -> dict[int, int]:  # fmt: skip
    """Return for groups of B those of A that read the same, if no other does."""
    known: tuple[dict[object, list[int]], ...] = ({}, {})
    for key in keys:
        read = frozenset(
            joined.get(item, item) if isinstance(item, int) else item for item in reads[key]
        )
        known[owners[key]].setdefault(read, []).append(key)
    pairs = ((known[1].get(read, []), before) for read, before in known[0].items() if read)
    return {after[0]: before[0] for after, before in pairs if len(after) == len(before) == 1}


def _read(side: Side, nodes: Sequence[int], groups: Mapping[int, int], own: int) -> _Reads:
    found: set[int | tuple[Key]] = set()
    for at in nodes:
        for value in side.nodes[at].inputs:
            if value is None or value.is_initializer():
                continue
            maker = value.producer()
            if maker is None:
                found.add((side.keys.get(value, ""),))
            elif maker.op_type != "Constant" and groups[side.index[maker]] != own:
                found.add(groups[side.index[maker]])
    return frozenset(found)


def _levels(reads: Mapping[int, _Reads]) -> dict[int, int]:
    """Return how many of these groups lie before each, along the longest way."""
    sources = {key: [item for item in read if item in reads] for key, read in reads.items()}
    readers: dict[int, list[int]] = {key: [] for key in reads}
    for key, before in sources.items():
        for number in before:
            if isinstance(number, int):
                readers[number].append(key)
    waiting = {key: len(before) for key, before in sources.items()}
    ready = [key for key, count in waiting.items() if not count]
    levels = dict.fromkeys(reads, 0)
    while ready:
        key = ready.pop()
        for reader in readers[key]:
            levels[reader] = max(levels[reader], levels[key] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return levels

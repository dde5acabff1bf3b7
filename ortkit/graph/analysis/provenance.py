"""Which nodes of one model stand for which nodes of another, inferred from the names of values.

Tools that rewrite a graph rename nodes, but most keep the names of the values between them. A
value that two models call by the same name is the same value. Between such values the nodes
that lead to one of them in the one model correspond to those that lead to it in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.analysis.provenance_join import Indices, join_lonely
from ortkit.graph.analysis.value_names import Key, Pair, Side, labels, shared_values

__all__ = ["Alignment", "Group", "align", "labels"]

#: What a node leads to is followed exactly up to this many values, beyond that by structure.
_EXACT = 64


@dataclass(frozen=True)
class Group:
    """Nodes of A and the nodes of B that do the same work, by their labels; see `labels`."""

    before: tuple[str, ...]
    """Nodes of A; empty for what only B has."""
    after: tuple[str, ...]
    """Nodes of B; empty for what only A has."""


@dataclass(frozen=True)
class Alignment:
    """How two models correspond."""

    groups: tuple[Group, ...]
    """Every node of A and every node of B is in exactly one, in the order of the models."""
    values: frozenset[str]
    """Names of inputs and computed values that mean the same in A and in B."""


def align(a: ir.Model, b: ir.Model) -> Alignment:
    """Say which nodes of `a` and `b` correspond, those in subgraphs included.

    A name that both have does not count where it is in doubt: the types or ranks differ, or
    nodes that make the same value read it where they read another value before, as a tool
    leaves it that folds a node into the one before and keeps the wrong name.

    A node belongs to the value of common name that all of its results lead to. Nodes that lead
    to several, such as those of a mask that all layers read, are a group of their own. Where
    such a group is in one model only, it is joined with one of the other that reads the same
    values. The time is linear in the number of nodes and edges.
    """
    before, after = Side.of(a), Side.of(b)
    is_twice = before.twice | after.twice
    left, right = before.keyed(is_twice), after.keyed(is_twice)
    same = shared_values(Pair(before, after, left, right))
    shared = same | before.adopt_layout_names(after) | after.adopt_layout_names(before)
    classes = _classes((before, after), shared)
    table = _Table()
    indices: dict[int, tuple[list[int], list[int]]] = {}
    for index, side in enumerate((before, after)):
        for at, target in enumerate(_targets(side, shared, classes, table)):
            indices.setdefault(target, ([], []))[index].append(at)
    together = join_lonely((before, after), indices)
    groups = [
        Group(tuple(before.labels[at] for at in mine), tuple(after.labels[at] for at in others))
        for mine, others in sorted(together, key=_Order(together))
    ]
    names = (key for key in same if isinstance(key, str) and _is_computed(left[key], right[key]))
    return Alignment(tuple(groups), frozenset(names))


def _classes(sides: Iterable[Side], shared: frozenset[Key]) -> dict[Key, Key]:
    """Map each shared value to one that stands for all that a node of either makes with it."""
    parents: dict[Key, Key] = {}

    def root(key: Key) -> Key:
        while (parent := parents.get(key, key)) != key:
            parents[key] = key = parents.get(parent, parent)
        return key

    for side in sides:
        for node in side.nodes:
            made = [side.keys[value] for value in node.outputs if value.name]
            made = [key for key in made if key in shared]
            for key in made[1:]:
                parents[root(key)] = root(made[0])
    return {key: root(key) for key in shared}


class _Table:
    """Numbers for what nodes lead to; equal in both models where that is equal."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._members: list[frozenset[int] | None] = []

    def one(self, key: object) -> int:
        """Return the number of a single goal."""
        return self._number(("one", key), None)

    def of(self, numbers: set[int]) -> int:
        """Return the number of everything that these lead to."""
        if len(numbers) == 1:
            return next(iter(numbers))
        members: set[int] = set()
        for number in numbers:
            members.update(self._members[number] or (number,))
            if len(members) > _EXACT:
                return self._number(("many", frozenset(numbers)), None)
        return self._number(("set", frozenset(members)), frozenset(members))

    def _number(self, key: object, members: frozenset[int] | None) -> int:
        if (known := self._numbers.get(key)) is not None:
            return known
        self._numbers[key] = len(self._members)
        self._members.append(members)
        return len(self._members) - 1


def _targets(
    side: Side, shared: frozenset[Key], classes: Mapping[Key, Key], table: _Table
) -> list[int]:
    """Return for each node the number of what it leads to."""
    found = [-1] * len(side.nodes)
    readers = [_readers(side, node, shared) for node in side.nodes]
    waiting = [len(each) for each in readers]
    feeders: list[list[int]] = [[] for _ in side.nodes]
    for at, each in enumerate(readers):
        for reader in each:
            feeders[reader].append(at)
    ready = [at for at, count in enumerate(waiting) if count == 0]
    while ready:
        at = ready.pop()
        made = [side.keys[value] for value in side.nodes[at].outputs if value.name]
        goal = next((classes[key] for key in made if key in shared), None)
        if goal is not None:
            found[at] = table.one(goal)
        elif readers[at]:
            found[at] = table.of({found[reader] for reader in readers[at]})
        else:
            found[at] = table.one((id(side), at))
        for feeder in feeders[at]:
            waiting[feeder] -= 1
            if waiting[feeder] == 0:
                ready.append(feeder)
    return found


def _readers(side: Side, node: ir.Node, shared: frozenset[Key]) -> set[int]:
    """Return the nodes that decide what `node` leads to: none where a result is shared."""
    named = [value for value in node.outputs if value.name]
    if any(side.keys[value] in shared for value in named):
        return set()
    return {side.index[reader] for value in named for reader in side.readers(value)}


def _is_computed(one: ir.Value, other: ir.Value) -> bool:
    return not (one.is_initializer() and other.is_initializer())


class _Order:
    """Sorts groups by A; what only B has comes after what precedes it there."""

    def __init__(self, indices: Iterable[Indices]) -> None:
        self._after: dict[int, tuple[int, int]] = {}
        last = -1
        for others, mine in sorted((others[0], mine) for mine, others in indices if others):
            last = mine[0] if mine else last
            self._after[others] = last, others

    def __call__(self, pair: Indices) -> tuple[int, int]:
        mine, others = pair
        if mine:
            return mine[0], -1
        return self._after[others[0]]

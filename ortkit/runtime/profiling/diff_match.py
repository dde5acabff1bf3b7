"""Which nodes that ran before do the work of which nodes that ran after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortkit.graph.analysis.provenance import Alignment


@dataclass(frozen=True)
class Match:
    """Rows of A and the rows of B that do the same work."""

    before: tuple[int, ...]
    """Empty for work that only B does."""
    after: tuple[int, ...]


def match(
    before: Sequence[tuple[str, Sequence[str]]],
    after: Sequence[tuple[str, Sequence[str]]],
    alignment: Alignment | None = None,
) -> tuple[Match, ...]:
    """Join rows that share work; each row is in exactly one match.

    A row that stands for no node of its model was added by the runtime: it corresponds to one
    of the same name, or to none.

    Args:
        before: Of each row of A, its name and the nodes of A's model that it stands for, by
            their labels.
        after: Of each row of B, its name and the nodes of B's model.
        alignment: How the nodes of the two models correspond; None: by equal labels.
    """
    joined = _Joined()
    for side, rows in enumerate((before, after)):
        for row, (name, labels) in enumerate(rows):
            nodes: list[object] = [("node", side, label) for label in labels]
            joined.join((side, row), *(nodes or [("added", name)]))
    if alignment is None:
        for label in {label for _, labels in before for label in labels}:
            joined.join(("node", 0, label), ("node", 1, label))
    else:
        for group in alignment.groups:
            joined.join(
                *(("node", 0, label) for label in group.before),
                *(("node", 1, label) for label in group.after),
            )
    found: dict[object, tuple[list[int], list[int]]] = {}
    for side, rows in enumerate((before, after)):
        for row in range(len(rows)):
            found.setdefault(joined.root((side, row)), ([], []))[side].append(row)
    return tuple(Match(tuple(mine), tuple(others)) for mine, others in found.values())


class _Joined:
    """Disjoint sets."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def root(self, one: object) -> object:
        while (parent := self._parents.get(one, one)) != one:
            above = self._parents.get(parent, parent)
            self._parents[one] = above
            one = above
        return one

    def join(self, *members: object) -> None:
        roots = [self.root(member) for member in members]
        for root in roots[1:]:
            self._parents[self.root(root)] = self.root(roots[0])


def common_name(names: Iterable[str]) -> str:
    """Return the scope that several node names share, empty if none: `/encoder/layer.3`."""
    parts = [name.split("/")[:-1] for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)

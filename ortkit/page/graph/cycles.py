"""Strongly connected components."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def strong_components(successors: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Return the components of more than one item; linear in items and edges.

    Source: R. Tarjan, Depth-first search and linear graph algorithms (1972).
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in successors:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(successors[root]))]
        while work:
            item, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(successors[other])))
                    break
                if other in on_stack:
                    low[item] = min(low[item], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[item])
                if low[item] == index[item]:
                    component = [stack.pop()]
                    while component[-1] != item:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
    return found

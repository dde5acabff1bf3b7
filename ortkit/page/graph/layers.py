"""Items of one group in layers, so that edges lead down and cross little.

Source: K. Sugiyama, S. Tagawa and M. Toda, Methods for visual understanding of hierarchical
system structures (1981): layers, stops for edges that skip layers, order by barycenters.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ortkit.page.graph.document import Route

#: Edges that skip more layers than this get no stops: they are drawn straight.
MOST_STOPS = 120
#: Passes over the layers that order them, down and up in turn.
_SWEEPS = 12
#: Sweeps without a better order after which there will be none.
_PATIENCE = 4
#: Crossings are counted, to keep the best order, up to this many edges.
_COUNTED = 3000

Pairs = Sequence[tuple[int, int]]


def layers_of(
    items: Sequence[int], inner: Pairs, entering: Pairs, leaving: Pairs, first_stop: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[Route, ...]]:
    """Return the layers of a group and the ways of its edges; those of one source share stops.

    Args:
        items: In the order of the model.
        inner: Edges between items.
        entering: A node outside, and the item that reads it.
        leaving: An item, and the node in it that is read outside.
        first_stop: Numbers from this one upward are free for stops.
    """
    inner = list(dict.fromkeys(pair for pair in inner if pair[0] != pair[1]))
    level = _levels(items, inner)
    depth = max(level.values(), default=-1) + 1
    ways = [(pair, level[pair[0]], level[pair[1]]) for pair in inner]
    ways += [(pair, -1, level[pair[1]]) for pair in dict.fromkeys(entering)]
    ways += [(pair, level[pair[0]], depth) for pair in dict.fromkeys(leaving)]
    layers: list[list[int]] = [[] for _ in range(depth)]
    for item in items:
        layers[level[item]].append(item)
    routes: list[Route] = []
    links: list[tuple[int, int]] = []
    stop = first_stop
    chains: dict[int, list[int]] = {}
    for (source, target), top, bottom in sorted(ways, key=lambda way: way[2]):
        count = bottom - top - 1
        if not 0 < count <= MOST_STOPS:
            routes.append(Route(source, target, ()))
            if count == 0 and top >= 0 and bottom < depth:
                links.append((source, target))
            continue
        chain = chains.setdefault(source, [])
        while len(chain) < count:
            layers[top + 1 + len(chain)].append(stop)
            links += [(chain[-1] if chain else source, stop)] * (bool(chain) or top >= 0)
            chain.append(stop)
            stop += 1
        links += [(chain[count - 1], target)] * (bottom < depth)
        routes.append(Route(source, target, tuple(chain[:count])))
    return _ordered(layers, links), tuple(routes)


def _levels(items: Sequence[int], edges: Pairs) -> dict[int, int]:
    """Return each item's layer: below what it reads, as low as makes no edge longer in all."""
    readers: dict[int, list[int]] = {item: [] for item in items}
    waiting = dict.fromkeys(items, 0)
    for source, target in edges:
        readers[source].append(target)
        waiting[target] += 1
    reads = dict(waiting)
    order: list[int] = []
    level = dict.fromkeys(items, 0)
    ready = [item for item in items if not waiting[item]]
    for item in ready:  # grows while it is walked
        order.append(item)
        for reader in readers[item]:
            level[reader] = max(level[reader], level[item] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    for item in reversed(order):
        if readers[item] and len(readers[item]) >= reads[item]:
            level[item] = max(level[item], min(level[reader] for reader in readers[item]) - 1)
    return level


def _ordered(layers: list[list[int]], links: Pairs) -> tuple[tuple[int, ...], ...]:
    """Order each layer by the middle of its neighbours' places; the best of several sweeps."""
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for source, target in links:
        below.setdefault(source, []).append(target)
        above.setdefault(target, []).append(source)
    best = [tuple(layer) for layer in layers]
    is_counted = len(links) <= _COUNTED
    fewest = _crossings(best, below) if is_counted else 0
    waited = 0
    for sweep in range(_SWEEPS):
        if sweep % 2:
            _sweep(layers[::-1], below)
        else:
            _sweep(layers, above)
        count = _crossings(layers, below) if is_counted else 0
        if is_counted and count >= fewest:
            waited += 1
        else:
            best, fewest, waited = [tuple(layer) for layer in layers], count, 0
        if is_counted and (not fewest or waited == _PATIENCE):
            break
    return tuple(best)


def _sweep(layers: Iterable[list[int]], neighbours: Mapping[int, Sequence[int]]) -> None:
    position: dict[int, float] = {}
    for layer in layers:
        wanted = {}
        for at, item in enumerate(layer):
            known = [
                position[neighbour]
                for neighbour in neighbours.get(item, ())
                if neighbour in position
            ]
            wanted[item] = sum(known) / len(known) if known else (at + 0.5) / len(layer)
        layer.sort(key=wanted.__getitem__)
        for at, item in enumerate(layer):
            position[item] = (at + 0.5) / len(layer)


def _crossings(layers: Sequence[Sequence[int]], below: Mapping[int, Sequence[int]]) -> int:
    total = 0
    for layer, following in pairwise(layers):
        position = {item: at for at, item in enumerate(following)}
        seen: list[int] = []
        for item in layer:
            ends = sorted(position[one] for one in below.get(item, ()) if one in position)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total

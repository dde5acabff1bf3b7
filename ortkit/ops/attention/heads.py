"""Where batch, heads, positions and channels are in the operands of an attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.graph.dims import Size, product
from ortkit.graph.reshape import RESHAPES
from ortkit.ops.attention.core import Core, RefusalError
from ortkit.ops.attention.trace import Station, trace_back, trace_on
from ortkit.rewrite.axes import Layout, Moves, moves, targets
from ortkit.rewrite.site import Site

#: Element order of an operand: "3d" is [B, S, H * D], "4d" is [B, H, S, D].
FORMS = ("3d", "4d")


@dataclass(frozen=True)
class Piece:
    """One of `count` equal pieces of a value along an axis."""

    axis: int
    count: int
    index: int


@dataclass(frozen=True)
class Operand:
    """How to get an operand in a form that an attention op takes."""

    value: ir.Value
    layout: Layout
    """From the value, or the piece of it, to the wanted form."""
    way: Moves
    scale: float
    heads: int
    piece: Piece | None = None
    before: tuple[int, int] = (0, 0)
    """Copying nodes, and all nodes, that have to stay to make the value."""

    @property
    def cost(self) -> tuple[int, int]:
        """Nodes that copy, then all nodes."""
        copies = (self.way.perm is not None) + (self.piece is not None)
        nodes = self.way.count + (self.piece is not None)
        return self.before[0] + copies, self.before[1] + nodes


@dataclass(frozen=True)
class Cache:
    """Keys or values of earlier calls: present = Concat(past, new)."""

    past: ir.Value
    """[B, H, P, D]"""
    present: ir.Value
    """[B, H, P + S, D]"""


@dataclass(frozen=True)
class Result:
    """What an attention op's output is moved to."""

    value: ir.Value
    layout: Layout
    way: Moves
    after: tuple[int, int] = (0, 0)
    """Copying nodes, and all nodes, that stay behind the value."""

    @property
    def cost(self) -> tuple[int, int]:
        """Nodes that copy, then all nodes."""
        return self.after[0] + (self.way.perm is not None), self.after[1] + self.way.count


@dataclass(frozen=True)
class Heads:
    """An attention's operands, arranged."""

    form: str
    batch: Size
    heads: int
    queries: Size
    """S, the number of query positions."""
    keys: Size
    """T, the number of key positions, cached ones included."""
    head_size: Size
    value_size: Size
    query: Operand
    key: Operand
    value: Operand
    result: Result
    caches: tuple[Cache, Cache] | None = None
    """Of keys and values."""

    @property
    def kv_heads(self) -> int:
        """How many heads keys and values have; each serves as many queries' heads in a row."""
        return self.key.heads

    @property
    def scale(self) -> float:
        """What the operands' own factors add to that of the scores."""
        return self.query.scale * self.key.scale

    @property
    def cost(self) -> tuple[int, int, int]:
        """Nodes that copy, then all nodes; kernels prefer three axes."""
        copies, nodes = self.result.cost
        for operand in (self.query, self.key, self.value):
            copies += operand.cost[0]
            nodes += operand.cost[1]
        # A cache that the op takes is not copied once more.
        saved = 2 if self.caches is not None else 0
        return copies - saved, nodes - saved, FORMS.index(self.form)


@dataclass(frozen=True)
class Lead:
    """The leading axes of an operand, and how they part into batch and heads."""

    sizes: tuple[Size, ...]
    batch: Size
    heads: int


def arrangements(site: Site, core: Core, *, shares: bool = True) -> list[Heads]:
    """Return the ways to arrange the operands of `core`, the cheapest first.

    Args:
        site: Its Softmax.
        core: The attention as it is written.
        shares: Whether a key head may serve several query heads without being repeated.

    Raises:
        RefusalError: With what stands in the way of all of them.
    """
    shape = site.shape(core.scores)
    if shape is None or len(shape) < 2 or not all(map(site.shape, (core.query, core.value))):
        raise RefusalError("the shapes of its operands are unknown")
    if 0 in shape:
        raise RefusalError("its scores are empty")
    stations = trace_back(site, core.query)[: 1 if core.gains else None]
    found = [
        heads
        for lead in _leads(stations, shape[:-2])
        for form in FORMS
        if (heads := _arranged(site, core, stations, lead, form, shares)) is not None
    ]
    if not found:
        raise RefusalError("batch and heads cannot be told apart in its operands")
    return sorted(found, key=lambda heads: heads.cost)


def _leads(stations: Sequence[Station], sizes: Sequence[Size]) -> Iterator[Lead]:
    """Yield the ways to part the leading axes, those with the fewest heads first."""
    factors = max(
        ([f for group in one.layout.result[:-2] for f in group] for one in stations),
        key=len,
        default=[],
    )
    for count in range(len(factors), -1, -1):
        batch, heads = (
            product(f.size for f in part) for part in (factors[:count], factors[count:])
        )
        if isinstance(heads, int):
            yield Lead(tuple(sizes), batch, heads)


def _arranged(
    site: Site, core: Core, stations: Sequence[Station], lead: Lead, form: str, shares: bool
) -> Heads | None:
    queries = operands_of(stations, lead, form)
    result = result_of(site, core.result, lead, form, is_flipped=core.is_flipped)
    query = queries.get(lead.heads)
    pair = _keys_and_values(site, core, lead, form, shares)
    if query is None or result is None or pair is None:
        return None
    key, value, caches = pair
    scores, ends = site.shape(core.scores), site.shape(core.value)
    channels = site.shape(core.query)
    assert scores is not None and ends is not None and channels is not None
    return Heads(
        form=form,
        batch=lead.batch,
        heads=lead.heads,
        queries=scores[-2],
        keys=scores[-1],
        head_size=channels[-1],
        value_size=ends[-2 if core.is_flipped else -1],
        query=query,
        key=key,
        value=value,
        result=result,
        caches=caches,
    )


def _keys_and_values(
    site: Site, core: Core, lead: Lead, form: str, shares: bool
) -> tuple[Operand, Operand, tuple[Cache, Cache] | None] | None:
    """Return keys and values with the same number of heads, the cheapest ones."""
    cached = _cached(site, core, lead, form)
    if cached is not None and cached[0].heads == cached[1].heads:
        is_taken = shares or cached[0].heads == lead.heads
        if is_taken:
            return cached
    keys = operands_of(trace_back(site, core.key), lead, form, swapped=True)
    values = operands_of(plain_stations(site, core.value), lead, form, swapped=core.is_flipped)
    pairs = [
        (key, values[heads], None)
        for heads, key in keys.items()
        if heads in values and not lead.heads % heads and (shares or heads == lead.heads)
    ]

    def cost(pair: tuple[Operand, Operand, None]) -> tuple[int, int]:
        return pair[0].cost[0] + pair[1].cost[0], pair[0].cost[1] + pair[1].cost[1]

    return min(pairs, key=cost, default=None)


def plain_stations(site: Site, end: ir.Value) -> list[Station]:
    """Return the stations that no factor separates from `end`."""
    return [station for station in trace_back(site, end) if station.scale == 1]


def operands_of(
    stations: Sequence[Station], lead: Lead, form: str, *, swapped: bool = False
) -> dict[int, Operand]:
    """Return the cheapest source of an operand, by the number of heads that it has there."""
    best: dict[int, Operand] = {}
    for station in stations:
        layout = _by_heads(station, lead, swapped=swapped)
        taken = None if layout is None else _without_fixed(layout, station)
        if taken is None:
            continue
        whole, piece = taken
        batch, heads, rows, columns = whole.result
        if form == "3d":
            whole = replace(whole, result=(batch, rows, heads + columns))
        way, count = constant_way(whole), product(factor.size for factor in heads)
        if way is None or not isinstance(count, int):
            continue
        operand = Operand(station.value, whole, way, station.scale, count, piece, station.before)
        if count not in best or operand.cost <= best[count].cost:
            best[count] = operand
    return best


def _by_heads(station: Station, lead: Lead, *, swapped: bool) -> Layout | None:
    """Return a station's layout with batch, own heads, rows and columns as result.

    Repeated heads are left out: they are shared, each by as many as follow each other.
    """
    ends = station.layout.shape[-2:]
    if len(ends) < 2 or len(station.layout.result) > len(lead.sizes) + 2:
        return None
    wide = station.layout.expanded((*lead.sizes, *ends))
    four = None if wide is None else wide.reshaped((lead.batch, lead.heads, *ends))
    if four is None:
        return None
    batch, heads, rows, columns = four.result
    repeated = set(four.repeated)
    own = tuple(factor for factor in heads if factor not in repeated)
    if heads[: len(own)] != own or repeated & {*batch, *rows, *columns}:
        return None
    ends_in_order = (columns, rows) if swapped else (rows, columns)
    return replace(four, result=(batch, own, *ends_in_order))


def _without_fixed(layout: Layout, station: Station) -> tuple[Layout, Piece | None] | None:
    """Return the layout from the piece of the station that arrives, if it is one in a row."""
    if not station.fixed:
        return layout, None
    if len(station.fixed) > 1:
        return None
    fixed = station.fixed[0]
    for axis, group in enumerate(layout.source):
        length = len(fixed.group)
        if length and group[:length] == fixed.group and len(group) > length:
            count = product(factor.size for factor in fixed.group)
            size = product(factor.size for factor in group[length:])
            if not isinstance(count, int) or not isinstance(size, int):
                return None
            rest = (*layout.source[:axis], group[length:], *layout.source[axis + 1 :])
            return replace(layout, source=rest), Piece(axis, count, fixed.index % count)
    return None


def constant_way(layout: Layout) -> Moves | None:
    """Return the cheapest moves whose targets are constant."""
    for way in moves(layout):
        if targets(layout.source_shape, way) is not None:
            return way
    return None


def _cached(
    site: Site, core: Core, lead: Lead, form: str
) -> tuple[Operand, Operand, tuple[Cache, Cache]] | None:
    """Return new keys and values with their caches, if both have one."""
    found = [
        _behind_cache(site, core.key, lead, form, swapped=True),
        _behind_cache(site, core.value, lead, form, swapped=core.is_flipped),
    ]
    key, value = found
    if key is None or value is None or value[0].scale != 1:
        return None
    return key[0], value[0], (key[1], value[1])


def _behind_cache(
    site: Site, end: ir.Value, lead: Lead, form: str, *, swapped: bool
) -> tuple[Operand, Cache] | None:
    stations = trace_back(site, end)
    if not stations or stations[-1].fixed:
        return None
    far = stations[-1]
    layout = _by_heads(far, lead, swapped=swapped)
    node = site.producer(far.value, "Concat")
    if layout is None or node is None or layout.source != layout.result:
        return None
    if len(node.inputs) != 2 or Site(site.scope, node, "").int("axis", 0) % 4 != 2:
        return None
    past, new = node.inputs
    shape = site.shape(new)
    heads = product(factor.size for factor in layout.result[1])
    if past is None or new is None or shape is None or not isinstance(heads, int):
        return None
    if len(far.value.uses()) != 1:
        # What else reads the present might be needed before the attention is computed.
        return None
    own = Lead((lead.batch, heads), lead.batch, heads)
    operand = operands_of(plain_stations(site, new), own, form).get(heads)
    if operand is None:
        return None
    return replace(operand, scale=far.scale), Cache(past, far.value)


def result_of(
    site: Site, value: ir.Value, lead: Lead, form: str, *, is_flipped: bool = False
) -> Result | None:
    """Return what the op's output replaces most cheaply: `value`, or what is made of it alone."""
    shape = site.shape(value)
    if shape is None or 0 in shape:
        return None
    four = Layout.of(shape).reshaped((lead.batch, lead.heads, *shape[-2:]))
    if four is None:
        return None
    batch, heads, rows, columns = four.result
    if is_flipped:
        rows, columns = columns, rows
    made = (batch, rows, heads + columns) if form == "3d" else (batch, heads, rows, columns)
    best: Result | None = None
    stations = trace_on(site, value, Layout(made, four.source))
    copies = 0
    for count, station in enumerate(reversed(stations)):
        way = constant_way(station.layout)
        if way is not None:
            found = Result(station.value, station.layout, way, (copies, count))
            if best is None or found.cost < best.cost:
                best = found
        node = station.value.producer()
        copies += node is not None and node.op_type not in RESHAPES
    return best

"""Operands and results of an attention: from where they come as an op wants them, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.analysis.axes import Layout, Moves, moves, targets
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.graph.symbolic.dims import Size, product
from ortkit.ops.attention.trace import Station, trace_back, trace_on
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
class Result:
    """What an attention op's output is moved to."""

    value: ir.Value
    layout: Layout
    way: Moves
    after: tuple[int, int] = (0, 0)
    """Copying nodes, and all nodes, that stay after the value."""

    @property
    def cost(self) -> tuple[int, int]:
        """Nodes that copy, then all nodes."""
        return self.after[0] + (self.way.perm is not None), self.after[1] + self.way.count


@dataclass(frozen=True)
class Lead:
    """The leading axes of an operand, and how they part into batch and heads."""

    sizes: tuple[Size, ...]
    batch: Size
    heads: int


class Traces:
    """Traces values back, each once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._found: dict[ir.Value, list[Station]] = {}

    def back(self, end: ir.Value) -> list[Station]:
        """Return the values that `end` is a rearrangement of, `end` first."""
        if end not in self._found:
            self._found[end] = trace_back(self._site, end)
        return self._found[end]

    def plain(self, end: ir.Value) -> list[Station]:
        """Return those that no factor separates from `end`."""
        return [station for station in self.back(end) if station.scale == 1]


def operands_of(
    stations: Sequence[Station], lead: Lead, form: str, *, swapped: bool = False
) -> dict[int, Operand]:
    """Return the cheapest source of an operand, by the number of heads that it has there."""
    best: dict[int, Operand] = {}
    for station in stations:
        layout = by_heads(station, lead, swapped=swapped)
        free_layout = None if layout is None else _without_fixed(layout, station)
        if free_layout is None:
            continue
        whole, piece = free_layout
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


def by_heads(station: Station, lead: Lead, *, swapped: bool) -> Layout | None:
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


def result_of(
    site: Site, value: ir.Value, lead: Lead, form: str, *, is_value_lhs: bool = False
) -> Result | None:
    """Return what the op's output replaces most cheaply: `value`, or what is made of it alone."""
    shape = site.shape(value)
    if shape is None or 0 in shape:
        return None
    four = Layout.of(shape).reshaped((lead.batch, lead.heads, *shape[-2:]))
    if four is None:
        return None
    batch, heads, rows, columns = four.result
    if is_value_lhs:
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

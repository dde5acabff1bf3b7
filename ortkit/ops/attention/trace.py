"""Following a value through what only moves, repeats, chooses or scales its elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.analysis.axes import Factor, Group, Layout, perm_of
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.graph.symbolic.dims import Size, product
from ortkit.rewrite.site import Site

#: Nodes followed from one value: projections to products are seldom ten apart.
LONGEST = 24


@dataclass(frozen=True)
class Fixed:
    """The choice of element `index` along factors of the source."""

    group: Group
    index: int


@dataclass(frozen=True)
class Station:
    """A value that the end of a chain is made of."""

    value: ir.Value
    layout: Layout
    """From this value to the end; what is `fixed` is missing in the result."""
    scale: float = 1.0
    """The end is this times the value."""
    fixed: tuple[Fixed, ...] = ()
    before: tuple[int, int] = (0, 0)
    """Copying nodes, and all nodes, between the start of the chain and this value."""


@dataclass(frozen=True)
class Moved:
    """What a chain did so far."""

    layout: Layout
    fixed: tuple[Fixed, ...] = ()


def trace_back(site: Site, end: ir.Value) -> list[Station]:
    """Return the values that `end` is a rearrangement of, `end` first; empty without a rank."""
    stations: list[Station] = []
    nodes: list[tuple[ir.Node, ir.Value]] = []
    scale = 1.0
    for value in _chain(site, end):
        if stations or value is not end:
            factor = scalar_factor(site, nodes[0][0])
            scale *= 1.0 if factor is None else factor
        shape = site.shape(value)
        moved = None if shape is None or 0 in shape else _follow(site, shape, nodes)
        if moved is None:
            break
        stations.append(Station(value, moved.layout, scale, moved.fixed))
        source = value.producer()
        if source is not None:
            nodes.insert(0, (source, value))
    copies = 0
    for index in range(len(stations) - 2, -1, -1):
        node = stations[index].value.producer()
        copies += node is not None and node.op_type not in RESHAPES
        before = copies, len(stations) - 1 - index
        stations[index] = replace(stations[index], before=before)
    return stations


def trace_on(site: Site, start: ir.Value, layout: Layout) -> list[Station]:
    """Return `start` and the values that rearrange it, each read by the next one alone.

    Args:
        site: Where to look from.
        start: The first station.
        layout: How `start` is made of something else; the stations' layouts go on from there.
    """
    stations = [Station(start, layout)]
    while len(stations) < LONGEST:
        last = stations[-1]
        if not site.only_use(last.value):
            break
        node, index = next(iter(last.value.uses()))
        if index != 0 or node.domain != "" or node.op_type not in MOVES:
            break
        if node.graph is not site.node.graph:
            break
        moved = _step(site, node, node.outputs[0], Moved(last.layout))
        if moved is None or moved.fixed or moved.layout.repeated:
            break
        stations.append(Station(node.outputs[0], moved.layout))
    return stations


def scalar_factor(site: Site, node: ir.Node) -> float | None:
    """Return the number that `node` multiplies its varying input with, None if it does not."""
    if node.domain != "" or node.op_type not in ("Mul", "Div", "Neg"):
        return None
    if node.op_type == "Neg":
        return -1.0
    for index in (1, 0):
        number = site.scalar(node.inputs[index])
        if number is None or site.scope.is_constant(node.inputs[1 - index]):
            continue
        if site.rank(node.inputs[1 - index]) != site.rank(node.outputs[0]):
            return None
        if node.op_type == "Mul":
            return float(number)
        return 1.0 / float(number) if index == 1 and number else None
    return None


def _chain(site: Site, end: ir.Value) -> Iterator[ir.Value]:
    """Yield `end` and the values before it, each moved or scaled to make the one before."""
    value: ir.Value | None = end
    for _ in range(LONGEST):
        if value is None:
            return
        yield value
        node = value.producer()
        if node is None or node.domain != "" or node.graph is not site.node.graph:
            return
        if node.op_type not in MOVES and scalar_factor(site, node) is None:
            return
        is_second = node.op_type == "Mul" and site.scalar(node.inputs[0]) is not None
        value = node.inputs[1 if is_second else 0]


def _follow(
    site: Site, shape: Sequence[Size], nodes: list[tuple[ir.Node, ir.Value]]
) -> Moved | None:
    """Return what `nodes`, first to last, do to a value of this shape."""
    moved: Moved | None = Moved(Layout.of(shape))
    for node, value in nodes:
        if node.op_type in MOVES and moved is not None:
            moved = _step(site, node, value, moved)
    return moved


def _step(site: Site, node: ir.Node, value: ir.Value, moved: Moved) -> Moved | None:
    """Go on through `node`, which makes `value`; choices made before stay what they are."""
    there = Site(site.scope, node, site.pass_name)
    after = MOVES[node.op_type](there, value, moved.layout)
    if after is None:
        return None
    if moved.fixed and set(_all(after.layout.source)) != set(_all(moved.layout.source)):
        # A factor was parted after one had been chosen: what was chosen is still whole.
        kept = set(_all(after.layout.source))
        if any(factor not in kept for fixed in moved.fixed for factor in fixed.group):
            return None
    return replace(after, fixed=(*moved.fixed, *after.fixed))


def _all(groups: tuple[Group, ...]) -> Iterator[Factor]:
    for group in groups:
        yield from group


def _with(layout: Layout, axis: int, *groups: Group) -> Layout:
    """Return `layout` with the group of one axis of the result replaced."""
    result = (*layout.result[:axis], *groups, *layout.result[axis + 1 :])
    return replace(layout, result=result)


def _transpose(site: Site, _value: ir.Value, layout: Layout) -> Moved | None:
    perm = perm_of(site.node, len(layout.result))
    return None if perm is None else Moved(layout.permuted(perm))


def _reshape(site: Site, value: ir.Value, layout: Layout) -> Moved | None:
    shape = site.shape(value)
    made = None if shape is None or 0 in shape else layout.reshaped(shape)
    return None if made is None else Moved(made)


def _expand(site: Site, value: ir.Value, layout: Layout) -> Moved | None:
    shape = site.shape(value)
    made = None if shape is None or 0 in shape else layout.expanded(shape)
    return None if made is None else Moved(made)


def _tile(site: Site, _value: ir.Value, layout: Layout) -> Moved | None:
    array = site.array(site.input(1), 16)
    if array is None or array.size != len(layout.result) or (array < 1).any():
        return None
    for axis, count in enumerate(array.tolist()):
        if count > 1:
            # The whole axis again and again: the repetition is the outer factor.
            layout = _with(layout, axis, (Factor(count), *layout.result[axis]))
    return Moved(layout)


def _gather(site: Site, _value: ir.Value, layout: Layout) -> Moved | None:
    array = site.array(site.input(1), 4096)
    if array is None:
        return None
    axis = site.int("axis", 0) % len(layout.result)
    group = layout.result[axis]
    if array.size == 1:
        chosen = Fixed(group, int(array.reshape(-1)[0]))
        return Moved(_with(layout, axis, *((),) * array.ndim), (chosen,))
    total = product(factor.size for factor in group)
    if array.ndim != 1 or not isinstance(total, int) or array.size % total:
        return None
    times = array.size // total
    if array.tolist() != [index for index in range(total) for _ in range(times)]:
        return None
    return Moved(_with(layout, axis, (*group, Factor(times)) if times > 1 else group))


def _split(site: Site, value: ir.Value, layout: Layout) -> Moved | None:
    """Read a Split into pieces of one element as a choice."""
    axis = site.int("axis", 0) % len(layout.result)
    start: int = 0
    for output in site.node.outputs:
        shape = site.shape(output)
        size = None if shape is None else shape[axis]
        if output is value:
            return _choose(layout, axis, start) if size == 1 else None
        if not isinstance(size, int):
            return None
        start += size
    return None


def _slice(site: Site, value: ir.Value, layout: Layout) -> Moved | None:
    """Read a Slice that keeps one element of an axis as a choice."""
    starts, axes, steps = (site.array(site.input(index), 1) for index in (1, 3, 4))
    shape, source = site.shape(value), site.shape(site.input(0))
    if starts is None or axes is None or shape is None or source is None:
        return None
    if steps is not None and int(steps.reshape(-1)[0]) != 1:
        return None
    axis, start = int(axes.reshape(-1)[0]) % len(shape), int(starts.reshape(-1)[0])
    size = source[axis]
    if shape[axis] != 1 or not isinstance(size, int):
        return None
    return _choose(layout, axis, max(start + size, 0) if start < 0 else start)


def _choose(layout: Layout, axis: int, index: int) -> Moved:
    return Moved(_with(layout, axis, ()), (Fixed(layout.result[axis], index),))


#: What only moves elements: (node, its output, layout of its input) -> layout of its output.
MOVES: Mapping[str, Callable[[Site, ir.Value, Layout], Moved | None]] = {
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Identity": lambda _site, _value, layout: Moved(layout),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}

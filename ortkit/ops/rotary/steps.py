"""How one node moves channels about: slices, concatenations, transpositions, reshapes.

A value is looked at under labels, one for each axis: `CHANNEL` where its elements along the axis
are distinguished, a number where the axis runs along that axis of the result under consideration,
None where it has length one and is broadcast, any other text where it is an axis of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import perm_of
from ortkit.graph.symbolic.dims import Size, sole_atom
from ortkit.rewrite.site import Site

Label: TypeAlias = int | str | None
Labels: TypeAlias = tuple[Label, ...]
CHANNEL = "c"
#: Positions of channels, at most.
NUMBERS_LIMIT = 4096


@dataclass(frozen=True)
class Step:
    """What a node's output is made of, channel for channel."""

    inputs: tuple[tuple[ir.Value, Labels], ...]
    combine: Callable[[list[np.ndarray]], np.ndarray]
    """From one array over the channel axes of each input to that of the output."""


Rule: TypeAlias = Callable[[Site, ir.Value, Labels], Step | None]


def structural_step(site: Site, value: ir.Value, labels: Labels) -> Step | None:
    """Return how the producer of `value` moves channels; None if it does anything else."""
    node = value.producer()
    if node is None or node.domain != "" or (rule := RULES.get(node.op_type)) is None:
        return None
    return rule(Site(site.scope, node, site.pass_name), value, labels)


def operand_labels(site: Site, value: ir.Value, result: ir.Value, labels: Labels) -> Labels | None:
    """Return the labels of `value`, which is broadcast to `result`."""
    shape, full = site.shape(value), site.shape(result)
    if shape is None or full is None or len(shape) > len(full):
        return None
    offset = len(full) - len(shape)
    found = [_fitted(size, full[offset + i], labels[offset + i]) for i, size in enumerate(shape)]
    return None if "" in found else tuple(found)


def _fitted(size: Size, full: Size, label: Label) -> Label:
    """Return the label of an axis that is broadcast to `full`; "" where it is not known."""
    if size == full or _is_capped(size, full):
        return label
    if size == 1:
        return CHANNEL if label == CHANNEL else None
    return "" if label in (CHANNEL, None) else loose(label)


def _is_capped(size: Size, full: Size) -> bool:
    """Say whether the size is `full` up to a number: this many rows a table has.

    Where it is not `full`, and fits `full` all the same, it is 1, and then `full` is 1, too.
    """
    atom = sole_atom(size)
    if atom is None or atom.kind != "min" or full not in atom.args:
        return False
    return all(arg == full or (isinstance(arg, int) and arg > 1) for arg in atom.args)


def loose(label: Label) -> str:
    """Return the label of an axis that has the length of axis `label` or length one."""
    text = str(label)
    return text if text.startswith("~") else f"~{text}"


def channel_axes(labels: Labels) -> list[int]:
    """Return the axes whose elements are distinguished."""
    return [axis for axis, label in enumerate(labels) if label == CHANNEL]


def channel_shape(site: Site, value: ir.Value, labels: Labels) -> tuple[int, ...] | None:
    """Return the lengths of the channel axes, None where one is not known."""
    shape = site.shape(value)
    if shape is None or len(shape) != len(labels):
        return None
    sizes = [shape[axis] for axis in channel_axes(labels)]
    return tuple(size for size in sizes if isinstance(size, int)) if _all_int(sizes) else None


def _all_int(sizes: Sequence[Size]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _position(labels: Labels, axis: int) -> int:
    """Return which channel axis `axis` is."""
    return channel_axes(labels).index(axis)


def _axis(site: Site, labels: Labels, default: int = 0) -> int | None:
    """Return the attribute axis, counted from the first one; None where there is no such axis."""
    axis, rank = site.int("axis", default), len(labels)
    return axis % rank if -rank <= axis < rank else None


def numbers(site: Site, value: ir.Value | None) -> list[int] | None:
    """Return a small tensor of integers that are the same in every run."""
    array = site.array(value, NUMBERS_LIMIT)
    if array is not None:
        return [int(number) for number in array.reshape(-1)]
    found = site.contents(value)
    return (
        None
        if found is None or not _all_int(found)
        else [size for size in found if isinstance(size, int)]
    )


def slice_ranges(site: Site, rank: int) -> dict[int, slice] | None:
    """Return what a Slice keeps, axis by axis; None if that is not constant."""
    starts, ends = numbers(site, site.input(1)), numbers(site, site.input(2))
    if starts is None or ends is None:
        return None
    axes = numbers(site, site.input(3)) if site.input(3) is not None else list(range(len(starts)))
    steps = numbers(site, site.input(4)) if site.input(4) is not None else [1] * len(starts)
    if axes is None or steps is None or 0 in steps:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return {
        axis % rank: slice(start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def split_range(site: Site, value: ir.Value, axis: int) -> slice | None:
    """Return which part of the input the output `value` of a Split is."""
    start = 0
    for output in site.node.outputs:
        shape = site.shape(output)
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            return None
        if output is value:
            return slice(start, start + size)
        start += size
    return None


# ---- rules -----------------------------------------------------------------------------


def _identity(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source = site.input(0)
    return None if source is None else Step(((source, labels),), lambda arrays: arrays[0])


def _slice(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, ranges = site.input(0), slice_ranges(site, len(labels))
    if source is None or ranges is None or any(labels[axis] != CHANNEL for axis in ranges):
        return None
    index = tuple(ranges.get(axis, slice(None)) for axis in channel_axes(labels))
    return Step(((source, labels),), lambda arrays: arrays[0][index])


def _split(site: Site, value: ir.Value, labels: Labels) -> Step | None:
    source, axis = site.input(0), _axis(site, labels)
    if source is None or axis is None or labels[axis] != CHANNEL:
        return None
    kept = split_range(site, value, axis)
    if kept is None:
        return None
    index = (*[slice(None)] * _position(labels, axis), kept)
    return Step(((source, labels),), lambda arrays: arrays[0][index])


def _gather(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, rank = site.input(0), site.rank(site.input(0))
    index, index_rank = numbers(site, site.input(1)), site.rank(site.input(1))
    if source is None or rank is None or index is None or index_rank not in (0, 1):
        return None
    axis = site.int("axis", 0) % rank
    if index_rank and labels[axis] != CHANNEL:
        return None
    below = (*labels[:axis], CHANNEL, *labels[axis + index_rank :])
    chosen = index if index_rank else index[0]
    position = _position(below, axis)
    return Step(((source, below),), lambda arrays: arrays[0].take(chosen, axis=position))


def _concat(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    axis = _axis(site, labels)
    sources = [source for source in site.node.inputs if source is not None]
    if axis is None or labels[axis] != CHANNEL:
        return None
    position = _position(labels, axis)
    return Step(
        tuple((source, labels) for source in sources),
        lambda arrays: np.concatenate(arrays, axis=position),
    )


def _transpose(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, perm = site.input(0), perm_of(site.node, len(labels))
    if source is None or perm is None:
        return None
    below = tuple(labels[perm.index(axis)] for axis in range(len(perm)))
    inner = channel_axes(below)
    order = [inner.index(perm[axis]) for axis in channel_axes(labels)]
    return Step(((source, below),), lambda arrays: arrays[0].transpose(order))


def _unsqueeze(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, axes = site.input(0), site.axes()
    if source is None or axes is None:
        return None
    added = {axis % len(labels) for axis in axes}
    below = tuple(label for axis, label in enumerate(labels) if axis not in added)
    dims = [i for i, axis in enumerate(channel_axes(labels)) if axis in added]
    return Step(((source, below),), lambda arrays: np.expand_dims(arrays[0], tuple(dims)))


def _squeeze(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, axes, shape = site.input(0), site.axes(), site.shape(site.input(0))
    if source is None or axes is None or shape is None:
        return None
    removed = {axis % len(shape) for axis in axes}
    if any(shape[axis] != 1 for axis in removed):
        return None
    rest = iter(labels)
    below = tuple(CHANNEL if axis in removed else next(rest) for axis in range(len(shape)))
    dims = [i for i, axis in enumerate(channel_axes(below)) if axis in removed]
    return Step(((source, below),), lambda arrays: np.squeeze(arrays[0], tuple(dims)))


def _reshape(site: Site, value: ir.Value, labels: Labels) -> Step | None:
    source = site.input(0)
    inner, outer, block = site.shape(source), site.shape(value), channel_axes(labels)
    if source is None or inner is None or outer is None or not block:
        return None
    first, last = block[0], block[-1] + 1
    if len(block) != last - first or not _all_int(outer[first:last]):
        return None
    sizes = tuple(size for size in outer[first:last] if isinstance(size, int))
    before = _matched(inner, outer[:first], labels[:first])
    after = _matched(inner[::-1], outer[last:][::-1], labels[last:][::-1])
    if before is None or after is None or len(before) + len(after) > len(inner):
        return None
    middle = inner[len(before) : len(inner) - len(after)]
    if not _all_int(middle) or _count(middle) != _count(sizes):
        return None
    below = (*before, *[CHANNEL] * len(middle), *reversed(after))
    return Step(((source, below),), lambda arrays: arrays[0].reshape(sizes))


def _matched(inner: Sequence[Size], outer: Sequence[Size], labels: Labels) -> list[Label] | None:
    """Return labels for the leading axes of `inner` that are those of `outer`, but for ones."""
    if tuple(inner[: len(outer)]) == tuple(outer):
        return list(labels)
    found: list[Label] = []
    wanted = [(size, label) for size, label in zip(outer, labels, strict=True) if size != 1]
    for size in inner:
        if not wanted:
            break
        if size == wanted[0][0]:
            found.append(wanted.pop(0)[1])
        elif size == 1:
            found.append(None)
        else:
            return None
    return None if wanted else found


def _count(sizes: Sequence[Size]) -> int:
    count = 1
    for size in sizes:
        assert isinstance(size, int)
        count *= size
    return count


def _expand(site: Site, value: ir.Value, labels: Labels) -> Step | None:
    source, shape = site.input(0), channel_shape(site, value, labels)
    below = None if source is None else operand_labels(site, source, value, labels)
    if source is None or below is None or shape is None:
        return None
    return Step(((source, below),), lambda arrays: np.broadcast_to(arrays[0], shape))


def _tile(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    source, repeats, shape = (
        site.input(0),
        numbers(site, site.input(1)),
        site.shape(site.input(0)),
    )
    if source is None or repeats is None or shape is None or len(repeats) != len(labels):
        return None
    below: list[Label] = []
    for label, count, size in zip(labels, repeats, shape, strict=True):
        if label != CHANNEL and count != 1 and size != 1:
            return None
        below.append(label if label == CHANNEL or count == 1 else None)
    counts = tuple(repeats[axis] for axis in channel_axes(labels))
    return Step(((source, tuple(below)),), lambda arrays: np.tile(arrays[0], counts))


def _scatter_nd(site: Site, _value: ir.Value, labels: Labels) -> Step | None:
    """Read the assignment of whole rows along the first axis."""
    data, updates, shape = site.input(0), site.input(2), site.shape(site.input(1))
    rows = numbers(site, site.input(1))
    if data is None or updates is None or rows is None or shape is None:
        return None
    if len(shape) != 2 or shape[1] != 1 or labels[0] != CHANNEL:
        return None
    if len(set(rows)) < len(rows) or min(rows, default=0) < 0:
        return None
    if site.string("reduction", "none") != "none":
        return None

    def assigned(arrays: list[np.ndarray]) -> np.ndarray:
        result = np.array(arrays[0])
        result[rows] = arrays[1]
        return result

    return Step(((data, labels), (updates, labels)), assigned)


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

"""Where axes go through Reshape, Transpose and their like: axes as ordered factors.

An axis of a value is a product of factors, outermost first, so that the elements of the value lie
in the order of all its factors. A Reshape only regroups the factors, and parts one where an axis
ends inside of it. A Transpose moves whole groups; an Expand adds factors which are not of the
source. What a chain of them does is then a permutation of factors, however it is written:

    x                               (b) (s) (h d)       [b, s, h * d]
    Reshape(x, [0, 0, h, d])        (b) (s) (h) (d)
    Transpose<perm = [0, 2, 1, 3]>  (b) (h) (s) (d)
    Reshape([-1, s, d])             (b h) (s) (d)

Sizes may be symbolic (`ortkit.graph.symbolic.dims`); what cannot be proved is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.shapes.reshape import RESHAPES, reshape_target
from ortkit.graph.symbolic.dims import Size, divide_exactly, floor_divide, product

#: Ops that `track` follows, all of the default domain.
LAYOUT_OPS = (*RESHAPES, "Transpose", "Expand", "Identity")


@dataclass(frozen=True, eq=False)
class Factor:
    """A part of an axis; two factors are the same if they are the same object."""

    size: Size


Group: TypeAlias = tuple[Factor, ...]
"""The factors of one axis, outermost first; none for an axis of length one."""


@dataclass(frozen=True)
class Layout:
    """A value and what it was made from, as groups of the same factors."""

    source: tuple[Group, ...]
    result: tuple[Group, ...]

    @staticmethod
    def of(shape: Sequence[Size]) -> Layout:
        """Return the layout of a value itself: one factor for each axis that is not one."""
        groups = tuple(() if size == 1 else (Factor(size),) for size in shape)
        return Layout(groups, groups)

    @property
    def source_shape(self) -> tuple[Size, ...]:
        """The shape of the source."""
        return _shape(self.source)

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of the result."""
        return _shape(self.result)

    @property
    def repeated(self) -> tuple[Factor, ...]:
        """The factors of the result along which the source is repeated."""
        own = set(_flat(self.source))
        return tuple(factor for factor in _flat(self.result) if factor not in own)

    def permuted(self, perm: Sequence[int]) -> Layout:
        """Return the layout behind a Transpose."""
        return replace(self, result=tuple(self.result[axis] for axis in perm))

    def reshaped(self, shape: Sequence[Size]) -> Layout | None:
        """Return the layout behind a Reshape to `shape`; None where that cannot be proved.

        A factor that an axis ends inside of is parted, in the source as well. Where [n // k, k]
        is made of [n], k divides n in every run: the Reshape fails in others.
        """
        pending, groups = list(_flat(self.result)), list[Group]()
        parted: dict[Factor, Group] = {}
        for size, following in zip(shape, (*shape, 1)[1:], strict=True):
            group: list[Factor] = []
            left = size
            while left != 1:
                if not pending:
                    return None
                factor = pending.pop(0)
                if (rest := divide_exactly(left, factor.size)) is not None:
                    left = rest
                elif (inner := divide_exactly(factor.size, left)) is not None:
                    outer = Factor(left)
                    pending.insert(0, Factor(inner))
                    parted[factor] = (outer, pending[0])
                    factor, left = outer, 1
                elif isinstance(following, int) and following > 1 and not group:
                    if left != floor_divide(factor.size, following):
                        return None
                    outer = Factor(left)
                    pending.insert(0, Factor(following))
                    parted[factor] = (outer, pending[0])
                    factor, left = outer, 1
                else:
                    return None
                group.append(factor)
            groups.append(tuple(group))
        if pending:
            return None
        return Layout(_parted(self.source, parted), tuple(groups))

    def expanded(self, shape: Sequence[Size]) -> Layout | None:
        """Return the layout behind an Expand to `shape`; None where that cannot be proved."""
        if len(shape) < len(self.result):
            return None
        groups = [()] * (len(shape) - len(self.result)) + list(self.result)
        for axis, size in enumerate(shape):
            if size == 1 and not groups[axis]:
                continue
            if not groups[axis]:
                groups[axis] = (Factor(size),)
            elif _size(groups[axis]) != size:
                return None
        return replace(self, result=tuple(groups))


@dataclass(frozen=True)
class Moves:
    """At most Reshape to `before`, Transpose by `perm`, Reshape to `after`; None: not needed."""

    before: tuple[Size, ...] | None = None
    perm: tuple[int, ...] | None = None
    after: tuple[Size, ...] | None = None

    @property
    def count(self) -> int:
        """How many nodes that takes."""
        return sum(step is not None for step in (self.before, self.perm, self.after))


def track(shapes: Shapes, nodes: Iterable[ir.Node], start: Layout | None = None) -> Layout | None:
    """Return what a chain of layout ops does, each reading the result of the one before.

    Args:
        shapes: What is known of the values.
        nodes: Ops out of `LAYOUT_OPS`, first to last.
        start: The layout of what the first one reads; its own axes by default.

    Returns:
        None for other ops, and where a shape is unknown or does not follow from factors.
    """
    layout = start
    for node in nodes:
        value = node.inputs[0] if node.inputs else None
        if layout is None:
            before = None if value is None else shapes.shape(value)
            layout = None if before is None or 0 in before else Layout.of(before)
        layout = None if layout is None else _step(shapes, node, layout)
        if layout is None:
            return None
    return layout


def _step(shapes: Shapes, node: ir.Node, layout: Layout) -> Layout | None:
    if node.domain != "" or node.op_type not in LAYOUT_OPS:
        return None
    if node.op_type == "Identity":
        return layout
    if node.op_type == "Transpose":
        perm = perm_of(node, len(layout.result))
        return None if perm is None else layout.permuted(perm)
    after = shapes.shape(node.outputs[0])
    if after is None or 0 in after:
        return None
    return layout.expanded(after) if node.op_type == "Expand" else layout.reshaped(after)


def perm_of(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose of a value with `rank` axes, None if it is unclear."""
    attribute = node.attributes.get("perm")
    if attribute is None:
        return tuple(reversed(range(rank)))
    if attribute.is_ref():
        return None
    perm = tuple(attribute.as_ints())
    return perm if sorted(perm) == list(range(rank)) else None


def moves(layout: Layout) -> Iterator[Moves]:
    """Yield ways to make the result of the source, fewest nodes first; none if it is repeated.

    Those with as many nodes differ in the shapes that they go through.
    """
    before, after = _flat(layout.source), _flat(layout.result)
    if len(before) != len(after) or set(before) != set(after):
        return
    blocks = _blocks(before, after)
    if len(blocks) <= 1:
        same = layout.source_shape == layout.shape
        yield Moves() if same else Moves(after=layout.shape)
        return
    # Of two as short the one that parts axes first: heads then look alike everywhere.
    found = [*_without_last(layout), *_without_first(layout)]
    found.append(_through(layout, blocks))
    found.append(_through(layout, [(factor,) for factor in after]))
    yield from sorted(dict.fromkeys(found), key=lambda one: one.count)


def targets(shape: Sequence[Size], way: Moves) -> tuple[tuple[int, ...] | None, ...] | None:
    """Return the constant targets of the first and the last Reshape of `way` on this shape.

    A target is None where that Reshape is not needed; all is None where one is not constant.
    """
    first = second = None
    current = tuple(shape)
    if way.before is not None:
        first = reshape_target(current, way.before)
        if first is None:
            return None
        current = way.before
    if way.perm is not None:
        current = tuple(current[axis] for axis in way.perm)
    if way.after is not None:
        second = reshape_target(current, way.after)
        if second is None:
            return None
    return first, second


def _blocks(before: Sequence[Factor], after: Sequence[Factor]) -> list[Group]:
    """Return the runs of factors, in the order of `after`, that stay together from `before`."""
    following = dict(pairwise(before))
    blocks: list[list[Factor]] = []
    for factor in after:
        if blocks and following.get(blocks[-1][-1]) is factor:
            blocks[-1].append(factor)
        else:
            blocks.append([factor])
    return [tuple(block) for block in blocks]


def _through(layout: Layout, blocks: Sequence[Group]) -> Moves:
    """Return the way that makes one axis of each of these blocks, and moves these."""
    position = {factor: index for index, factor in enumerate(_flat(layout.source))}
    order = sorted(blocks, key=lambda block: position[block[0]])
    perm = tuple(order.index(block) for block in blocks)
    between, moved = _shape(order), _shape(blocks)
    before = None if between == layout.source_shape else between
    return Moves(before, perm, None if moved == layout.shape else layout.shape)


def _without_first(layout: Layout) -> Iterator[Moves]:
    """Yield the way that moves the axes of the source as they are, if there is one."""
    order = _order(layout.source, _flat(layout.result))
    if order is None:
        return
    ones = [axis for axis, group in enumerate(layout.source) if not group]
    if len(ones) == sum(not group for group in layout.result):
        # Axes of length one go where the result has them.
        rest, whole = iter(ones), iter(order)
        perm = [next(whole, -1) if group else next(rest) for group in layout.result]
        if -1 not in perm and next(whole, None) is None:
            moved = tuple(layout.source_shape[axis] for axis in perm)
            if moved == layout.shape:
                yield Moves(perm=tuple(perm))
    for perm in _with_ones(order, ones):
        yield Moves(perm=tuple(perm), after=layout.shape)


def _without_last(layout: Layout) -> Iterator[Moves]:
    """Yield the way that moves the axes of the result, made first, if there is one."""
    order = _order(layout.result, _flat(layout.source))
    if order is None:
        return
    ones = [axis for axis, group in enumerate(layout.result) if not group]
    for made in _with_ones(order, ones):
        between = tuple(layout.shape[axis] for axis in made)
        if between != layout.source_shape:
            yield Moves(between, tuple(made.index(axis) for axis in range(len(made))))


def _with_ones(order: Sequence[int], ones: Sequence[int]) -> Iterator[list[int]]:
    """Yield an order of axes with those of length one at their own places, and after them."""
    own = list(order)
    for axis in ones:
        own.insert(axis, axis)
    yield own
    yield [*order, *ones]


def _order(groups: Sequence[Group], factors: Sequence[Factor]) -> list[int] | None:
    """Return the order of these groups in `factors`, None where one is not in one piece."""
    owner = {factor: axis for axis, group in enumerate(groups) for factor in group}
    order = list(dict.fromkeys(owner[factor] for factor in factors))
    pieces = [factor for axis in order for factor in groups[axis]]
    return order if pieces == list(factors) else None


def _parted(groups: Sequence[Group], parted: dict[Factor, Group]) -> tuple[Group, ...]:
    def parts(factor: Factor) -> Group:
        inner = parted.get(factor)
        return (factor,) if inner is None else tuple(p for item in inner for p in parts(item))

    return tuple(tuple(part for factor in group for part in parts(factor)) for group in groups)


def _flat(groups: Iterable[Group]) -> list[Factor]:
    return [factor for group in groups for factor in group]


def _size(group: Group) -> Size:
    return product(factor.size for factor in group)


def _shape(groups: Iterable[Group]) -> tuple[Size, ...]:
    return tuple(_size(group) for group in groups)

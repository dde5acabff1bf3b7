"""fuse-rotary: rotary position embedding, however it is written, becomes RotaryEmbedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import onnx_ir as ir

from ortkit.ops.rotary.channels import CHANNEL_LIMIT, Channels, LabeledValue
from ortkit.ops.rotary.emit import Angles, angles_for, emit
from ortkit.ops.rotary.layout import Layout
from ortkit.ops.rotary.match import Rotation, Sum, as_sums, is_product, match_rotation
from ortkit.ops.rotary.steps import CHANNEL, RULES
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Nodes between the result and the products; two halves, each sliced, stacked and joined.
NEAR = 40
#: Without one of these each channel stays where it is.
MOVES = frozenset({"Concat", "Gather", "ScatterND"})


@dataclass(frozen=True)
class FuseRotary(NodePass):
    """Recognize the rotation of channel pairs by what each channel of the result is.

    Before:
        y = Add(Mul(x, cos), Mul(Concat(Neg(x[h:]), x[:h]), sin))
    After:
        y = RotaryEmbedding(x, cos[:h], sin[:h])

    Channels are followed backward through slices, concatenations, transpositions and reshapes, so
    that split-half and interleaved pairs, parts that are passed through, and any order of the
    arithmetic are one case. Where the halves of a table are equal, half of it is computed. A value
    [P, Q, H, D] that is a view of a 3-D value is rotated there, before the reshape.

    Skips:
        * Cosines, or sines, that are not the same for the two channels of a pair.
        * Angles that vary along more than two axes, or along heads.
        * Element types that have no kernel; unknown numbers of channels.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021);
        ONNX RotaryEmbedding-23.
    """

    name: ClassVar[str] = "fuse-rotary"
    ops: ClassVar[Sequence[str]] = ("Add", "Sub", "Sum", "Concat", "Reshape", "Transpose")

    def rewrite(self, site: Site) -> None:
        if not _is_end(site):
            return
        for node in (*_enclosing(site), site.node):
            end = Site(site.scope, node, self.name)
            if _is_end(end) and _rewritten(end):
                return


def _is_end(site: Site) -> bool:
    """Say whether the node may complete a rotation; cheap, for most nodes do not."""
    shape = site.shape(site.output)
    if not shape or not isinstance(shape[-1], int) or not 2 <= shape[-1] <= CHANNEL_LIMIT:
        return False
    axis = site.int("axis", 0)
    if site.node.op_type == "Concat" and axis not in (-1, len(shape) - 1):
        return False
    if site.node.op_type == "Reshape" and site.producer(site.input(0), "Concat") is None:
        return False
    if site.node.op_type == "Transpose" and site.producer(site.input(0), "ScatterND") is None:
        return False
    return _turns_something(site.node)


def _turns_something(end: ir.Node) -> bool:
    """Say whether products of one value are summed, and its channels change places."""
    near = _behind([end], (*RULES, "Add", "Sub", "Sum", "Neg"))
    met = set[ir.Value]()
    is_shared, is_moved = False, near.moves or end.op_type in MOVES
    for product in near.products:
        behind = _behind([product], (*RULES, "Neg", "Mul"))
        is_shared = is_shared or bool(met & behind.values)
        is_moved = is_moved or behind.moves
        met |= behind.values
    return is_shared and is_moved


@dataclass(frozen=True)
class _Behind:
    products: Sequence[ir.Node]
    """The nearest ones."""
    values: frozenset[ir.Value]
    """All values up to nodes of other kinds."""
    moves: bool
    """Whether a node among them moves channels to other places."""


def _behind(ends: Sequence[ir.Node], kinds: Sequence[str]) -> _Behind:
    """Return what lies after `ends`, as far as nodes of these kinds go."""
    products: list[ir.Node] = []
    values = set[ir.Value]()
    moves = False
    pending = list(ends)
    while pending and len(values) < NEAR:
        for value in pending.pop().inputs:
            if value is None or value in values or value.const_value is not None:
                continue
            values.add(value)
            source = value.producer()
            if source is None or source.domain != "":
                continue
            if source.op_type == "Mul":
                products.append(source)
            if source.op_type in kinds:
                pending.append(source)
                moves = moves or source.op_type in MOVES
    return _Behind(products, frozenset(values), moves)


def _enclosing(site: Site) -> Iterator[ir.Node]:
    """Yield the nodes that may complete what the site's node is a part of, outermost first."""
    found: list[ir.Node] = []
    value = site.output
    for _ in range(4):
        if not site.only_use(value):
            break
        node = next(iter(value.consumers()))
        if node.domain != "" or node.op_type not in ("Concat", "Reshape", "Unsqueeze"):
            break
        value = node.outputs[0]
        if node.op_type != "Unsqueeze":
            found.append(node)
    yield from reversed(found)


def _rewritten(site: Site) -> bool:
    """Rewrite at the site's node if it completes a rotation; say whether that is done."""
    shape = site.shape(site.output)
    assert shape is not None
    outer = len(shape) - 1
    channels = Channels(site)
    terms = channels.sums(site.output, (*range(outer), CHANNEL))
    if terms is None:
        return False
    sums, candidates = as_sums(terms), channels.nearest
    for first, last, operands in _ranges(site, sums):
        found = match_rotation(sums[first:last], candidates, outer)
        if found is None:
            continue
        plan = found if isinstance(found, str) else _plan(site, candidates, found)
        if isinstance(plan, str) or isinstance(found, str):
            site.miss(str(plan))
            continue
        if not site.claim("interleaved" if found.interleaved else "split-half"):
            return False
        made = emit(site, found, *plan)
        if operands is not None:
            rest = site.node.inputs
            joined = [*rest[: operands.start], made, *rest[operands.stop :]]
            made = site.op("Concat", joined, {"axis": -1})
        site.replace(made)
        return True
    return False


def _ranges(site: Site, sums: Sequence[Sum]) -> Iterator[tuple[int, int, slice | None]]:
    """Yield ranges of channels that may be rotated, with the operands of a Concat they are."""
    yield 0, len(sums), None
    if site.node.op_type != "Concat" or len(site.node.inputs) < 3:
        return
    bounds = [0]
    for value in site.node.inputs:
        shape = site.shape(value)
        if not shape or not isinstance(shape[-1], int):
            return
        bounds.append(bounds[-1] + shape[-1])
    rotated = [
        i
        for i, (first, last) in enumerate(pairwise(bounds))
        if any(is_product(sum_) for sum_ in sums[first:last])
    ]
    if 2 <= len(rotated) < len(bounds) - 1 and rotated[-1] - rotated[0] == len(rotated) - 1:
        operands = slice(rotated[0], rotated[-1] + 1)
        yield bounds[operands.start], bounds[operands.stop], operands


def _plan(
    site: Site, candidates: Sequence[LabeledValue], found: Rotation
) -> tuple[Layout, Angles] | str:
    """Return how the rotation is written as one node, or why it cannot be."""
    dtype = site.dtype(site.output)
    if not site.has_kernel("RotaryEmbedding", dtype):
        return f"RotaryEmbedding has no kernel for {dtype}"
    if any(site.dtype(home.value) != dtype for home in found.homes):
        return "the rotated value is of another element type"
    shape = site.shape(site.output)
    assert shape is not None
    return angles_for(site, candidates, found, shape)

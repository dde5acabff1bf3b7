"""gather-tokens: one Gather for what moves the tokens of an image several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.reshape import RESHAPES, reshape_target
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: No exporter writes longer chains, and an index is a constant of the model.
_LONGEST, _MOST_TOKENS = 12, 1 << 18
_MOVES = ("Gather", "Transpose")


@dataclass(frozen=True)
class GatherTokens(NodePass):
    """Gather tokens once, where Gathers and Transposes move them one after the other.

    Before:
        r = Gather<axis = 2>(Gather<axis = 1>(x, up), left)          # x: [n, h, w, c]
        t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(Reshape(r, [n, h / p, p, w / q, q, c]))
    After:
        g = Gather<axis = 1>(Reshape(x, [n, h w, c]), places)
        t = Reshape(g, [n, h / p, w / q, p, q, c])

    Swin's blocks roll an image and cut it into windows, and do the reverse behind attention.

    Skips:
        * The first and the last axis: samples stay, and the channels of a token stay together.
        * Sizes in between that are not known; values in between that others read.
        * Transposes alone, which `simplify-transpose` merges.

    Source:
        The order of the elements; ONNX Gather-1 ... 13, Transpose-1 ... 25, Reshape-5 ... 25.
    """

    name: ClassVar[str] = "gather-tokens"
    ops: ClassVar[Sequence[str]] = _MOVES

    def rewrite(self, site: Site) -> None:
        chain = _chain(site)
        moving = [node.op_type for node in chain if node.op_type in _MOVES]
        if len(moving) < 2 or "Gather" not in moving:
            return
        source, positions = chain[0].inputs[0], _positions(site, chain)
        before, after = site.shape(source), site.shape(site.output)
        if positions is None or before is None or after is None:
            return
        count = int(np.prod(_static(before[1:-1]), dtype=np.int64))
        tokens, moved = (before[0], count, before[-1]), (before[0], positions.size, before[-1])
        targets = reshape_target(before, tokens), reshape_target(moved, after)
        if targets[0] is None or targets[1] is None:
            site.miss("a Reshape would have several symbolic sizes")
            return
        if site.claim("places"):
            x = site.op("Reshape", [source, site.constant(targets[0])])
            index = site.constant(np.ascontiguousarray(positions.reshape(-1)))
            x = site.op("Gather", [x, index], {"axis": 1})
            site.replace(site.op("Reshape", [x, site.constant(targets[1])]))


def _chain(site: Site) -> list[ir.Node]:
    """Return the nodes that only move tokens and end at this one, first one first."""
    chain: list[ir.Node] = []
    node: ir.Node | None = site.node
    while node is not None and len(chain) < _LONGEST and _positions(site, [node]) is not None:
        chain.insert(0, node)
        value = node.inputs[0]
        before = site.producer(value, *RESHAPES, *_MOVES)
        is_own = before is not None and before.graph is node.graph
        node = before if is_own and value is not None and site.only_use(value) else None
    return chain


def _positions(site: Site, chain: Sequence[ir.Node]) -> np.ndarray | None:
    """Return which token of the chain's source each one of its result is; None if not known."""
    shape = site.shape(chain[0].inputs[0])
    tokens = () if shape is None else _static(shape[1:-1])
    if not tokens or int(np.prod(tokens, dtype=np.int64)) > _MOST_TOKENS:
        return None
    positions: np.ndarray | None = np.arange(np.prod(tokens), dtype=np.int64).reshape(tokens)
    for node in chain:
        positions = None if positions is None else _moved(site, node, positions)
    return positions


def _moved(site: Site, node: ir.Node, positions: np.ndarray) -> np.ndarray | None:
    """Return the places after a node, which takes the first and the last axis as they are."""
    own = Site(site.scope, node, site.pass_name)
    before, after = own.shape(node.inputs[0]), own.shape(node.outputs[0])
    if before is None or after is None or len(before) != positions.ndim + 2:
        return None
    if node.op_type == "Transpose":
        perm = own.perm()
        if perm is None or perm[0] != 0 or perm[-1] != len(perm) - 1:
            return None
        return positions.transpose([axis - 1 for axis in perm[1:-1]])
    if node.op_type == "Gather":
        axis, index = own.int("axis", 0) % len(before), own.array(own.input(1), _MOST_TOKENS)
        if axis in (0, len(before) - 1) or index is None or index.ndim != 1:
            return None
        size = positions.shape[axis - 1]
        if index.size and not -size <= index.min() <= index.max() < size:
            return None
        return positions.take(index, axis - 1)
    tokens = _static(after[1:-1]) if len(after) > 2 else ()
    same = (before[0], before[-1]) == (after[0], after[-1])
    if not same or not tokens or int(np.prod(tokens, dtype=np.int64)) != positions.size:
        return None
    return positions.reshape(tokens)


def _static(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return sizes that are all numbers above 0, else none."""
    known = tuple(size for size in sizes if isinstance(size, int) and size > 0)
    return known if len(known) == len(sizes) else ()

"""simplify-transpose: the fewest nodes for a chain of Reshapes and Transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.axes import track
from ortkit.analysis.relayout import Relayout, relayout
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: No exporter writes longer ones; looking back stays linear in the graph.
LONGEST = 12


@dataclass(frozen=True)
class SimplifyTranspose(NodePass):
    """Do what a chain of Reshapes and Transposes does with as few nodes as that takes.

    Before:
        t = Reshape(x, [-1, s, d])                  # x: [b, h, s, d]
        u = Transpose<perm = [0, 2, 1]>(t);  y = Reshape(u, [b, h, d, s])
    After:
        y = Transpose<perm = [0, 1, 3, 2]>(x)

    Axes are followed as factors (`ortkit.analysis.axes`), so it does not matter how the chain is
    written. It becomes at most Reshape, Transpose, Reshape, and windows that are made and undone
    become nothing. A Transpose that moves nothing but axes of length one becomes a Reshape.

    Skips:
        * Axes that do not follow from factors of known sizes.
        * A way back with several symbolic sizes in one Reshape.
        * Where as many nodes would be needed, counting those that others read.

    Source:
        The order of the elements; ONNX Reshape-5 ... 25, Transpose-1 ... 25.
    """

    name: ClassVar[str] = "simplify-transpose"
    ops: ClassVar[Sequence[str]] = (*RESHAPES, "Transpose")

    def rewrite(self, site: Site) -> None:
        chain = _chain(site)
        if len(chain) < 2 or not any(node.op_type == "Transpose" for node in chain):
            return
        source, way = _best(site, chain)
        if source is None or way is None:
            return
        if way.moves.count == 0 and not site.can_replace(source):
            return
        if site.claim("axes"):
            site.replace(way.emit(site, source))


def _chain(site: Site) -> list[ir.Node]:
    """Return the layout ops that end at this node, first one first."""
    chain, node = [site.node], site.node
    while len(chain) < LONGEST:
        before = site.producer(node.inputs[0], *RESHAPES, "Transpose")
        if before is None or before.graph is not node.graph:
            break
        chain.insert(0, before)
        node = before
    return chain


def _best(site: Site, chain: Sequence[ir.Node]) -> tuple[ir.Value | None, Relayout | None]:
    """Return where to start in the chain and the way from there that saves most, if any does."""
    kept = [i for i, node in enumerate(chain[:-1]) if not site.only_use(node.outputs[0])]
    best: tuple[ir.Value | None, Relayout | None] = None, None
    saved, reason = (0, 0), "as many nodes would be needed"
    for start in range(len(chain) - 1):
        layout = track(site.scope.shapes, chain[start:])
        if layout is None:
            reason = "its axes do not follow from factors of known sizes"
            continue
        takes_empty = all(_takes_empty(site, node) for node in chain[start:])
        if (way := relayout(site, layout, takes_empty=takes_empty)) is None:
            reason = "a Reshape of it would have several symbolic sizes"
            continue
        gone = chain[max([start, *(i + 1 for i in kept)]) :]
        moved = sum(node.op_type == "Transpose" for node in gone)
        gain = len(gone) - way.cost[0], moved - way.cost[1]
        if gain >= saved and gain > (0, 0) and gain[1] >= 0:
            saved, best = gain, (chain[start].inputs[0], way)
    if best[1] is None and not _goes_on(site):
        site.miss(reason)
    return best


def _takes_empty(site: Site, node: ir.Node) -> bool:
    """Say whether a node of the chain gives an empty result for an empty value.

    ONNX Runtime (1.31.1) refuses -1 in a target beside a size of zero.
    """
    target = site.contents(node.inputs[1]) if node.op_type == "Reshape" else ()
    if target is None or -1 not in target:
        return target is not None
    shape = site.shape(node.inputs[0]) or ()
    sizes = [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(target)]
    return all(isinstance(size, int) for size in sizes)


def _goes_on(site: Site) -> bool:
    """Say whether the chain is longer: what is not done here is looked at from its end."""
    readers = {(node.domain, node.op_type) for node in site.output.consumers()}
    return bool(readers) and readers <= {("", op) for op in SimplifyTranspose.ops}

"""drop-expand: an Expand that the ops behind it would do by broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.permute import BROADCASTING
from ortkit.rewrite.site import Site

#: Broadcasts its second input only, and only to the first.
ONE_WAY = "PRelu"


@dataclass(frozen=True)
class DropExpand(NodePass):
    """Let elementwise ops broadcast what an Expand repeated for them.

    Before:
        e = Expand(n, shape)           # n: [batch, 1], e: [batch, 64]
        y = Div(x, e)                  # x: [batch, 64]
    After:
        y = Div(x, n)

    Skips:
        * Readers other than elementwise ops, and an Expand that a graph returns.
        * Readers with no other input that provably has every size that the Expand makes.

    Source:
        ONNX Expand-8 ... 13; multidirectional broadcasting.
    """

    name: ClassVar[str] = "drop-expand"
    ops: ClassVar[Sequence[str]] = ("Expand",)

    def rewrite(self, site: Site) -> None:
        value, readers = site.input(0), list(site.output.uses())
        before, after = site.shape(value), site.shape(site.output)
        if value is None or before is None or after is None or not readers:
            return
        made = _made(before, after)
        if made is None or site.output.is_graph_output():
            site.miss("it may make other sizes than known, or a graph returns it")
            return
        if not all(self._broadcasts(site, node, made, len(after)) for node, _ in readers):
            site.miss("what reads it does not broadcast to the same sizes")
            return
        if site.claim("broadcast"):
            for node, index in readers:
                site.scope.set_input(node, index, value)

    def _broadcasts(
        self, site: Site, node: ir.Node, made: Sequence[tuple[int, Size]], rank: int
    ) -> bool:
        """Say whether another input of `node` has these sizes at these axes from the end."""
        if node.domain != "" or node.op_type not in BROADCASTING - {ONE_WAY}:
            return False
        others = [site.shape(value) for value in node.inputs if value is not site.output]
        known = [shape for shape in others if shape is not None]
        return any(len(shape) >= rank for shape in known) and all(
            any(axis <= len(shape) and shape[-axis] == size for shape in known)
            for axis, size in made
        )


def _made(before: Sequence[Size], after: Sequence[Size]) -> list[tuple[int, Size]] | None:
    """Return the sizes that an Expand makes of ones, by axis from the end; None if unclear."""
    if len(before) > len(after):
        return None
    made: list[tuple[int, Size]] = []
    for axis in range(1, len(after) + 1):
        size = before[-axis] if axis <= len(before) else 1
        if size == after[-axis]:
            continue
        if size != 1:
            return None
        made.append((axis, after[-axis]))
    return made

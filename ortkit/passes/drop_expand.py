"""drop-expand: repetitions that the ops after them would do by broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.permutation import BROADCASTING
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Broadcasts its second input only, and only to the first.
ONE_WAY = "PRelu"


@dataclass(frozen=True)
class DropExpand(NodePass):
    """Let elementwise ops broadcast what Expand, Tile or ConstantOfShape repeated for them.

    Before:
        e = Expand(n, shape)           # n: [batch, 1], e: [batch, 64]
        y = Div(x, e)                  # x: [batch, 64]
    After:
        y = Div(x, n)

    A ConstantOfShape is one number, repeated; a number is read by those that can, even if others
    need it repeated.

    Skips:
        * Readers other than elementwise ops, and repetitions that a graph returns.
        * Readers with no other input that provably has every size that is made.

    Source:
        ONNX Expand-8 ... 13, Tile-6 ... 13, ConstantOfShape-9 ... 25; multidirectional
        broadcasting.
    """

    name: ClassVar[str] = "drop-expand"
    ops: ClassVar[Sequence[str]] = ("Expand", "Tile", "ConstantOfShape")

    def rewrite(self, site: Site) -> None:
        value, readers = site.input(0), list(site.output.uses())
        is_number = site.node.op_type == "ConstantOfShape"
        before = () if is_number else site.shape(value)
        after = site.shape(site.output)
        if value is None or before is None or after is None or not readers:
            return
        made = _made(before, after)
        if made is None or site.output.is_graph_output():
            site.miss("it may make other sizes than known, or a graph returns it")
            return
        fit = [pair for pair in readers if self._broadcasts(site, pair[0], made, len(after))]
        # A number is worth it for any of them: it may be neutral there.
        wanted = 1 if is_number or site.scalar(value) is not None else len(readers)
        if len(fit) < wanted:
            site.miss("what reads it does not broadcast to the same sizes")
            return
        number = _number(site) if is_number else None
        if is_number and number is None:
            site.miss("its number is not known")
            return
        if site.claim("broadcast"):
            if number is not None:
                value = site.constant(number)
            for node, index in fit:
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


def _number(site: Site) -> np.ndarray | None:
    """Return what a ConstantOfShape repeats, as a tensor without axes; None if unclear."""
    attribute = site.node.attributes.get("value")
    if attribute is None:
        return np.array(0, np.float32)
    if attribute.is_ref():
        return None
    array = attribute.as_tensor().numpy()
    return array.reshape(()) if array.size == 1 else None

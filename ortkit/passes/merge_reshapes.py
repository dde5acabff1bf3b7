"""merge-reshapes: one Reshape for a chain of ops that only change the shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.reshape_form import reshape_form
from ortkit.graph.shapes.reshape import RESHAPES, reshape_target
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: What the constant that an operator reads is called.
_NUMBERS = {"Flatten": "", "Reshape": "shape", "Squeeze": "axes", "Unsqueeze": "axes"}


@dataclass(frozen=True)
class MergeReshapes(NodePass):
    """Let the last of several Reshape, Flatten, Squeeze, Unsqueeze do it alone.

    Before:
        t = Unsqueeze(x, [0]);  u = Squeeze(t, [0]);  v = Reshape(u, [4, -1])
    After:
        v = Reshape(x, [4, -1])

    A chain that ends in the shape it began with goes whole. Several steps that read one step all
    read `x` then. Where a Reshape might refuse an empty tensor, one Unsqueeze, Squeeze or Flatten
    stays.

    Skips:
        * Steps that others read, which would stay.
        * A result with two symbolic sizes that stand at other positions in `x`.

    Source:
        ONNX Reshape-5 ... 25: 0 copies the size at the same position, -1 is inferred.
    """

    name: ClassVar[str] = "merge-reshapes"
    ops: ClassVar[Sequence[str]] = RESHAPES

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), *RESHAPES)
        after = site.shape(site.output)
        if inner is None or after is None:
            return
        if (whole := self._undone(site, inner)) is not None:
            if site.can_replace(whole) and site.claim("inverse"):
                site.replace(whole)
            return
        source = inner.inputs[0]
        before = site.shape(source)
        if site.opset < 5:
            site.miss("before opset 5 a Reshape has no target as an input")
            return
        if source is None or before is None:
            return
        if not _reads_alike(site, inner, before):
            site.miss("others read the step before it")
            return
        form = reshape_form(site, before, after)
        if form is None:
            site.miss("its result has several symbolic sizes that its source has elsewhere")
            return
        if site.claim("chain"):
            site.replace(form.emit(site, source, f"{site.output.name}/{_NUMBERS[form.op_type]}"))

    def _undone(self, site: Site, inner: ir.Node) -> ir.Value | None:
        """Return the value up the chain that has the shape of the result, None if none has."""
        after = site.shape(site.output)
        node: ir.Node | None = inner
        while node is not None:
            source = node.inputs[0]
            if source is None:
                return None
            if site.shape(source) == after:
                return source
            node = site.producer(source, *RESHAPES)
        return None


def _reads_alike(site: Site, inner: ir.Node, before: Sequence[Size]) -> bool:
    """Say whether all that reads this step can read a value of the shape `before` instead."""
    if inner.outputs[0].is_graph_output():
        return False
    for node, index in inner.outputs[0].uses():
        after = site.shape(node.outputs[0])
        if node.domain != "" or node.op_type not in RESHAPES or index > 0:
            return False
        if node is not site.node and (after is None or reshape_target(before, after) is None):
            return False
    return True

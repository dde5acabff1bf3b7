"""merge-concats: a Concat of a Concat along the same axis is one Concat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class MergeConcats(NodePass):
    """Take the operands of an inner Concat into the outer one.

    Before:
        t = Concat<axis = 1>(a, b);  y = Concat<axis = 1>(t, c)
    After:
        y = Concat<axis = 1>(a, b, c)

    Skips:
        * An inner Concat that others read, or along another axis.

    Source:
        ONNX Concat-4 ... 13.
    """

    name: ClassVar[str] = "merge-concats"
    ops: ClassVar[Sequence[str]] = ("Concat",)

    def rewrite(self, site: Site) -> None:
        operands: list[ir.Value | None] = []
        found = False
        for value in site.node.inputs:
            inner = self._mergeable(site, value)
            operands.extend([value] if inner is None else inner.inputs)
            found = found or inner is not None
        if not found or not site.claim("same-axis"):
            return
        site.replace(site.op("Concat", operands, {"axis": site.int("axis", 0)}))

    def _mergeable(self, site: Site, value: ir.Value | None) -> ir.Node | None:
        inner = site.producer(value, "Concat")
        if inner is None or value is None:
            return None
        if not site.only_use(value):
            site.miss("others read the inner Concat")
            return None
        own, rank = site.int("axis", 0), site.rank(value)
        other = Site(site.scope, inner, self.name).int("axis", 0)
        if own == other:
            return inner
        if not rank:
            return None
        return inner if own % rank == other % rank else None

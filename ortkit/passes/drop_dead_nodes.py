"""drop-dead-nodes: remove nodes whose outputs nothing reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.scope import is_unused
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class DropDeadNodes(NodePass):
    """Remove a node that nothing reads.

    Before:
        t = Exp(x);  y = Neg(x)        # t is not read and not an output
    After:
        y = Neg(x)

    Skips:
        * Ops of unknown domains: they may have an effect in addition to their outputs.
    """

    name: ClassVar[str] = "drop-dead-nodes"
    ops: ClassVar[Sequence[str]] = ("*",)

    def rewrite(self, site: Site) -> None:
        if is_unused(site.node) and site.claim("dead"):
            site.scope.drop_if_unused(site.node)

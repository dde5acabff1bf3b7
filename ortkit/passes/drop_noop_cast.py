"""drop-noop-cast: remove casts to the type that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class DropNoopCast(NodePass):
    """Remove a Cast or CastLike that changes nothing.

    Before:
        t = Cast<to = FLOAT>(x)        # x: float
        y = Neg(t)
    After:
        y = Neg(x)

    Source:
        ONNX Cast-1 ... 25, CastLike-15 ... 25.
    """

    name: ClassVar[str] = "drop-noop-cast"
    ops: ClassVar[Sequence[str]] = ("Cast", "CastLike")

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        have = site.dtype(value)
        if value is None or have is None:
            return
        # A type that does not exist is none that the value has.
        want = site.int("to", 0) if site.node.op_type == "Cast" else site.dtype(site.input(1))
        if have == want and site.can_replace(value) and site.claim("same-type"):
            site.replace(value)

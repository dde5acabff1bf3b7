"""drop-identity: remove Identity and Dropout in inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class DropIdentity(NodePass):
    """Remove ops that hand on their input.

    Before:
        t = Identity(x);  u = Dropout(t);  y = Neg(u)
    After:
        y = Neg(x)

    Skips:
        * A result that must keep its name where `x` must keep its own, or is an outer value.
        * Dropout in training mode, or whose mask is read.

    Source:
        ONNX Identity-1 ... 25, Dropout-1 ... 22.
    """

    name: ClassVar[str] = "drop-identity"
    ops: ClassVar[Sequence[str]] = ("Identity", "Dropout")

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        if value is None:
            return
        if site.node.op_type == "Dropout" and (reason := _not_inference(site)):
            site.miss(reason)
            return
        if site.can_replace(value) and site.claim(site.node.op_type.lower()):
            site.replace(value)


def _not_inference(site: Site) -> str | None:
    outputs = site.node.outputs
    if len(outputs) > 1 and (outputs[1].uses() or outputs[1].is_graph_output()):
        return "its mask is read"
    if site.opset < 7:
        return None if site.int("is_test", 0) else "it drops in training mode"
    if (training := site.input(2)) is not None and site.scalar(training) is not False:
        return "its training mode is not constant false"
    return None

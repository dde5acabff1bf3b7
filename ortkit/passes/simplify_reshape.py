"""simplify-reshape: constant targets for Reshape where symbolic sizes allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.analysis.reshape_form import reshape_form
from ortkit.graph.shapes.reshape import reshape_target
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class SimplifyReshape(NodePass):
    """Replace a computed Reshape target by a constant one with 0 and -1.

    Before:
        s = Concat(Gather(Shape(x), 0), Gather(Shape(x), 1), [12], [64])
        y = Reshape(x, s)              # x: [batch, seq, 768]
    After:
        y = Reshape(x, [0, 0, 12, 64])

    Skips:
        * Targets with two symbolic sizes that `x` has at other positions.
        * Targets that say all sizes, and so are right for empty tensors. There -1 beside a size
          that may be zero is not. Unsqueeze, Squeeze or Flatten is written where it does the same.

    Source:
        ONNX Reshape-5 ... 25.
    """

    name: ClassVar[str] = "simplify-reshape"
    ops: ClassVar[Sequence[str]] = ("Reshape",)

    def rewrite(self, site: Site) -> None:
        if site.scope.is_constant(site.input(1)):
            return
        before, after = site.shape(site.input(0)), site.shape(site.output)
        if before is None or after is None or site.opset < 5:
            return
        form = reshape_form(site, before, after)
        if form is None:
            site.miss("several symbolic sizes stand elsewhere in its input")
            return
        contents = site.contents(site.input(1))
        takes_empty = contents is not None and -1 not in contents
        if form.refuses_empty and takes_empty:
            site.miss("a constant target would have -1 beside a size that may be zero")
            return
        if not site.claim("constant-target"):
            return
        if form.op_type != "Reshape" and takes_empty:
            site.replace(form.emit(site, site.input(0)))
            return
        target = reshape_target(before, after)
        assert target is not None
        if site.int("allowzero", 0):
            site.set_attribute("allowzero", 0)  # the target holds no size of zero
        site.set_input(1, site.constant(target, f"{site.output.name}/shape"))

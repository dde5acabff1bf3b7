"""merge-transposes: one Transpose for two in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class MergeTransposes(NodePass):
    """Compose two Transposes; the pair goes where the second undoes the first.

    Before:
        t = Transpose<perm = p>(x);  y = Transpose<perm = q>(t)
    After:
        y = Transpose<perm = p[q]>(x)

    Skips:
        * `perm` absent (it means reverse) on a value of unknown rank.
        * A first Transpose that others read, unless the two cancel.

    Source:
        ONNX Transpose-1 ... 25: `perm[i]` is the input axis that becomes output axis i.
    """

    name: ClassVar[str] = "merge-transposes"
    ops: ClassVar[Sequence[str]] = ("Transpose",)

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), "Transpose")
        if inner is None or (source := inner.inputs[0]) is None:
            return
        first = Site(site.scope, inner, self.name).perm()
        second = site.perm()
        if first is None or second is None or len(first) != len(second):
            site.miss("perm is implicit and the rank of its input is unknown")
            return
        both = [first[axis] for axis in second]
        if both == sorted(both):
            if site.can_replace(source) and site.claim("inverse"):
                site.replace(source)
            return
        if not site.only_use(inner.outputs[0]):
            site.miss("the first Transpose is read elsewhere, so both would stay")
            return
        if site.claim("compose"):
            site.set_attribute("perm", both)
            site.set_input(0, source)

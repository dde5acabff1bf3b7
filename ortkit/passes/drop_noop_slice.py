"""drop-noop-slice: remove Slice, Pad, Concat and Split that hand on their input whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class DropNoopSlice(NodePass):
    """Remove ops that cut nothing off, add nothing and join one thing.

    Before:
        t = Slice(x, [0], [INT64_MAX], [1]);  u = Concat<axis = 0>(t);  y = Pad(u, [0, 0, 0, 0])
    After:
        y = x

    Skips:
        * Steps other than one, starts other than zero, ends that are not provably the size.

    Source:
        ONNX Slice-1 ... 13, Pad-1 ... 25, Concat-1 ... 13, Split-1 ... 18.
    """

    name: ClassVar[str] = "drop-noop-slice"
    ops: ClassVar[Sequence[str]] = ("Slice", "Pad", "Concat", "Split", "Sum", "Max", "Min", "Mean")

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        if value is None or not _hands_on_whole(site):
            return
        if site.can_replace(value) and site.claim(site.node.op_type.lower()):
            site.replace(value)


def _hands_on_whole(site: Site) -> bool:
    match site.node.op_type:
        case "Slice":
            return _cuts_nothing(site)
        case "Pad":
            return _adds_nothing(site)
        case "Split":
            return len(site.node.outputs) == 1
        case _:
            return len(site.node.inputs) == 1


def _cuts_nothing(site: Site) -> bool:
    """Say whether every start is zero, every step one, and every end at or past the end."""
    ends: tuple[Size, ...] | None
    if site.opset < 10:
        starts, ends, axes = site.ints("starts"), site.ints("ends"), site.ints("axes")
    else:
        starts = _ints(site, 1)
        ends, axes = site.contents(site.input(2)), _ints(site, 3)
        steps = site.contents(site.input(4))
        if site.input(4) is not None and (steps is None or any(step != 1 for step in steps)):
            return False
        if site.input(3) is not None and axes is None:
            return False
    shape = site.shape(site.input(0))
    if starts is None or ends is None or any(start != 0 for start in starts):
        return False
    axes = axes if axes is not None else tuple(range(len(starts)))
    if not len(starts) == len(ends) == len(axes):
        return False
    for axis, end in zip(axes, ends, strict=True):
        if shape is not None and not -len(shape) <= axis < len(shape):
            return False
        known = None if shape is None else shape[axis]
        past = isinstance(end, int) and (
            end >= 2**31 - 1 or (isinstance(known, int) and end >= known)
        )
        if not past and (known is None or end != known):
            return False
    return True


def _ints(site: Site, index: int) -> tuple[int, ...] | None:
    array = site.array(site.input(index), 64)
    return None if array is None else tuple(array.reshape(-1).tolist())


def _adds_nothing(site: Site) -> bool:
    if site.opset < 11:
        pads = site.ints("pads") or site.ints("paddings")
    else:
        found = site.contents(site.input(1))
        return found is not None and all(pad == 0 for pad in found)
    return pads is not None and not any(pads)

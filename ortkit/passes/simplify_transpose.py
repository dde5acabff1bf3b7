"""simplify-transpose: a Transpose between Reshapes, done before them or by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.graph.dims import Size, multiply
from ortkit.graph.reshape import RESHAPES, reshape_target
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.permute import moves_only_ones
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class SimplifyTranspose(NodePass):
    """Move whole axes where a Reshape only joins axes for a Transpose and another parts them.

    Before:
        t = Reshape(x, [-1, s, d])                  # x: [b, h, s, d]
        u = Transpose<perm = [0, 2, 1]>(t);  y = Reshape(u, [b, h, d, s])
    After:
        y = Transpose<perm = [0, 1, 3, 2]>(x)

    Where the last Reshape does more than that, it stays, and only the first one goes. A Transpose
    beside a Reshape that moves nothing but axes of length one becomes a Reshape, for the two to
    be merged.

    Skips:
        * A first Reshape that parts axes, or whose sizes cannot be compared.
        * Steps that others read.

    Source:
        Joining neighbouring axes keeps the order of the elements; ONNX Transpose-1 ... 25.
    """

    name: ClassVar[str] = "simplify-transpose"
    ops: ClassVar[Sequence[str]] = (*RESHAPES, "Transpose")

    def rewrite(self, site: Site) -> None:
        if site.node.op_type == "Transpose":
            _to_reshape(site)
            return
        middle = site.producer(site.input(0), "Transpose")
        first = None if middle is None else site.producer(middle.inputs[0], *RESHAPES)
        if middle is None or first is None:
            return
        if not site.only_use(middle.outputs[0]) or not site.only_use(first.outputs[0]):
            site.miss("others read a step of it")
            return
        source, joined = site.shape(first.inputs[0]), site.shape(first.outputs[0])
        after = site.shape(site.output)
        groups = None if source is None or joined is None else joined_axes(source, joined)
        if groups is None or source is None or after is None:
            site.miss("its first Reshape does not only join axes of known sizes")
            return
        at_middle = Site(site.scope, middle, self.name)
        order = at_middle.ints("perm") or tuple(reversed(range(len(groups))))
        perm = [axis for group in order for axis in groups[group]]
        moved = [source[axis] for axis in perm]
        target = None if tuple(moved) == tuple(after) else reshape_target(moved, after)
        if tuple(moved) != tuple(after) and (target is None or site.opset < 5):
            site.miss("its last Reshape has several symbolic sizes, or none as an input")
            return
        if site.claim("axes"):
            made = site.op("Transpose", [first.inputs[0]], {"perm": perm})
            if target is not None:
                made = site.op("Reshape", [made, site.constant(target)])
            site.replace(made)


def _to_reshape(site: Site) -> None:
    """Replace a Transpose beside a Reshape, if it leaves the order of the elements alone."""
    before, after = site.shape(site.input(0)), site.shape(site.output)
    if before is None or after is None or not _is_beside_reshape(site):
        return
    if not moves_only_ones(site.ints("perm") or tuple(reversed(range(len(before)))), before):
        return
    target = reshape_target(before, after)
    if target is None:
        site.miss("it moves axes of length one, and several symbolic sizes with them")
    elif site.claim("ones"):
        site.replace(site.op("Reshape", [site.input(0), site.constant(target)]))


def _is_beside_reshape(site: Site) -> bool:
    first = site.producer(site.input(0), *RESHAPES)
    if first is not None and site.only_use(first.outputs[0]):
        return True
    readers = [(node.domain, node.op_type) for node in site.output.consumers()]
    return site.only_use(site.output) and readers[0] in {("", op) for op in RESHAPES}


def joined_axes(source: Sequence[Size], joined: Sequence[Size]) -> list[list[int]] | None:
    """Return which neighbouring axes of `source` each axis of `joined` is the product of.

    None where `joined` is not made that way, or where that cannot be proved.
    """
    groups: list[list[int]] = []
    axis = 0
    for size in joined:
        group: list[int] = []
        product: Size = 1
        while axis < len(source) and (not group or product != size):
            product = multiply(product, source[axis])
            group.append(axis)
            axis += 1
        if product != size or not group:
            return None
        groups.append(group)
    while axis < len(source) and groups and source[axis] == 1:
        groups[-1].append(axis)
        axis += 1
    return groups if axis == len(source) else None

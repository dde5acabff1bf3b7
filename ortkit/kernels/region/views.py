"""Views in a region's body: nodes that only say where elements lie."""

from __future__ import annotations

from collections.abc import Mapping

from ortkit.kernels.region.body_node import BodyNode, Reads, axis_of
from ortkit.kernels.region.program import text
from ortkit.kernels.sizes import ONE, Extent, Shape, product
from ortkit.refusal import RefusedError


def _transpose(node: BodyNode) -> list[int]:
    x = node.value(0)
    perm = node.attributes.get("perm", list(reversed(range(len(node.b.shape(x))))))
    assert isinstance(perm, list)
    return [node.b.transpose(x, perm)]


def _reshape(node: BodyNode) -> list[int]:
    x = node.value(0)
    before, wanted = node.b.shape(x), node.integers(1) or []
    shape: list[Extent | None] = []
    for position, size in enumerate(wanted):
        if size == 0 and not node.attributes.get("allowzero", 0):
            if position >= len(before):
                raise RefusedError("Reshape that copies a size that is not there")
            shape.append(before[position])
        else:
            shape.append(None if size == -1 else Extent(size))
    known = product(size for size in shape if size is not None)
    if None in shape:
        rest = product(before).divided_by(known)
        if rest is None:
            raise RefusedError(f"Reshape of {text(before)} to {wanted}")
        shape = [rest if size is None else size for size in shape]
    return [node.b.reshape(x, [size for size in shape if size is not None])]


def _flatten(node: BodyNode) -> list[int]:
    x = node.value(0)
    shape, axis = node.b.shape(x), node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    axis = axis + len(shape) if axis < 0 else axis
    return [node.b.reshape(x, [product(shape[:axis]), product(shape[axis:])])]


def _squeeze(node: BodyNode) -> list[int]:
    x = node.value(0)
    shape = node.b.shape(x)
    axes = node.integers(1)
    dims = (
        [i for i, size in enumerate(shape) if size == ONE]
        if axes is None
        else [axis_of(axis, len(shape)) for axis in axes]
    )
    return [node.b.reshape(x, [size for i, size in enumerate(shape) if i not in dims])]


def _unsqueeze(node: BodyNode) -> list[int]:
    x = node.value(0)
    axes = node.integers(1) or []
    rank = len(node.b.shape(x)) + len(axes)
    dims = {axis_of(axis, rank) for axis in axes}
    old = iter(node.b.shape(x))
    return [node.b.reshape(x, [ONE if i in dims else next(old) for i in range(rank)])]


def _expand(node: BodyNode) -> list[int]:
    shape = [Extent(size) for size in node.integers(1) or []]
    return [node.b.broadcast(node.value(0), shape)]


def _slice(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    starts, stops = node.integers(1) or [], node.integers(2) or []
    axes = node.integers(3) or list(range(len(starts)))
    steps = node.integers(4) or [1] * len(starts)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        dim = axis_of(axis, len(b.shape(x)))
        size = b.shape(x)[dim].static
        if size is None or step < 1:
            raise RefusedError("Slice backwards" if step < 1 else "Slice of a size that may vary")
        first, end, _ = slice(start, stop, step).indices(size)
        x = b.slice(x, dim, first, max(first, end), step)
    return [x]


def _concat(node: BodyNode) -> list[int]:
    parts = node.values()
    return [node.b.concat(parts, node.axis())]


def _split(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    size, sizes = b.shape(x)[dim].static, node.integers(1)
    if size is None:
        raise RefusedError("Split of a size that may vary")
    if sizes is None:
        each = -(-size // len(node.proto.output))
        sizes = [min(each, size - each * i) for i in range(len(node.proto.output))]
    results, start = [], 0
    for number in sizes:
        results.append(b.slice(x, dim, start, start + number))
        start += number
    return results


def _gather(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    index, size = node.constant(1), b.shape(x)[dim].static
    if index is None and dim == 0:
        return [b.lookup(x, node.value(1))]
    if index is None or index.size != 1 or index.ndim > 1 or size is None:
        raise RefusedError("Gather with other than one constant index")
    at = int(index.item()) % size if size else 0
    one = b.slice(x, dim, at, at + 1)
    if index.ndim:
        return [one]
    return [b.reshape(one, [s for i, s in enumerate(b.shape(one)) if i != dim])]


def _pad(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    pads = node.integers(1) or []
    axes = node.integers(3) or list(range(len(b.shape(x))))
    if node.attributes.get("mode", "constant") != "constant" or min(pads, default=0) < 0:
        raise RefusedError("Pad that reflects, repeats or crops")
    fill = node.value(2) if node.has(2) else b.constant(0, b.dtype(x))
    fill = b.reshape(fill, ())
    for position, axis in enumerate(axes):
        dim = axis_of(axis, len(b.shape(x)))
        shape: Shape = b.shape(x)
        for size, is_before in ((pads[position], True), (pads[position + len(axes)], False)):
            if size:
                edge = b.broadcast(fill, [*shape[:dim], Extent(size), *shape[dim + 1 :]])
                x = b.concat([edge, x] if is_before else [x, edge], dim)
    return [x]


VIEWS: Mapping[str, Reads] = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

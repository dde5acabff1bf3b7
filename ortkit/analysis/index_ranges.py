"""Indices that count along an axis: Range and its like, with further axes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import Layout, track
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.site import Site

#: No exporter puts more between a Range and the indices.
LONGEST = 8


def counted_axis(site: Site, value: ir.Value | None, size: Size, rank: int) -> int | None:
    """Return the axis along which an index of `rank` axes counts from 0 to `size`, by one.

    -1 where it is always 0 and `size` is 1; None where it does neither.
    """
    chain: list[ir.Node] = []
    while (node := site.producer(value, *RESHAPES, "Expand")) and len(chain) < LONGEST:
        chain.insert(0, node)
        value = node.inputs[0]
    array = site.array(value, 1 << 16)
    if size == 1:
        return -1 if array is not None and not array.any() else None
    shape = site.shape(value)
    if shape is None or not (_counts(site, value, size) if array is None else _runs(array, size)):
        return None
    layout = track(site.scope.shapes, chain, Layout.of(shape))
    own = [] if layout is None else [group for group in layout.source if group]
    if layout is None or len(own) != 1:
        return None
    axes = [axis for axis, group in enumerate(layout.result) if group == own[0]]
    return axes[0] if len(axes) == 1 and axes[0] < rank else None


def _counts(site: Site, value: ir.Value | None, size: Size) -> bool:
    """Say whether this is Range(0, size, 1)."""
    counter = site.producer(value, "Range")
    numbers = [] if counter is None else [site.contents(each) for each in counter.inputs]
    return numbers == [(0,), (size,), (1,)]


def _runs(array: np.ndarray, size: Size) -> bool:
    return array.size == size and bool((array.reshape(-1) == np.arange(array.size)).all())

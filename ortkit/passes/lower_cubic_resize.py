"""lower-cubic-resize: a cubic Resize as products with the weights of its pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.evaluate import Unsupported, evaluate
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: The first version with the sizes of the result.
_SINCE = 11
#: The first one whose region and scales may be absent; it computes what the ones before do.
_ABSENT_SINCE = 13
#: Multiply-adds of the products for an element of the result. ONNX Runtime's Resize takes 141 ns,
#: and products do at least 10 multiply-adds a ns (1.31.1, one thread of a Zen 4, 2026-11-28).
_MOST_MULTIPLY_ADDS = 1024
#: Elements of the weights of one axis.
_MOST_WEIGHTS = 1 << 18


@dataclass(frozen=True)
class LowerCubicResize(NodePass):
    """Multiply rows and columns of images by the weights that a cubic Resize gives to pixels.

    Before:
        y = Resize<mode = "cubic">(x, roi, scales)          # x: [N, C, h, w], y: [N, C, H, W]
    After:
        y = MatMul(V, MatMul(x, U))                         # U: [w, W], V: [H, h]

    U and V are what the Resize makes of identity matrices. An axis whose size stays has none. The
    axis first that makes fewer multiply-adds. An infinity or NaN reaches its whole row and column
    then, not only the pixels near it. Where a batch or channels may be empty, V is repeated for
    them: ONNX Runtime's MatMul (1.31.1) does not broadcast a size of 1 to 0.

    Skips:
        * CUDA, where nothing was measured with it.
        * Sizes of pixels that are not known; a batch and channels may be.
        * Regions of the image (`tf_crop_and_resize`), and sizes by an aspect ratio.
        * Axes so long that the products are more work.

    Source:
        ONNX Resize-11 ... 19: each axis is resized by a linear map of its own.
    """

    name: ClassVar[str] = "lower-cubic-resize"
    ops: ClassVar[Sequence[str]] = ("Resize",)

    def rewrite(self, site: Site) -> None:
        if site.string("mode", "nearest") != "cubic" or not site.traits.is_host:
            return
        x = site.input(0)
        before, after = site.shape(x), site.shape(site.output)
        if before is None or after is None or len(before) != 4 or before[:2] != after[:2]:
            return
        sizes = [size for size in (*before[2:], *after[2:]) if isinstance(size, int) and size > 0]
        reason = "its sizes are not known" if len(sizes) < 4 else _why_not(site, sizes)
        if reason:
            site.miss(reason)
            return
        weights = _weights(site, sizes)
        if weights is None:
            site.miss("its weights cannot be computed here")
            return
        if site.claim("cubic"):
            site.replace(_products(site, x, sizes, weights))


def _why_not(site: Site, sizes: Sequence[int]) -> str:
    """Say why a Resize stays; empty if it does not."""
    height, width, rows, columns = sizes
    if site.opset < _SINCE or site.dtype(site.input(0)) != ir.DataType.FLOAT:
        return "it is not of float32, or too old"
    if site.string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return "it resizes a region of the image"
    if site.string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "its sizes follow from an aspect ratio"
    if max(height * rows, width * columns) > _MOST_WEIGHTS:
        return "the weights of an axis would be too large"
    if min(_multiply_adds(sizes)) > _MOST_MULTIPLY_ADDS * rows * columns:
        return "the products would be more work"
    return ""


def _multiply_adds(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the multiply-adds of an image, columns first and rows first."""
    height, width, rows, columns = sizes
    return (
        height * width * columns + height * rows * columns,
        height * width * rows + width * rows * columns,
    )


def _weights(site: Site, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return [H, h] and [w, W]: what the Resize makes of identity matrices."""
    height, width, rows, columns = sizes
    factors = _factors(site)
    if factors is not None:
        down = np.array([1, 1, factors[0], 1], np.float32)
        across = np.array([1, 1, 1, factors[1]], np.float32)
    elif site.input(3) is not None:
        down, across = np.array([1, 1, rows, height]), np.array([1, 1, width, columns])
    else:
        return None
    first = _resized(site, np.eye(height, dtype=np.float32), down)
    second = _resized(site, np.eye(width, dtype=np.float32), across)
    if first is None or first.shape != (rows, height):
        return None
    if second is None or second.shape != (width, columns):
        return None
    return first, second


def _factors(site: Site) -> tuple[float, float] | None:
    """Return the scales of rows and columns, None where sizes are given or they are unknown."""
    scales = site.array(site.input(2))
    if scales is None or not scales.size:
        return None
    given = [float(scale) for scale in scales.reshape(-1)]
    axes = site.ints("axes") or (0, 1, 2, 3)
    by_axis = {axis % 4: scale for axis, scale in zip(axes, given, strict=False)}
    return by_axis.get(2, 1.0), by_axis.get(3, 1.0)


def _resized(site: Site, image: np.ndarray, given: np.ndarray) -> np.ndarray | None:
    """Return a matrix as the Resize makes it larger, None where it cannot be run here.

    Args:
        site: The Resize.
        image: The matrix.
        given: The scales of four axes, float32, or their sizes.
    """
    attributes = {
        name: attribute
        for name, attribute in site.node.attributes.items()
        if name not in ("axes", "keep_aspect_ratio_policy")
    }
    absent = [None] if given.dtype == np.float32 else [None, None]
    inputs = [image[None, None], *absent, given]
    names = [ir.Value(name=f"x{index}") for index in range(len(inputs))]
    node = ir.node("Resize", names, attributes, outputs=[ir.Value(name="y")])
    try:
        made = evaluate(node, inputs, {"": max(site.opset, _ABSENT_SINCE)})[0]
    except Unsupported:
        return None
    return None if made is None or made.ndim != len(given) else made[0, 0]


def _products(
    site: Site,
    x: ir.Value | None,
    sizes: Sequence[int],
    weights: tuple[np.ndarray, np.ndarray],
) -> ir.Value:
    """Multiply the images, the axis first that makes fewer multiply-adds."""
    by_columns, by_rows = _multiply_adds(sizes)
    value = x
    assert value is not None, "a Resize has an image"
    for is_row in (False, True) if by_columns <= by_rows else (True, False):
        matrix, name = (weights[0], "rows") if is_row else (weights[1], "columns")
        # Weights that take one row of many are an identity matrix of which rows are left out.
        if np.array_equal(matrix, np.eye(len(matrix), dtype=np.float32)):
            continue
        constant = site.constant(np.ascontiguousarray(matrix), f"{site.output.name}/{name}")
        sides = [_repeated(site, constant, x), value] if is_row else [value, constant]
        value = site.op("MatMul", sides)
    if value is x:
        value = site.op("Identity", [x])
    return value


def _repeated(site: Site, rows: ir.Value, x: ir.Value | None) -> ir.Value:
    """Return weights of rows as often as images are, at the axes of these that may be empty.

    A copy of [H, h] is written in 0.25 ns an element. The products that read it take at least
    0.1 ns for each element and column.
    """
    may_be_empty = [not isinstance(size, int) or size == 0 for size in (site.shape(x) or ())[:2]]
    if not any(may_be_empty):
        return rows
    sizes = site.op("Shape", [x])
    axes = [
        site.op("Gather", [sizes, site.constant((axis,))]) if is_free else site.constant((1,))
        for axis, is_free in enumerate(may_be_empty)
    ]
    shape = site.op("Concat", [*axes, site.constant((1, 1))], {"axis": 0})
    return site.op("Expand", [rows, shape])

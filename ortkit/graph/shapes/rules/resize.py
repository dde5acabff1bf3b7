"""Resize and Upsample."""

from __future__ import annotations

import numpy as np

from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import Call, Element, Rule, Shape, UnknownError, normal_axis
from ortkit.graph.symbolic.dims import Dim, Size


def _resize(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    call.out(shape=tuple(call.fresh() for _ in shape))
    axes = call.integers("axes")
    cut = tuple(range(len(shape))) if axes is None else axes
    chosen = [normal_axis(axis, len(shape)) for axis in cut]
    # Axes that are not listed keep their size.
    call.out(shape=tuple(call.fresh() if i in chosen else s for i, s in enumerate(shape)))
    if call.string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise UnknownError
    if call.string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnknownError
    _fill(call, shape, chosen)


def _fill(call: Call, shape: Shape, axes: list[int]) -> None:
    result = list(shape)
    scales_at = 1 if call.version < 11 else 2
    # An empty tensor stands for an absent input.
    if call.version >= 11 and call.has(3) and call.fact(3).elements:
        sizes = call.sizes(3)
        if len(sizes) != len(axes):
            raise UnknownError
        for axis, size in zip(axes, sizes, strict=True):
            result[axis] = size
    else:
        scales = call.elements(scales_at)
        if len(scales) != len(axes):
            raise UnknownError
        for axis, scale in zip(axes, scales, strict=True):
            result[axis] = _scaled(call, shape[axis], scale)
    call.out(shape=tuple(result))


def _scaled(call: Call, size: Size, scale: Element) -> Size:
    if isinstance(scale, float) and isinstance(size, int):
        # Runtimes multiply in float32 or wider: only a size that both find is known.
        narrow, wide = int(np.float32(size) * np.float32(scale)), int(size * scale)
        return wide if narrow == wide else call.fresh()
    if scale == 1.0:
        return size
    try:
        found = el.floor(el.multiplied(el.as_float(size), scale))
    except UnknownError:
        return call.fresh()
    if isinstance(found, float):
        return int(found)
    return found if isinstance(found, int | Dim) else call.fresh()


def _upsample(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    call.out(shape=tuple(call.fresh() for _ in shape))
    given = call.attribute("scales")
    scales: tuple[Element, ...]
    scales = call.elements(1) if given is None else tuple(given.as_floats())
    if len(scales) != len(shape):
        raise UnknownError
    call.out(
        shape=tuple(_scaled(call, size, scale) for size, scale in zip(shape, scales, strict=True))
    )


RULES: dict[str, Rule] = {"Resize": _resize, "Upsample": _upsample}

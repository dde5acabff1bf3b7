"""Convolutions, pools and other operators over [batch, channels, *spatial]."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError
from ortkit.graph.shapes.rules.elementwise import same
from ortkit.graph.symbolic.dims import Size, add, ceil_divide, floor_divide, multiply

INT64 = ir.DataType.INT64


@dataclass(frozen=True)
class _Window:
    """A sliding window; every field but `padding` has one entry for each spatial axis."""

    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Before and after each axis, added up."""
    heads: tuple[int, ...]
    padding: str


def _window(call: Call, kernel: Shape, rank: int) -> _Window:
    ones = (1,) * rank
    pads = call.integers("pads") or (0,) * (2 * rank)
    strides = call.integers("strides") or ones
    dilations = call.integers("dilations") or ones
    padding = call.string("auto_pad", "NOTSET") or "NOTSET"
    if padding == "VALID":
        pads = (0,) * (2 * rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise UnknownError
    if any(step <= 0 for step in (*strides, *dilations)):
        raise UnknownError
    both = tuple(pads[i] + pads[i + rank] for i in range(rank))
    return _Window(kernel, strides, dilations, both, pads[:rank], padding)


def _extent(window: _Window, axis: int) -> Size:
    """Return how far the dilated kernel reaches."""
    return add(multiply(add(window.kernel[axis], -1), window.dilations[axis]), 1)


def _slid(window: _Window, axis: int, size: Size, *, rounds_up: bool) -> Size:
    """Return how many windows fit on one axis; the kernel fits into the padded input."""
    stride = window.strides[axis]
    if window.padding in ("SAME_UPPER", "SAME_LOWER"):
        return ceil_divide(size, stride)
    room = add(add(size, window.pads[axis]), -_extent(window, axis))
    if isinstance(room, int) and room < 0:
        raise UnknownError  # The kernel does not fit: runtimes round -1 / 2 differently.
    if not rounds_up:
        return add(floor_divide(room, stride), 1)
    number = add(ceil_divide(room, stride), 1)
    if stride == 1:
        return number
    if not isinstance(number, int) or not isinstance(size, int):
        raise UnknownError
    # A window must not start in the padding after the input.
    starts_outside = (number - 1) * stride >= size + window.heads[axis]
    return number - 1 if starts_outside else number


def _spatial(shape: Shape) -> Shape:
    if len(shape) < 2:
        raise UnknownError
    return shape[2:]


# ---- convolutions ------------------------------------------------------------------------


def conv_shape(call: Call, data: Shape, weight: Shape) -> Shape:
    """Return the shape of a convolution; `weight` is [out, in / group, *kernel]."""
    spatial = _spatial(data)
    kernel: Shape = call.integers("kernel_shape") or weight[2:]
    window = _window(call, kernel, len(spatial))
    moved = (_slid(window, axis, size, rounds_up=False) for axis, size in enumerate(spatial))
    return (data[0], weight[0], *moved)


def _conv_at(data: int, weight: int, dtype: ir.DataType | int) -> Rule:
    """Make a rule for a convolution; `dtype` is a type or the input that has it."""

    def rule(call: Call) -> None:
        call.out(dtype=dtype if isinstance(dtype, ir.DataType) else call.dtype(dtype))
        shape = call.shape(data)
        weights = call.fact(weight).shape
        if weights is None:
            call.out(shape=(shape[0], *(call.fresh() for _ in shape[1:])))
            return
        call.out(shape=conv_shape(call, shape, weights))

    return rule


conv = _conv_at(0, 1, 0)


def _conv_transpose(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    data, weight = call.shape(0), call.shape(1)
    spatial = _spatial(data)
    rank = len(spatial)
    window = _window(call, call.integers("kernel_shape") or weight[2:], rank)
    channels = multiply(weight[1], call.integer("group", 1))
    given = call.integers("output_shape")
    if given:
        call.out(shape=(data[0], channels, *given[-rank:]))
        return
    if window.padding in ("SAME_UPPER", "SAME_LOWER"):
        call.out(shape=(data[0], channels, *(call.fresh() for _ in spatial)))
        return
    extra = call.integers("output_padding") or (0,) * rank
    grown = []
    for axis, size in enumerate(spatial):
        steps = multiply(add(size, -1), window.strides[axis])
        reach = add(_extent(window, axis), extra[axis] - window.pads[axis])
        grown.append(add(steps, reach))
    call.out(shape=(data[0], channels, *grown))


# ---- pools -------------------------------------------------------------------------------


def pool(call: Call) -> None:
    call.out(0, dtype=call.dtype(0))
    call.out(1, dtype=INT64)
    data = call.shape(0)
    spatial = _spatial(data)
    window = _window(call, call.integers("kernel_shape") or (), len(spatial))
    rounds_up = call.integer("ceil_mode", 0) != 0
    moved = []
    for axis, size in enumerate(spatial):
        try:
            moved.append(_slid(window, axis, size, rounds_up=rounds_up))
        except UnknownError:
            moved.append(call.fresh())
    for index in range(2):
        call.out(index, shape=(*data[:2], *moved))


def _global_pool(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    data = call.shape(0)
    call.out(shape=(*data[:2], *(1 for _ in _spatial(data))))


def _roi_pool(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    data, rois = call.shape(0), call.shape(1)
    height, width = call.integers("pooled_shape") or (0, 0)
    call.out(shape=(rois[0], data[1], height, width))


def _roi_align(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    data, rois = call.shape(0), call.shape(1)
    height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    call.out(shape=(rois[0], data[1], height, width))


def _grid_sample(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    data, grid = call.shape(0), call.shape(1)
    call.out(shape=(data[0], data[1], *grid[1:-1]))


RULES: dict[str, Rule] = {
    "Conv": conv,
    "ConvInteger": _conv_at(0, 1, ir.DataType.INT32),
    "QLinearConv": _conv_at(0, 3, 7),
    "DeformConv": conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": pool,
    "AveragePool": pool,
    "LpPool": pool,
    "GlobalMaxPool": _global_pool,
    "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_pool,
    "MaxRoiPool": _roi_pool,
    "RoiAlign": _roi_align,
    "GridSample": _grid_sample,
    "LRN": same,
}

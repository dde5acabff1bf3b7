"""How a convolution's filter or a pooling's window moves, with kernel, strides and pads stated."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.operators.window import Window


def window_of(shapes: Shapes, conv: ir.Node, weight_at: int = 1) -> Window | None:
    """Return the window of a Conv; None if it has not two dimensions or its pads are not known.

    Args:
        shapes: Of the graph.
        conv: The node.
        weight_at: Which of its inputs the filters are.
    """
    weight = conv.inputs[weight_at]
    filters = None if weight is None else shapes.shape(weight)
    if filters is None or len(filters) != 4:
        return None
    return _window(shapes, conv, filters[2:])


def pool_window_of(shapes: Shapes, pool: ir.Node) -> Window | None:
    """Return the window of a MaxPool or AveragePool; see `window_of`.

    None too for pads that follow from sizes where the window has holes: ONNX Runtime (1.31.1) pads
    as if it had none.
    """
    if _mode(pool).startswith("SAME") and set(_ints(pool, "dilations") or (1,)) != {1}:
        return None
    return _window(shapes, pool, _ints(pool, "kernel_shape") or ())


def _window(shapes: Shapes, node: ir.Node, sizes: Sequence[object]) -> Window | None:
    x = node.inputs[0]
    shape = None if x is None else shapes.shape(x)
    kernel = tuple(size for size in sizes if isinstance(size, int))
    if shape is None or len(shape) != 4 or len(kernel) != 2:
        return None
    strides, dilations = _ints(node, "strides") or (1, 1), _ints(node, "dilations") or (1, 1)
    mode = _mode(node)
    pads: tuple[int, ...] | None = _ints(node, "pads") or (0, 0, 0, 0)
    if mode == "VALID":
        pads = (0, 0, 0, 0)
    elif mode != "NOTSET":
        pads = _same_pads(shape[2:], kernel, strides, dilations, upper=mode == "SAME_UPPER")
    if pads is None or len(pads) != 4:
        return None
    return Window(
        (kernel[0], kernel[1]), (strides[0], strides[1]), (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
    )  # fmt: skip


def _ints(node: ir.Node, name: str) -> tuple[int, ...] | None:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())


def _mode(node: ir.Node) -> str:
    attribute = node.attributes.get("auto_pad")
    return "NOTSET" if attribute is None or attribute.is_ref() else attribute.as_string()


def _same_pads(
    sizes: tuple[object, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    *,
    upper: bool,
) -> tuple[int, ...] | None:
    """Return the pads of auto_pad, as Conv-1 ... 22 defines them."""
    starts, ends = [], []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (taps - 1) * dilation + 1
        if stride == 1:
            total = reach - 1
        elif isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        else:
            return None
        small, large = total // 2, total - total // 2
        starts.append(small if upper else large)
        ends.append(large if upper else small)
    return (*starts, *ends)

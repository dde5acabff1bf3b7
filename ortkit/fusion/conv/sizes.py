"""Sizes of convolutions as templates see them, nominal where they are not known."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.kernels.conv_anchor import ConvSizes
from ortkit.operators.window import Window
from ortkit.rewrite.scope import Scope
from ortkit.targets.cpu import microarchitecture_at

#: Sizes that are not known: the batch, and the pixels along a side.
NOMINAL_BATCH, NOMINAL_SIDE = 1, 56


def conv_sizes(scope: Scope, conv: ir.Node, window: Window) -> ConvSizes:
    """Return the sizes of a Conv."""
    values = [value for value in (*conv.inputs[:2], conv.outputs[0]) if value is not None]
    given, filters, made = (image_shape(scope, value) for value in values)
    images = [scope.shapes.shape(value) or () for value in (values[0], values[2])]
    groups = conv.attributes.get_int("group", 1)
    return ConvSizes(
        given, made, filters, window.strides, window.dilations, window.pads,
        groups, all(isinstance(size, int) for image in images for size in image[1:]),
        microarchitecture=microarchitecture_at(scope.target.level) if scope.traits.is_host else "",
    )  # fmt: skip


def image_shape(scope: Scope, value: ir.Value) -> tuple[int, int, int, int]:
    """Return the four sizes of an image or of filters."""
    first, second, third, fourth = sizes_of(scope, value)
    return first, second, third, fourth


def sizes_of(scope: Scope, value: ir.Value) -> list[int]:
    """Return a value's sizes."""
    shape = scope.shapes.shape(value) or ()
    nominal = [NOMINAL_BATCH, NOMINAL_SIDE, NOMINAL_SIDE, NOMINAL_SIDE]
    return [s if isinstance(s, int) else n for s, n in zip(shape, nominal, strict=False)]

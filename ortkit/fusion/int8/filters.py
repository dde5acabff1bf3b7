"""Int8 convolutions in a graph: products whose rows are places of an image.

Conv of two DequantizeLinear                  QDQ format
QLinearConv                                   QOperator format

Kernels see images as NHWC, so that chains of them need no Transpose; see `fusion/conv`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, quantized_axis
from ortkit.fusion.int8.grids import Array, channel_grids, dequantized, grid_of, quotient
from ortkit.fusion.int8.products import Finder, IntegerProduct
from ortkit.fusion.int8.weights import Sizes, Weights
from ortkit.fusion.regions.access import is_read_once
from ortkit.graph.shapes.conv_window import window_of
from ortkit.kernels.layouts.conv_filters import Sizes as FilterSizes
from ortkit.kernels.layouts.int8_panels import joined_groups, layout
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.prepack import Prepack
from ortkit.operators.window import Window
from ortkit.refusal import Refused, RefusedError, refusals
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_RANK = 4


@dataclass(frozen=True)
class Filters(Weights):
    """Filters [M, C / groups, kh, kw], of a depthwise convolution [C, 1, kh, kw].

    Kernels read as many groups as one, with zeros between them, as fill whole panels.

    Args:
        window: How they move.
        groups: Of channels.
        is_depthwise: Whether each channel has one of its own.
        packing: Given the filters' sizes, groups and dilations, how kernels read them; None as
            long as no template takes them.
        has_points: Whether single pixels are convolved as all others; see `ConvAnchor`.
        is_planar: Whether kernels read the image as NCHW.
    """

    window: Window
    groups: int
    is_depthwise: bool
    packing: Callable[[FilterSizes, int, tuple[int, int]], Prepack] | None = None
    has_points: bool = False
    is_planar: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, C, kh and kw."""
        tensor = self.value.const_value
        assert tensor is not None
        columns, depth, height, width = tensor.shape.numpy()
        return columns, depth, height, width

    @property
    def columns(self) -> int:
        """See `Weights`."""
        return self.sizes[0]

    @property
    def joined(self) -> int:
        """How many groups are read as one; 1 of a depthwise convolution."""
        return 1 if self.is_depthwise else joined_groups(self.columns, self.groups)

    @property
    def depth(self) -> int:
        """Channels that a filter is multiplied with, those of zeros included."""
        return self.sizes[1] * self.joined

    @property
    def is_matrix(self) -> bool:
        """Whether each pixel is multiplied by one matrix."""
        return self.window.is_point and self.groups == self.joined and not self.has_points

    @property
    def layout(self) -> Prepack:
        """See `Weights`."""
        columns, _, height, width = self.sizes
        if self.is_matrix:
            return layout(self.depth, columns)
        assert self.packing is not None
        sizes = columns, self.depth, height, width
        return self.packing(sizes, self.groups // self.joined, self.window.dilations)

    @property
    def can_be_narrow(self) -> bool:
        """See `Weights`."""
        return not self.is_depthwise

    def sums(self, writer: NodeWriter, x: str, weights: str, zero: str) -> str:
        """See `Weights`: with images as NHWC, but for x if it `is_planar`."""
        zeros = [zero] if zero else []
        if self.is_matrix:
            return writer.op("MatMulInteger", x, weights, *zeros)
        planar = x if self.is_planar else writer.op("Transpose", x, perm=_TO_NCHW)
        attributes: dict[str, object] = dict(self.window.attributes)
        attributes["group"] = self.groups // self.joined
        made = writer.op("ConvInteger", planar, weights, *zeros, **attributes)
        return writer.op("Transpose", made, perm=_TO_NHWC)

    def fits(self, given: Sizes, made: Sizes) -> bool:
        """See `Weights`."""
        columns, depth = self.sizes[:2]
        channels = depth * self.groups
        return (given[1:2], made[1:2]) == ((channels,), (columns,)) and given[:1] == made[:1]

    def lie(self, sizes: Sizes, *, is_x: bool = False) -> Sizes:
        """See `Weights`."""
        if is_x and self.is_planar:
            return sizes
        return tuple(sizes[axis] for axis in _TO_NHWC)

    @property
    def column_axis(self) -> int:
        """See `Weights`."""
        return 1 if self.is_matrix else 0

    @property
    def result_axis(self) -> int:
        """See `Weights`."""
        return -3

    @property
    def has_zeros_around(self) -> bool:
        """See `Weights`."""
        return any(self.window.pads)

    def _unpacked(self, array: Array) -> Array:
        array = self._joined(array) if self.joined > 1 else array
        return array.reshape(self.columns, self.depth).T if self.is_matrix else array

    def _joined(self, array: Array) -> Array:
        """Return the filters of several groups each as those of one, with zeros elsewhere."""
        columns, depth, height, width = self.sizes
        made = np.full((columns, self.depth, height, width), self.middle, array.dtype)
        group = np.arange(columns) // (columns // self.groups) % self.joined
        for number in range(self.joined):
            at = slice(number * depth, (number + 1) * depth)
            made[group == number, at] = array[group == number]
        return made


@refusals
def find_convolution(scope: Scope, node: ir.Node) -> IntegerProduct | Refused | None:
    """Return the int8 convolution of a node; None if it is none, `Refused` if kernels lack it."""
    if node.domain or node.op_type not in ("Conv", "QLinearConv"):
        return None
    finder = _Finder(scope, node)
    return finder.of_floats() if node.op_type == "Conv" else finder.of_operator()


class _Finder(Finder):
    """One look at a node."""

    def of_floats(self) -> IntegerProduct | None:
        """Conv of what is dequantized."""
        wide = self.input(1)
        node = None if wide is None else wide.producer()
        if node is None or not is_op(node, "DequantizeLinear"):
            return None
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        weight = self._filters(self.folded(node, _RANK) or node.inputs[0], zero)
        axis, block = quantized_axis(Site(self.scope, node, ""), node)
        scales = self.scales(node.inputs[1], weight)
        if scales is None or block or (scales.ndim and axis):
            raise RefusedError("its scales are not one for each filter")
        source, weight, before = self._padded(weight)
        steps, from_zero = self._steps(weight)
        scale, given = np.asarray(steps * scales, np.float32), self.input(2)
        added, bias = (None, None) if given is None else self.biases(given, scale, weight)
        if given is not None and added is None and bias is None:
            raise RefusedError("its bias has another scale than its sums, or is no constant")
        return self._convolution(IntegerProduct(
            (*before, self.node), source, from_zero, weight, scale, added, bias=bias,
            is_merged=not steps.ndim,
        ))  # fmt: skip

    def _steps(self, weight: Filters) -> tuple[Array, int | Array]:
        """Return the scale of what is convolved, or one for each channel, and what is 0 there."""
        value = self.input(0)
        x, wide = dequantized(self.scope, value), None if value is None else value.producer()
        if x is not None:
            return np.asarray(x[1].scale), x[1].zero
        assert wide is not None
        assert wide.inputs[0] is not None
        if self.dtype(wide.inputs[0]) != ir.DataType.UINT8:
            raise RefusedError("its activations are not uint8")
        if not weight.is_depthwise:
            raise RefusedError("its activations have no constant grid for all channels")
        grids = channel_grids(self.scope, wide, weight.columns, weight.result_axis)
        if grids is None:
            raise RefusedError("its activations have no constant grid for each channel")
        if grids.zero is None and weight.has_zeros_around:
            raise RefusedError("it has pads, and its activations another zero in each channel")
        return grids.scales, grids.zeros if grids.zero is None else grids.zero

    def of_operator(self) -> IntegerProduct:
        """QLinearConv."""
        x, grid = self.input(0), grid_of(self.scope, self.input(1), self.input(2))
        result = grid_of(self.scope, self.input(6), self.input(7))
        weight = self._filters(self.input(3), self.input(5))
        scales = self.scales(self.input(4), weight)
        if x is None or grid is None or result is None or scales is None:
            raise RefusedError("its activations are not uint8 of one constant grid")
        added, given = None, self.input(8)
        if given is not None:
            added = self.row(given, weight.columns, np.int32)
            if added is None:
                raise RefusedError("its bias is no constant")
        scale = quotient(np.asarray(grid.scale * scales, np.float32), result.scale)
        return self._convolution(
            IntegerProduct((self.node,), x, grid.zero, weight, scale, added, grid=result)
        )

    def _convolution(self, product: IntegerProduct) -> IntegerProduct:
        found = self.checked(product)
        if found is None:
            raise RefusedError("its activations are not uint8, or of other sizes")
        sizes = [
            size
            for value in (found.x, found.end)
            for size in (self.scope.shapes.shape(value) or ())[1:]
        ]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise RefusedError("its images are of unknown size")
        return found

    def _filters(self, value: ir.Value | None, zero: ir.Value | None) -> Filters:
        """Return the filters, if there are kernels for them."""
        middle, window = self.middle(value, zero, _RANK), self._window()
        if value is None or middle is None or value.const_value is None:
            raise RefusedError("its filters are no constant bytes around the middle of their type")
        columns, depth = value.const_value.shape.numpy()[:2]
        group = self.node.attributes.get("group")
        groups = 1 if group is None else group.as_int()
        if groups < 1 or columns % groups:
            raise RefusedError("its groups have no equal numbers of filters")
        is_depthwise = groups == columns and depth == 1 and groups != 1
        return Filters(value, middle, window, groups, is_depthwise)

    def _padded(self, weight: Filters) -> tuple[ir.Value, Filters, tuple[ir.Node, ...]]:
        """Return what is convolved without a Pad of zeros in front, whose pads the window takes.

        What is padded is rounded to the grid that it had, which changes no number.
        """
        value = self.input(0)
        producer = None if value is None else value.producer()
        source = None if producer is None else producer.inputs[0]
        if source is None or not is_op(producer, "DequantizeLinear"):
            raise RefusedError("its filters are quantized, and its activations are not")
        nothing, x = (source, weight, ()), dequantized(self.scope, value)
        if x is None:
            return nothing
        grid = x[1]
        rounding = source.producer()
        if rounding is None or not is_op(rounding, "QuantizeLinear"):
            return nothing
        pad = None if rounding.inputs[0] is None else rounding.inputs[0].producer()
        if pad is None or pad.op_type != "Pad" or pad.domain:
            return nothing
        wide = dequantized(self.scope, pad.inputs[0])
        pads = self._zeros_around(pad)
        values = (self.input(0), source, pad.outputs[0], *pad.inputs[:1])
        if wide is None or wide[1] != grid or pads is None:
            return nothing
        if not all(value is not None and is_read_once(value) for value in values):
            return nothing
        widening = None if pad.inputs[0] is None else pad.inputs[0].producer()
        wanted = tuple(a + b for a, b in zip(weight.window.pads, pads, strict=True))
        window = replace(weight.window, pads=(wanted[0], wanted[1], wanted[2], wanted[3]))
        assert widening is not None
        return wide[0], replace(weight, window=window), (widening, pad, rounding)

    def _zeros_around(self, pad: ir.Node) -> tuple[int, ...] | None:
        """Return the top, left, bottom and right pads of zeros; None for any other Pad."""
        mode = pad.attributes.get("mode")
        numbers = self.scope.array(pad.inputs[1], 2 * _RANK) if len(pad.inputs) > 1 else None
        if numbers is None or numbers.size != 2 * _RANK:
            return None
        if mode is not None and mode.as_string() != "constant":
            return None
        if any(value is not None for value in pad.inputs[3:]):
            return None
        if not self._is_zero(pad.inputs[2] if len(pad.inputs) > 2 else None):
            return None
        around = [int(number) for number in numbers.flat]
        if min(around) < 0 or any(around[axis] or around[axis + _RANK] for axis in (0, 1)):
            return None
        return around[2], around[3], around[6], around[7]

    def _is_zero(self, value: ir.Value | None) -> bool:
        """Say whether a value that may be absent is the number 0, quantized or not."""
        if value is None:
            return True
        wide = dequantized(self.scope, value)
        number = self.scope.array(value if wide is None else wide[0], 1)
        zero = 0 if wide is None else wide[1].zero
        return number is not None and number.size == 1 and bool(number.reshape(()) == zero)

    def _window(self) -> Window:
        x, node = self.input(0), self.node
        given = None if x is None else self.shape(x)
        if given is None or len(given) != _RANK:
            raise RefusedError("it is not over two dimensions")
        window = window_of(self.scope.shapes, node, 3 if node.op_type == "QLinearConv" else 1)
        if window is None:
            raise RefusedError("its pads are not known")
        return window

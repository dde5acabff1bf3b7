"""Convolutions on 8-bit integers: QuantizeLinear and DequantizeLinear around what was calibrated.

ONNX Runtime makes integer kernels of such groups when it loads the model, so the model stays in
standard operators. What lies between two convolutions is quantized too where it has such a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import is_constant
from ortkit.operators import where
from ortkit.precision.building import Builder
from ortkit.precision.forms import activated
from ortkit.precision.products import Product
from ortkit.precision.weight_quantization import by_channel, shift

_U8, _FLOAT = ir.DataType.UINT8, ir.DataType.FLOAT
#: Operators that ONNX Runtime computes on 8-bit integers between quantized values.
_COMPUTED = frozenset(
    {"Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Relu",
     "Sigmoid"}
)  # fmt: skip
#: Operators that only move numbers: what they give has the scale of what they read.
_MOVED = where(reshapes=True) | {"MaxPool", "Transpose"}
#: What is absorbed by the rounding behind it.
_ABSORBED = frozenset({"Clip", "Relu"})

#: Operators whose values are rounded between convolutions.
CARRIED = _COMPUTED | _ABSORBED

#: Half of what 32 bits hold: the sum of the products comes on top.
_LARGEST_BIAS = 2.0**30
_TINY = float(np.finfo(np.float32).tiny)

Range = tuple[float, float]


@dataclass(frozen=True)
class Grid:
    """The 8-bit numbers that stand for a value: (number - zero) * scale."""

    scale: np.float32
    zero: np.uint8

    @staticmethod
    def of(limits: Range) -> Grid:
        """Return the grid over a range; zero is always one of its numbers."""
        low, high = min(limits[0], 0.0), max(limits[1], 0.0)
        scale = np.float32((high - low) / 255.0)
        if not scale > np.finfo(np.float32).tiny:
            return Grid(np.float32(1.0), np.uint8(0))
        return Grid(scale, np.uint8(np.clip(np.rint(-low / scale), 0, 255)))


@dataclass(frozen=True, eq=False)
class StaticInt8:
    """A convolution between QuantizeLinear and DequantizeLinear, weights by channel."""

    product: Product
    ranges: Mapping[str, Range]
    """What was calibrated, by the names of values."""
    method: str
    bits: int = 8
    means: np.ndarray | None = None
    """Of the channels of what it reads; see `shifts.py`."""

    @property
    def name(self) -> str:
        """The form with how its ranges were found."""
        return f"int8-{self.method}"

    @property
    def feeds_pooling(self) -> bool:
        """Whether a MaxPool reads it, which ONNX Runtime moves QuantizeLinear in front of.

        Of bytes it is fast only behind a convolution on integers (1.31.1: 9 ms instead of 0.1 in
        a ResNet-50). So a convolution in float32 in front of it costs more than it saves.
        """
        return any(
            use.node.op_type == "MaxPool" and use.node.domain == ""
            for use in self.product.last.outputs[0].uses()
        )

    def emit(self, build: Builder) -> ir.Value:
        """Make the group, with roundings at both ends."""
        grid = Grid.of(self.ranges[self.product.x.name or ""])
        x = rounded(build, self.product.x, grid)
        value = activated(build, self.product, self.convolve(build, x, grid))
        return rounded(build, value, Grid.of(self.ranges[self.product.key]))

    def convolve(self, build: Builder, x: ir.Value, grid: Grid) -> ir.Value:
        """Make the convolution alone, on what is rounded to a grid."""
        product = self.product
        bias = product.bias_array()
        # A channel of tiny weights has steps that no 32 bits of its bias would be enough for.
        reach = 0.0 if bias is None else np.maximum(np.abs(bias) / _LARGEST_BIAS, _TINY)
        numbers, scales = by_channel(product.array(), self.bits, np.asarray(reach / grid.scale))
        name = product.weight.name
        inputs = [
            x,
            _widened(build, build.constant(numbers, f"{name}/int8"), scales, np.int8(0), name),
        ]
        bias = self._corrected(bias, numbers, scales)
        if bias is not None:
            steps = (grid.scale * scales).astype(np.float32)
            whole = np.rint(np.clip(bias / steps, -_LARGEST_BIAS, _LARGEST_BIAS))
            name = f"{product.key}/bias" if product.bias is None else product.bias.name
            number = build.constant(whole.astype(np.int32), f"{name}/int32")
            inputs.append(_widened(build, number, steps, np.int32(0), name))
        return build.again(product.node, inputs, f"{product.key}/int8")

    def _corrected(
        self, bias: np.ndarray | None, numbers: np.ndarray, scales: np.ndarray
    ) -> np.ndarray | None:
        """Return the bias without what the rounded weight shifts: float64 [n]."""
        if self.means is None:
            return None if bias is None else bias.astype(np.float64)
        weight = numbers * scales.reshape(-1, *[1] * (numbers.ndim - 1))
        before = 0.0 if bias is None else bias.astype(np.float64)
        return np.asarray(before - shift(self.product.array(), weight, self.means))


def has_ranges(product: Product, ranges: Mapping[str, Range]) -> bool:
    """Say whether a convolution's ends were calibrated."""
    return product.x.name in ranges and product.key in ranges


def rounded(build: Builder, value: ir.Value, grid: Grid) -> ir.Value:
    """Make the pair that rounds a value to a grid."""
    scale = build.constant(np.asarray(grid.scale), f"{value.name}/scale")
    zero = build.constant(np.asarray(grid.zero), f"{value.name}/zero")
    number = build.one("QuantizeLinear", [value, scale, zero], f"{value.name}/uint8", dtype=_U8)
    return build.one("DequantizeLinear", [number, scale, zero], f"{value.name}/rounded")


def lower_convolutions(
    model: ir.Model, build: Builder, forms: Sequence[StaticInt8], ranges: Mapping[str, Range]
) -> None:
    """Let convolutions, and what lies between them, be computed on 8-bit integers.

    Args:
        model: The model, changed in place.
        build: Builds the model.
        forms: Of products of the model, which have ranges.
        ranges: By the names of values.
    """
    graph = model.graph
    chosen = {form.product.node: form for form in forms}
    absorbed = {form.product.last for form in forms} - set(chosen)
    grids = _grids(model, chosen, absorbed, ranges)
    for value in list(grids):
        _round_for_all(graph, build, value, grids[value])
    for node, form in chosen.items():
        source, value = node.inputs[0], node.outputs[0]
        assert source is not None
        made = form.convolve(build, source, grids[form.product.x])
        graph.insert_after(node, build.take())
        value.replace_all_uses_with(made, replace_graph_outputs=True)
        made.name, value.name = value.name, made.name
        made.shape, made.type = value.shape, value.type
        graph.remove(node, safe=True)


def _grids(
    model: ir.Model,
    chosen: Mapping[ir.Node, StaticInt8],
    absorbed: set[ir.Node],
    ranges: Mapping[str, Range],
) -> dict[ir.Value, Grid]:
    """Return the values that are rounded, each with its grid."""
    found: dict[ir.Value, Grid] = {}

    def note(value: ir.Value) -> None:
        if value not in found:
            found[value] = Grid.of(ranges[value.name or ""])

    for node in model.graph:
        if (form := chosen.get(node)) is not None:
            note(form.product.x)
            note(form.product.last.outputs[0])
        elif node not in absorbed and _may_carry(model, node, found, ranges):
            result = node.outputs[0]
            source = node.inputs[0]
            if node.op_type in _MOVED and source is not None:
                found[result] = found[source]
            elif not _is_absorbed_by_reader(node, ranges):
                note(result)
            else:
                note(next(iter(result.consumers())).outputs[0])
    return found


def _may_carry(
    model: ir.Model, node: ir.Node, grids: Mapping[ir.Value, Grid], ranges: Mapping[str, Range]
) -> bool:
    """Say whether a node computes on 8-bit integers what it reads as such."""
    if node.domain != "" or len(node.outputs) != 1 or node.outputs[0] in grids:
        return False
    if node.op_type in _MOVED or node.op_type in _ABSORBED:
        data: Iterable[ir.Value | None] = node.inputs[:1]
    elif node.op_type in _COMPUTED:
        data = node.inputs
    else:
        return False
    values = list(data)
    if any(value is None or value not in grids for value in values):
        return False
    rest = [value for value in node.inputs[len(values) :] if value is not None]
    if node.op_type in _ABSORBED and not all(is_constant(value, model) for value in rest):
        return False
    result = node.outputs[0]
    has_range = result.name in ranges or node.op_type in _MOVED
    return has_range and not result.is_graph_output()


def _is_absorbed_by_reader(node: ir.Node, ranges: Mapping[str, Range]) -> bool:
    """Say whether a sum's only reader is a Relu or Clip, behind which it is rounded."""
    value = node.outputs[0]
    uses = list(value.uses())
    if node.op_type not in ("Add", "Mul") or len(uses) != 1 or value.is_graph_output():
        return False
    reader = uses[0].node
    return (
        reader.op_type in _ABSORBED
        and reader.domain == ""
        and uses[0].idx == 0
        and reader.graph is node.graph
        and reader.outputs[0].name in ranges
    )


def _round_for_all(graph: ir.Graph, build: Builder, value: ir.Value, grid: Grid) -> None:
    """Let all that read a value read it rounded; ONNX Runtime fuses no value that others read."""
    producer = value.producer()
    # An input that is an output too stays both, under its name.
    uses, is_output = list(value.uses()), value.is_graph_output() and producer is not None
    made = rounded(build, value, grid)
    nodes = build.take()
    if producer is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(producer, nodes)
    made.shape = value.shape
    for use in uses:
        use.node.replace_input_with(use.idx, made)
    if is_output:
        made.name, value.name = value.name, made.name
        made.shape, made.type, made.doc_string = value.shape, value.type, value.doc_string
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = made


def _widened(
    build: Builder, number: ir.Value, scales: np.ndarray, zero: np.generic, name: str | None
) -> ir.Value:
    """Make the DequantizeLinear of a constant, a scale for each index of its first axis."""
    inputs = [
        number,
        build.constant(scales, f"{name}/scales"),
        build.constant(np.full(scales.shape, zero), f"{name}/zeros"),
    ]
    return build.one("DequantizeLinear", inputs, f"{name}/widened", {"axis": 0})

"""Convolutions in bfloat16: which have a kernel, and their nodes.

Before:
    y = Relu(Add(Conv(x, W, b), x2))
After:
    y = Relu(Add(Conv(widened(x16), unpacked(W16), b), widened(x2_16)))

W16 is packed as `ortkit.kernels.layouts.bf16_blocks` says. What a convolution computes is rounded
once for all that read it, and so is what it is added to: between two kernels only bfloat16 is in
memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.shapes.conv_window import window_of
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.library import refusal
from ortkit.kernels.layouts import bf16_blocks
from ortkit.operators import where
from ortkit.precision.building import Builder
from ortkit.precision.forms import activated
from ortkit.precision.packed import rounded_once, unpacked_matrix, widened
from ortkit.precision.products import Product
from ortkit.precision.unfused import PRODUCT
from ortkit.targets.target import Target

#: Fewer multiply-adds for an element that is read cost less than rounding and changing layouts.
_LEAST_DEPTH = 16
#: What activations are made of, and of how many nodes in a row.
_ACTIVATIONS = where(activation=True) | {"Mul", "QuickGelu"}
_LONGEST_ACTIVATION = 4


def convolution_refusal(product: Product, shapes: Shapes, level: str) -> str:
    """Return why a convolution has no kernel in bfloat16, empty if it has.

    Args:
        product: A convolution.
        shapes: Of its model.
        level: Of processors, or `native`.
    """
    node, weight = product.node, product.array()
    shape = shapes.shape(product.x)
    group = node.attributes.get("group")
    if group is not None and group.as_int() != 1:
        return "it has groups: their sums are too short for bfloat16 to pay"
    window = window_of(shapes, node)
    if shape is None or window is None or len(shape) != 4:
        return "it is not over two dimensions, or its pads are not known"
    batch, channels, height, width = shape
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        return "the size of its images is not known"
    if height * width == 1:
        return "it is over single pixels: a layer that is not worth a change of its type"
    columns, depth = weight.shape[0], weight[0].size
    if depth < _LEAST_DEPTH:
        return f"only {depth} numbers are multiplied for each result"
    geometry = bf16_blocks.Geometry(
        (height, width), channels, window.kernel, window.strides, window.pads, window.dilations
    )
    result = shapes.shape(node.outputs[0])
    if result is None or len(result) != 4:
        return "the size of its result is not known"
    rows = (str(batch) if not isinstance(batch, int) else batch, *_static(result[2:]))
    if len(rows) != 3:
        return "the size of its result is not known"
    wanted = bf16_blocks.Product(
        rows, depth, columns, geometry=None if window.is_point else geometry
    )
    found = refusal(bf16_blocks.signature_of(wanted), Target("cpu", level), "tvm")
    return "" if found is None else found.reason


def _static(sizes: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if isinstance(size, int))


def emit_convolution(
    build: Builder, product: Product, rounded: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Make a convolution of what is rounded and a packed filter.

    Args:
        build: Where to make it.
        product: A convolution.
        rounded: What it reads, in bfloat16.

    Returns:
        What the convolution gives, and what stands for the product: with its activation.
    """
    key, weight = product.key, product.array()
    columns, channels, *kernel = weight.shape
    name = f"{product.weight.name}/bf16"
    wide = widened(build, rounded, f"{key}/wide")
    depth = weight[0].size
    matrix = unpacked_matrix(build, bf16_blocks.pack_filter(weight), (depth, columns), name)
    sizes = build.sizes([*kernel, channels, columns], f"{name}/sizes")
    shaped = build.one("Reshape", [matrix, sizes], f"{name}/filter")
    transposed = build.one("Transpose", [shaped], f"{name}/planar", {"perm": [3, 2, 0, 1]})
    transposed.shape = ir.Shape(weight.shape)
    inputs = [wide, transposed] if product.bias is None else [wide, transposed, product.bias]
    value = build.again(product.node, inputs, f"{key}{PRODUCT}")
    return value, activated(build, product, value)


@dataclass(frozen=True)
class Between:
    """What lies between convolutions in bfloat16, to be rounded too."""

    graph: ir.Graph
    """The main graph."""
    build: Builder
    made: Mapping[ir.Value, int]
    """Results of convolutions in bfloat16, before activations, by their place in the graph."""
    rounded: dict[ir.Value, ir.Value]
    """What is rounded for convolutions, to what; gets what is rounded here."""

    def round_sums(self) -> None:
        """Let sums of convolutions' results read what they add in bfloat16."""
        for add in list(self.graph):
            if add.op_type != "Add" or add.domain or len(add.inputs) != 2:
                continue
            index = _residual(add, self.made, self.rounded)
            if index is not None:
                self._read_rounded(add, index, "added")

    def round_depthwise(self) -> None:
        """Let depthwise convolutions, which stay in float32, read their one source in bfloat16.

        What lies between them and a convolution in bfloat16 is a net's largest values.
        """
        for conv in list(self.graph):
            source = conv.inputs[0] if conv.op_type == "Conv" and not conv.domain else None
            if source is None or not _is_depthwise(conv):
                continue
            if not _is_of_convolution(source, self.made) or len(source.uses()) != 1:
                continue
            if not source.is_graph_output():
                self._read_rounded(conv, 0, "filtered")

    def round_pools(self) -> None:
        """Let poolings whose largest values are rounded read what is rounded: that is the same."""
        for pool in list(self.graph):
            source = pool.inputs[0] if pool.op_type == "MaxPool" and not pool.domain else None
            if source is None or not _is_of_convolution(source, self.made):
                continue
            result, *indices = pool.outputs
            if any(value.uses() or value.is_graph_output() for value in indices):
                continue  # of equal numbers, others may be found first
            is_read_rounded = result in self.rounded and len(result.uses()) == 1
            if is_read_rounded and not result.is_graph_output():
                self._read_rounded(pool, 0, "pooled")

    def _read_rounded(self, node: ir.Node, index: int, name: str) -> None:
        value = node.inputs[index]
        assert value is not None
        if value not in self.rounded:
            self.rounded[value] = rounded_once(self.build, value)
            self.build.insert_after(self.graph, value)
        wide = widened(self.build, self.rounded[value], f"{value.name}/{name}")
        self.graph.insert_before(node, self.build.take())
        node.replace_input_with(index, wide)


def _is_depthwise(conv: ir.Node) -> bool:
    group, weight = conv.attributes.get("group"), conv.inputs[1]
    shape = None if weight is None else weight.shape
    if group is None or group.is_ref() or shape is None or len(shape) != 4:
        return False
    return group.as_int() > 1 and (shape[0], shape[1]) == (group.as_int(), 1)


def _is_of_convolution(value: ir.Value, made: Collection[ir.Value]) -> bool:
    """Say whether a value is some convolution's result, after an activation if there is one."""
    for _ in range(_LONGEST_ACTIVATION):
        if value in made:
            return True
        node = value.producer()
        if node is None or node.op_type not in _ACTIVATIONS or node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return False


def _residual(
    add: ir.Node, made: Mapping[ir.Value, int], rounded: Mapping[ir.Value, ir.Value]
) -> int | None:
    """Return which operand of a sum is to be rounded; the other is a convolution's result."""
    one, other = add.inputs
    if one is None or other is None or one is other or one.shape != other.shape:
        return None
    indices = [made.get(value, -1) if len(value.uses()) == 1 else -1 for value in (one, other)]
    if max(indices) < 0:
        return None
    if min(indices) >= 0:
        # The kernel of the first one adds.
        return indices.index(max(indices))
    index = 1 - indices.index(max(indices))
    return index if (other if index else one) in rounded else None

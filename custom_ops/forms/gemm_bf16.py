"""A matrix product or a convolution of bfloat16, as a region's body has it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx

from ortkit.kernels.layouts.bf16_blocks import filter_layout, layout
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.operators.window import Window
from ortkit.refusal import Refused, needed, refusals

from .body import TO_NCHW, TO_NHWC, Body, integer, integers
from .casts import FLOAT, before_rounding, source_of_cast, wide_input
from .conv import window_of
from .finish import Finish, read_finish

#: Of the Transpose that unpacks a weight.
_PERM = layout(1, 1).perm


@dataclass(frozen=True)
class Patches:
    """Of a convolution: a row of A is what one pixel of the result is made from.

    Args:
        window: How the filter moves.
        channels: Of the input.
        image: Height and width of the input.
        result: Height and width of the result.
    """

    window: Window
    channels: int
    image: tuple[int, int]
    result: tuple[int, int]


@dataclass(frozen=True)
class ProductForm:
    """finish(A W); numbers are the region's inputs.

    Args:
        signature: The region's.
        a: [..., depth], bfloat16, or float32 that is rounded first; of a convolution NHWC.
        weight: As `ortkit.kernels.layouts.bf16_blocks.pack_weight` packs it.
        depth: K.
        columns: N.
        finish: What is computed on each result.
        patches: How rows of A lie in the input of a convolution (im2col); None if they are the
            input's rows.
        gate: float32 [N, 1, 1, depth], what pixels [N, H, W, depth] are multiplied by before they
            are rounded; None if there is none.
    """

    signature: RegionSignature
    a: int
    weight: int
    depth: int
    columns: int
    finish: Finish
    patches: Patches | None = None
    gate: int | None = None

    @property
    def leading(self) -> tuple[Extent, ...]:
        """The sizes of the results but for the columns."""
        return tuple(extent_of(dim) for dim in self.signature.outputs[0].shape[:-1])

    @property
    def rows(self) -> Extent:
        """How many rows A has."""
        return product(self.leading)

    @property
    def is_wide(self) -> bool:
        """Whether A is float32."""
        return self.signature.inputs[self.a].dtype == "float32"


@refusals
def read_product(signature: RegionSignature) -> ProductForm | Refused | None:
    """Return the region as a product with a packed weight; None if it is something else."""
    body = Body(signature)
    nodes = [*body.nodes("MatMul"), *body.nodes("Conv")]
    if not any(_is_unpacked(body, node.input[1]) for node in nodes):
        return None
    if len(nodes) != 1:
        return Refused("more than one matrix product")
    (node,) = nodes
    form = needed(
        _read_rows(body, node) if node.op_type == "MatMul" else _read_patches(body, node)
    )
    a, depth, patches, start, leading, gate = form
    columns = signature.outputs[0].shape[-1]
    if depth == 0 or not isinstance(columns, int) or columns == 0:
        return Refused("a matrix product without elements")
    packing = layout(depth, columns)
    if patches is not None:
        packing = filter_layout((columns, patches.channels, *patches.window.kernel))
    weight = body.packed(node.input[1], packing)
    if weight is None:
        return Refused("a packed weight that is taken apart in another way")
    finish = needed(read_finish(body, start, (*leading, columns)))
    return ProductForm(signature, a, weight, depth, columns, finish, patches, gate)


# The input that A is, its depth, its patches, what the product is called, its leading sizes, and
# the gate.
_Left = tuple[int, int, Patches | None, str, tuple[int | str, ...], int | None]


def _read_rows(body: Body, node: onnx.NodeProto) -> _Left | Refused:
    gated = _gated_input(body, node.input[0])
    a, gate = (_rounded_input(body, node.input[0]), None) if gated is None else gated
    if a is None:
        return Refused("a matrix product of something that is no input rounded to bfloat16")
    shape = body.signature.inputs[a].shape
    depth = shape[-1] if shape else ""
    if not isinstance(depth, int):
        return Refused("a matrix product of a depth that is not known")
    if gate is not None and body.signature.inputs[gate].shape != (*shape[:1], 1, 1, depth):
        return Refused("a gate that is not one factor for each channel")
    return a, depth, None, str(node.output[0]), shape[:-1], gate


# ---- operands


def _rounded_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is, as float32, after it was rounded to bfloat16."""
    number = body.inputs.get(before_rounding(body, name) or "")
    dtype = None if number is None else body.signature.inputs[number].dtype
    return number if dtype in ("float32", "bfloat16") else None


def _gated_input(body: Body, name: str) -> tuple[int, int] | None:
    """Return the input and its gate whose product `name` is, as float32, after it was rounded.

    Of the two the gate has one pixel; the other is float32, or bfloat16 made wide.
    """
    product = body.producer(before_rounding(body, name) or "", "Mul")
    if product is None:
        return None
    for one, other in (product.input, product.input[::-1]):
        a, gate = wide_input(body, one), body.inputs.get(other)
        if a is None or gate is None or body.signature.inputs[gate].dtype != "float32":
            continue
        if body.signature.inputs[gate].shape[1:3] == (1, 1):
            return a, gate
    return None


def _is_unpacked(body: Body, name: str) -> bool:
    """Say whether a value may be unpacked from a weight of bfloat16: by what, is seen later."""
    views = ("Reshape", "Slice", "Transpose")
    while (node := body.maker(name)) is not None and node.op_type in views:
        name = node.input[0]
        if integers(node, "perm", ()) == _PERM:
            break
    else:
        return False
    source = source_of_cast(body, name, FLOAT)
    number = body.inputs.get(source or "")
    return number is not None and body.signature.inputs[number].dtype == "bfloat16"


# ---- convolutions


@refusals
def _read_patches(body: Body, conv: onnx.NodeProto) -> _Left | Refused:
    source = body.transposed(conv.input[0], TO_NCHW)
    a = None if source is None else _rounded_input(body, source)
    if a is None or body.signature.inputs[a].dtype != "bfloat16":
        return Refused("a convolution of something that is no NHWC input of bfloat16")
    window = needed(window_of(conv))
    if integer(conv, "group", 1) != 1 or len(conv.input) > 2:
        return Refused("a convolution of groups, or with a bias of its own")
    shape = body.signature.inputs[a].shape
    batch, height, width, channels = shape if len(shape) == 4 else ("",) * 4
    if not (isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)):
        return Refused("a convolution of an image whose size is not known")
    starts = [
        node.output[0] for node in body.nodes("Transpose") if node.input[0] == conv.output[0]
    ]
    if len(starts) != 1 or body.transposed(starts[0], TO_NHWC) is None:
        return Refused("a convolution whose result is not NHWC")
    if min(*window.strides, *window.dilations, *window.kernel, channels) < 1:
        return Refused("a convolution with a stride, dilation or kernel of no size")
    result = _result_size((height, width), window)
    if min(result) < 1:
        return Refused("a convolution without a result")
    patches = Patches(window, channels, (height, width), result)
    return a, prod(window.kernel) * channels, patches, starts[0], (batch, *result), None


def _result_size(image: tuple[int, int], window: Window) -> tuple[int, int]:
    def one(axis: int) -> int:
        covered = window.dilations[axis] * (window.kernel[axis] - 1) + 1
        padded = image[axis] + window.pads[axis] + window.pads[axis + 2]
        return (padded - covered) // window.strides[axis] + 1

    return one(0), one(1)

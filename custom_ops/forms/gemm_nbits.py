"""A matrix product with weights in 4 or 8 bits, as a region's body has it: MatMulNBits."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused

from .body import Body, integer
from .finish import Finish, read_finish

#: Weights that kernels in bfloat16 take apart at once.
STEP = 32
#: The accuracy level of MatMulNBits that lets A be rounded to int8.
INT8_LEVEL = 4
# Columns come in groups of this many.
_COLUMNS = 16
# The one that lets it be rounded to bfloat16.
_BF16_LEVEL = 3
_BLOCKS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class NBitsForm:
    """finish(A W); numbers are the region's inputs.

    Args:
        signature: The region's.
        a: float32 [..., depth].
        weight: uint8 [columns, depth / block, block bits / 8].
        scale: float32, depth / block of each column.
        zero: uint8, of 4 bits two of a column in a byte; None if all are half of the range.
        depth: K.
        columns: N.
        block: Weights with one scale.
        bits: Of a weight, 4 or 8.
        level: The accuracy level, 3 or 4.
        finish: What is computed on each result.
    """

    signature: RegionSignature
    a: int
    weight: int
    scale: int
    zero: int | None
    depth: int
    columns: int
    block: int
    bits: int
    level: int
    finish: Finish

    @property
    def leading(self) -> tuple[Extent, ...]:
        """The sizes of A but for the depth."""
        return tuple(extent_of(size) for size in self.signature.inputs[self.a].shape[:-1])


def read_nbits(signature: RegionSignature) -> NBitsForm | Refused | None:
    """Return the region as a product with weights in 4 or 8 bits; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("MatMulNBits", "com.microsoft")
    if not nodes:
        return None
    if len(nodes) != 1:
        return Refused("more than one matrix product")
    (node,) = nodes
    depth, columns, block = (integer(node, name, 0) for name in ("K", "N", "block_size"))
    bits = integer(node, "bits", 4)
    if refused := _misfit(node, depth, columns, block):
        return refused
    operands = _operands(body, node, bits)
    if isinstance(operands, Refused):
        return operands
    a, weight, scale, zero = operands
    given = signature.inputs[a].shape
    if not given or given[-1] != depth:
        return Refused("a left operand of another depth")
    finish = _finish(body, node, (*given[:-1], columns))
    if isinstance(finish, Refused):
        return finish
    level = integer(node, "accuracy_level", 0)
    return NBitsForm(signature, a, weight, scale, zero, depth, columns, block, bits, level, finish)


def _finish(body: Body, node: onnx.NodeProto, shape: tuple[int | str, ...]) -> Finish | Refused:
    """Read what follows the product; first of all its bias, if it has one."""
    result = str(node.output[0])
    if len(node.input) < 6 or not node.input[5]:
        return read_finish(body, result, shape)
    product = f"{result}/product"
    bias = onnx.helper.make_node("Add", [product, node.input[5]], [result])
    return read_finish(body, product, shape, [bias])


def _misfit(node: onnx.NodeProto, depth: int, columns: int, block: int) -> Refused | None:
    if integer(node, "bits", 4) not in (4, 8):
        return Refused("weights that are not in 4 or 8 bits")
    if integer(node, "accuracy_level", 0) not in (_BF16_LEVEL, INT8_LEVEL):
        return Refused("an accuracy level that keeps the left operand in float32 or float16")
    if block not in _BLOCKS or depth < 1 or depth % block:
        return Refused(f"blocks that are none of {_BLOCKS}, or do not make up the depth")
    if columns < 1 or columns % _COLUMNS:
        return Refused(f"columns that are no multiple of {_COLUMNS}")
    return None


def _operands(
    body: Body, node: onnx.NodeProto, bits: int
) -> tuple[int, int, int, int | None] | Refused:
    """Return the inputs that A, the weight, its scales and its zeros are."""
    names = [*node.input, *[""] * 6][:6]
    if names[4]:
        return Refused("rows of a weight in another order")
    a, weight, scale, zero = (body.inputs.get(name) for name in names[:4])
    if a is None or weight is None or scale is None or (names[3] and zero is None):
        return Refused("an operand that is computed in the region")
    depth, columns, block = (integer(node, name, 0) for name in ("K", "N", "block_size"))
    blocks = depth // block
    sizes = {weight: ("uint8", columns * depth * bits // 8), scale: ("float32", columns * blocks)}
    sizes |= {} if zero is None else {zero: ("uint8", columns * -(-blocks * bits // 8))}
    specs = body.signature.inputs
    found = {number: (specs[number].dtype, _elements(specs[number])) for number in sizes}
    if found != sizes or specs[a].dtype != "float32":
        return Refused("operands of other types or sizes")
    return a, weight, scale, zero


def _elements(spec: TensorSpec) -> int | None:
    """Return how many elements a tensor has; None if that is not known."""
    return product(extent_of(size) for size in spec.shape).static

"""A matrix product of half precision with weights in 4 bits, as a region's body has it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused, needed, refusals

from .body import Body, integer
from .conv_half import HALF_DTYPES
from .epilogue import Epilogue
from .gemm import epilogue_of

_BITS = 4
_BLOCKS = (32, 64, 128, 256)
# Inputs of MatMulNBits.
_A, _WEIGHT, _SCALE, _ZERO, _ORDER, _BIAS = range(6)


@dataclass(frozen=True)
class NBitsHalf:
    """epilogue(x W, reads ...); numbers are the region's inputs.

    Args:
        signature: The region's.
        x: [..., depth], in half precision.
        weight: uint8 [columns, depth / 2], of any shape.
        scale: Of the type of x, depth / block of each column.
        zero: uint8, two of a column in a byte; None if all are 8.
        reads: What the epilogue reads in addition: rows, or tensors of the result's shape.
        epilogue: Its values are the product, the reads, and the steps.
        rows: Of x, all leading dims.
        depth: K.
        columns: N.
        block: Weights with one scale.
    """

    signature: RegionSignature
    x: int
    weight: int
    scale: int
    zero: int | None
    reads: tuple[int, ...]
    epilogue: Epilogue
    rows: Extent
    depth: int
    columns: int
    block: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, scales and zeros."""
        scales = self.columns * self.depth // self.block
        zeros = 0 if self.zero is None else scales // 2
        return self.columns * self.depth // 2 + 2 * scales + zeros


@refusals
def read_nbits_half(signature: RegionSignature) -> NBitsHalf | Refused | None:
    """Return the region as a product with weights in 4 bits; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("MatMulNBits", "com.microsoft")
    if not nodes:
        return None
    if len(nodes) != 1 or len(signature.outputs) != 1:
        return Refused("more than one matrix product, or result")
    (node,) = nodes
    depth, columns, block = (integer(node, name, 0) for name in ("K", "N", "block_size"))
    if integer(node, "bits", _BITS) != _BITS:
        return Refused("weights that are not in 4 bits")
    if block not in _BLOCKS or depth < 1 or depth % block or columns < 1:
        return Refused(f"blocks that are none of {_BLOCKS}, or do not make up the depth")
    names = [*node.input, *[""] * 6][:6]
    if names[_ORDER]:
        return Refused("rows of a weight in another order")
    operands = [body.inputs.get(name) for name in names[: _ZERO + 1]]
    x, weight, scale, zero = operands
    if x is None or weight is None or scale is None or (names[_ZERO] and zero is None):
        return Refused("an operand that is computed in the region")
    output = signature.outputs[0]
    if output.dtype not in HALF_DTYPES:
        return Refused(f"a product of {output.dtype}")
    blocks = depth // block
    expected = {
        weight: ("uint8", columns * depth // 2), scale: (output.dtype, columns * blocks),
        **({} if zero is None else {zero: ("uint8", columns * -(-blocks // 2))}),
    }  # fmt: skip
    inputs = signature.inputs
    found = {
        number: (inputs[number].dtype, product(map(extent_of, inputs[number].shape)).static)
        for number in expected
    }
    if found != expected:
        return Refused("weights, scales or zeros of other types or sizes")
    shape = inputs[x].shape
    if inputs[x].dtype != output.dtype or not shape or output.shape != (*shape[:-1], columns):
        return Refused("a product of other sizes or types than rows and a matrix")
    if shape[-1] != depth:
        return Refused("a left operand of another depth")
    reads, epilogue = needed(
        epilogue_of(body, [_as_gemm(node)], (weight,), body.function.output[0])
    )
    if any(inputs[read].dtype != output.dtype for read in reads):
        return Refused("an operand of another type than the result's")
    return NBitsHalf(
        signature, x, weight, scale, zero, reads, epilogue, product(map(extent_of, shape[:-1])),
        depth, columns, block,
    )  # fmt: skip


def _as_gemm(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a product with the same operands, result and bias, of the form that a Gemm has."""
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    return onnx.helper.make_node("Gemm", [node.input[_A], node.input[_WEIGHT], bias], node.output)

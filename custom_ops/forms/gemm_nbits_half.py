"""Matrix products of half precision with weights in 4 bits, as a region's body has them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused, needed, refusals

from .body import Body, integer
from .conv_half import HALF_DTYPES
from .epilogue import Epilogue
from .gemm import MOST_OPERANDS, epilogue_of
from .gemm_norms import Rows, read_rows

_BITS, _MOST_PRODUCTS = 4, 2
_BLOCKS = (32, 64, 128, 256)
# Inputs of MatMulNBits.
_A, _WEIGHT, _SCALE, _ZERO, _ORDER, _BIAS = range(6)


@dataclass(frozen=True)
class Matrix:
    """A matrix in 4 bits; numbers are the region's inputs.

    Args:
        weight: uint8 [columns, depth / 2], of any shape.
        scale: Of the type of x, depth / block of each column.
        zero: uint8, two of a column in a byte; None if all are 8.
    """

    weight: int
    scale: int
    zero: int | None


@dataclass(frozen=True)
class NBitsHalf:
    """epilogue(rows matrices[0], rows matrices[1], reads ...); numbers are the region's inputs.

    Args:
        signature: The region's.
        made_of: What the rows are made of, [..., depth], in half precision.
        matrices: One, or two of a gated pair.
        reads: What the epilogue reads in addition: rows, or tensors of the result's shape.
        epilogue: Its values are the products, the reads, and the steps.
        rows: Of x, all leading dims.
        depth: K.
        columns: N of each product.
        block: Weights with one scale.
    """

    signature: RegionSignature
    made_of: Rows
    matrices: tuple[Matrix, ...]
    reads: tuple[int, ...]
    epilogue: Epilogue
    rows: Extent
    depth: int
    columns: int
    block: int

    @property
    def y(self) -> int:
        """The number of the result among all tensors, inputs first."""
        return len(self.signature.inputs) + len(self.signature.outputs) - 1

    @property
    def has_zeros(self) -> bool:
        """Whether a matrix has zeros other than 8."""
        return any(matrix.zero is not None for matrix in self.matrices)


@refusals
def read_nbits_half(signature: RegionSignature) -> NBitsHalf | Refused | None:
    """Return the region as products with weights in 4 bits; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("MatMulNBits", "com.microsoft")
    if not nodes:
        return None
    if len(nodes) > _MOST_PRODUCTS:
        return Refused("more than two matrix products")
    if len({node.input[_A] for node in nodes}) > 1 or len({_sizes(node) for node in nodes}) > 1:
        return Refused("products of other rows, or of matrices of other sizes")
    depth, columns, block = _sizes(nodes[0])
    if any(integer(node, "bits", _BITS) != _BITS for node in nodes):
        return Refused("weights that are not in 4 bits")
    if block not in _BLOCKS or depth < 1 or depth % block or columns < 1:
        return Refused(f"blocks that are none of {_BLOCKS}, or do not make up the depth")
    output, inputs = signature.outputs[-1], signature.inputs
    rows = output.shape[:-1]
    made_of = needed(read_rows(body, str(nodes[0].input[_A]), (*rows, depth)))
    if output.dtype not in HALF_DTYPES:
        return Refused(f"a product of {output.dtype}")
    matrices = tuple(needed(_matrix(body, node)) for node in nodes)
    shape = inputs[made_of.x].shape
    if not shape or output.shape != (*shape[:-1], columns):
        return Refused("a product of other sizes than rows and a matrix")
    if any(inputs[number].dtype != output.dtype for number in made_of.numbers):
        return Refused("rows of another type than the result's")
    if shape[-1] != depth:
        return Refused("a left operand of another depth")
    weights = [matrix.weight for matrix in matrices]
    reads, epilogue = needed(
        epilogue_of(body, [*map(_as_gemm, nodes)], weights, body.function.output[-1])
    )
    # Of a pair with more rows than one the other product is among what is read.
    if len(reads) + len(matrices) > 1 + MOST_OPERANDS:
        return Refused(f"more than {MOST_OPERANDS} further operands")
    if any(inputs[read].dtype != output.dtype for read in reads):
        return Refused("an operand of another type than the result's")
    return NBitsHalf(
        signature, made_of, matrices, reads, epilogue, product(map(extent_of, shape[:-1])),
        depth, columns, block,
    )  # fmt: skip


def _sizes(node: onnx.NodeProto) -> tuple[int, int, int]:
    """Return depth, columns, and the weights of a block."""
    return integer(node, "K", 0), integer(node, "N", 0), integer(node, "block_size", 0)


def _matrix(body: Body, node: onnx.NodeProto) -> Matrix | Refused:
    """Return the inputs that a product's matrix is."""
    names = [*node.input, *[""] * 6][:6]
    if names[_ORDER]:
        return Refused("rows of a weight in another order")
    weight, scale, zero = (body.inputs.get(name) for name in names[_WEIGHT : _ZERO + 1])
    if weight is None or scale is None or (names[_ZERO] and zero is None):
        return Refused("an operand that is computed in the region")
    depth, columns, block = _sizes(node)
    blocks = depth // block
    dtype = body.signature.outputs[-1].dtype
    expected = {
        weight: ("uint8", columns * depth // 2), scale: (dtype, columns * blocks),
        **({} if zero is None else {zero: ("uint8", columns * -(-blocks // 2))}),
    }  # fmt: skip
    inputs = body.signature.inputs
    found = {
        number: (inputs[number].dtype, product(map(extent_of, inputs[number].shape)).static)
        for number in expected
    }
    if found != expected:
        return Refused("weights, scales or zeros of other types or sizes")
    return Matrix(weight, scale, zero)


def _as_gemm(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a product with the same operands, result and bias, of the form that a Gemm has."""
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    return onnx.helper.make_node("Gemm", [node.input[_A], node.input[_WEIGHT], bias], node.output)

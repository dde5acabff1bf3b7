"""Products with a constant matrix that a kernel reads packed: what of a graph one may compute.

How the matrix is packed the anchor says (`ortkit.kernels.anchor.PackedMatrix`). What is done to
each element of the result is done in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir as ir

from ortkit.fusion.regions.cost_model import nominal
from ortkit.fusion.regions.epilogue_ops import EPILOGUE_OPS, is_own_step
from ortkit.fusion.regions.gated import gate_of
from ortkit.fusion.regions.members import is_reshape
from ortkit.graph.io.file_tensors import read_once
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.anchor import Anchor, PackedMatrix
from ortkit.kernels.prepack import Array, Prepack
from ortkit.refusal import Refused, needed, refusals
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: A second level of cache, which holds less than this.
_NEAR_BYTES, _FLOAT_BYTES = 2 << 20, 4


@dataclass(frozen=True)
class Panels:
    """A packed matrix, and the constant that it is packed from.

    Args:
        weight: That constant.
        is_transposed: True if it is stored as [N, K].
        factor: That it is multiplied by.
        packing: Its layout.
    """

    weight: ir.Value
    is_transposed: bool
    factor: float
    packing: Prepack

    def tensor(self) -> ir.TensorProtocol:
        """Return them packed, once they are read; what is read of a file is not kept."""
        tensor = self.weight.const_value
        assert tensor is not None
        return ir.LazyTensor(
            lambda: self._packed(tensor), dtype=tensor.dtype, shape=ir.Shape(self.packing.shape)
        )

    def _packed(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        array = read_once(tensor)
        array = array.reshape(array.shape[-2:])
        matrix = array.T if self.is_transposed else array
        scaled = matrix if self.factor == 1.0 else matrix * matrix.dtype.type(self.factor)
        return ir.tensor(np.ascontiguousarray(self.packing.pack(scaled)))


@dataclass(frozen=True)
class Product:
    """A matmul of `x` and a constant weight, plus `bias`, with the epilogue.

    Args:
        of: What the template says of the matrix.
        level: Of the processors that it is for.
        nodes: All of them, in order; among them may be reshapes of rows.
        x: [..., depth].
        rows: The sizes of what is multiplied, but for the last.
        count: Their product, nominal where it is not known.
        weight: The constant that the product reads.
        depth: The rows of the matrix.
        columns: Its columns.
        is_transposed: True if `weight` is stored as [N, K].
        factor: That `weight` is multiplied by.
        bias: [columns]; None if there is none.
        bias_value: The constant that `bias` is as it lies; None if it is made of one.
        epilogue: What is computed of each result, in order: functions of one value, sums with
            `residual`, or a Split and what makes one value of its halves.
        end: The result.
        is_gated: Whether the epilogue begins with a Split.
        residual: What the epilogue adds beside constants, of the result's shape; None for nothing.
        scale: Factors of the columns of `x`, [images, 1 ..., depth] or one row for all images;
            the first node multiplies them. None if there are none.
    """

    of: PackedMatrix
    level: str
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    rows: tuple[int | str, ...]
    count: int
    weight: ir.Value
    depth: int
    columns: int
    is_transposed: bool
    factor: float
    bias: Array | None
    bias_value: ir.Value | None
    epilogue: tuple[ir.Node, ...]
    end: ir.Value
    is_gated: bool = False
    residual: ir.Value | None = None
    scale: ir.Value | None = None

    @property
    def packing(self) -> Prepack:
        """How its matrix is packed."""
        if self.is_gated:
            return self.of.gated_layout(self.depth, self.columns)
        return self.of.layout(self.level, self.depth, self.columns)

    @property
    def panels(self) -> Panels:
        """Its matrix as the kernel reads it."""
        return Panels(self.weight, self.is_transposed, self.factor, self.packing)


@refusals
def find_product(scope: Scope, node: ir.Node, anchor: Anchor) -> Product | Refused | None:
    """Return a node as a matmul, without its epilogue.

    None if it is none of the anchor's type with a constant matrix; the reason if no kernel would
    do.
    """
    of = anchor.packed
    if of is None or (node.domain, node.op_type) not in anchor.operators:
        return None
    site = Site(scope, node, "")
    x, weight = site.input(0), site.input(1)
    if x is None or scope.is_constant(x) or weight is None or not scope.is_constant(weight):
        return None
    shape, tensor, dtype = scope.shapes.shape(x), weight.const_value, scope.shapes.dtype(x)
    if shape is None or len(shape) < 2 or dtype is None or dtype.numpy().name != anchor.dtype:
        return None
    assert tensor is not None
    sizes = tensor.shape.numpy()
    # Axes of one matrix in front change nothing where there are as many of rows.
    if len(sizes) < 2 or len(sizes) > len(shape) or prod(sizes[:-2]) != 1:
        return Refused(f"its matrix has {len(sizes)} axes")
    if site.int("transA", 0):
        return Refused("what it multiplies is transposed")
    is_transposed = bool(site.int("transB", 0))
    depth, columns = reversed(sizes[-2:]) if is_transposed else sizes[-2:]
    row, value = needed(_bias_of(site, columns))
    count = prod(nominal(size) for size in shape[:-1])
    if count < of.least_rows or min(depth, columns) < of.least_side:
        return Refused(f"{count} rows times a matrix of {depth} x {columns} are too few")
    level = scope.target.resolved().level
    return Product(
        of, level, (node,), x, sizes_as_text(shape[:-1]), count, weight, depth, columns,
        is_transposed, site.float("alpha", 1.0), row, value, (), node.outputs[0],
    )  # fmt: skip


def with_epilogues(scope: Scope, first: Product, longest: int, *, in_place: bool) -> list[Product]:
    """Return a matmul with each of its epilogues, the longest first.

    Args:
        scope: Its graph's.
        first: Without an epilogue.
        longest: Nodes of an epilogue, at most.
        in_place: Whether the product's nodes are replaced where they stand: its epilogue then ends
            at a reshape of the rows, which stays.
    """
    found = [first]
    while len(found[-1].epilogue) < longest:
        longer = _longer(scope, found[-1], in_place=in_place)
        if longer is None:
            break
        found.append(longer)
    return [
        product
        for product in reversed(found)
        if product is first or not is_reshape(product.nodes[-1])
    ]


def with_scale(scope: Scope, product: Product) -> Product | None:
    """Return a product with the node in front that multiplies the columns of its rows.

    None if there is none, or if what it makes stays in the cache: the factors go to the matrix
    again for each tile of rows, which is as slow then.
    """
    node = product.x.producer()
    if node is None or (node.domain, node.op_type) != ("", "Mul") or len(product.x.uses()) > 1:
        return None
    if product.x.is_graph_output() or node.graph is not product.nodes[0].graph:
        return None
    shape = scope.shapes.shape(product.x)
    if shape is None or len(shape) < 3 or not is_far(shape):
        return None
    for x, scale in (node.inputs, node.inputs[::-1]):
        factors = None if scale is None else scope.shapes.shape(scale)
        if x is None or scale is None or factors is None or scope.shapes.shape(x) != shape:
            continue
        if len(factors) == len(shape) and factors[0] in (1, shape[0]):
            inner = (*(1 for _ in shape[1:-1]), shape[-1])
            if tuple(factors[1:]) == inner:
                return replace(product, nodes=(node, *product.nodes), x=x, scale=scale)
    return None


def is_far(shape: Sequence[Size]) -> bool:
    """Say whether float32 of a shape is too large for the cache, one sample if that is unknown."""
    first = shape[0] if isinstance(shape[0], int) else 1
    return first * prod(map(nominal, shape[1:])) * _FLOAT_BYTES >= _NEAR_BYTES


def sizes_as_text(sizes: Sequence[Size]) -> tuple[int | str, ...]:
    """Return sizes as a `TensorSpec` has them."""
    return tuple(size if isinstance(size, int) else str(size) for size in sizes)


def _bias_of(site: Site, columns: int) -> tuple[Array | None, ir.Value | None] | Refused:
    """Return the row that a Gemm adds, and the constant that it is as it lies; None for none."""
    value = site.input(2)
    if value is None:
        return None, None
    array, factor = site.array(value), site.float("beta", 1.0)
    # One column of as many numbers is another sum.
    if array is None or not (_is_row(array, columns) or array.size == 1):
        return Refused("what it adds is not one constant for each column")
    if factor == 1.0 and array.shape == (columns,):
        return array, value
    row = np.broadcast_to(array.reshape(-1), (columns,)) * array.dtype.type(factor)
    return np.asarray(row, array.dtype), None


def _longer(scope: Scope, product: Product, *, in_place: bool) -> Product | None:
    """Return the product with the node that alone reads its result, if a kernel can take it in."""
    uses = list(product.end.uses())
    if len(uses) != 1 or product.end.is_graph_output():
        return None
    node = uses[0].node
    if node.graph is not product.nodes[0].graph or not node.outputs:
        return None
    if in_place and node.op_type == "Split":
        return _gated(scope, product, node)
    nodes, end = (*product.nodes, node), node.outputs[0]
    if is_reshape(node):
        if node.inputs[0] is not product.end or in_place:
            return None
        return replace(product, nodes=nodes, end=end)
    others = [value for value in node.inputs if value is not None and value is not product.end]
    arrays = [scope.array(value, product.columns) for value in others]
    known = [array for array in arrays if array is not None]
    if in_place and len(others) == 1 and not known and _is_residual(scope, product, node):
        return replace(
            product, nodes=nodes, epilogue=(*product.epilogue, node), end=end, residual=others[0]
        )
    if len(known) < len(arrays):
        return None
    if _is_bias(node, known, product):
        kept = others[0] if known[0].ndim == 1 else None
        return replace(product, nodes=nodes, bias=known[0].reshape(-1), bias_value=kept, end=end)
    if not _is_step(node) or scope.shapes.dtype(end) != scope.shapes.dtype(product.x):
        return None
    rank = len(scope.shapes.shape(product.end) or ())
    if any(array.size != 1 or array.ndim > rank for array in known):
        return None
    return replace(product, nodes=nodes, epilogue=(*product.epilogue, node), end=end)


def _is_residual(scope: Scope, product: Product, node: ir.Node) -> bool:
    """Say whether a node adds rows of the result's shape, which come from memory.

    A sum that stays in the cache is left to what reads it, such as a norm.
    """
    if (node.domain, node.op_type) != ("", "Add") or product.residual is not None:
        return False
    shape = scope.shapes.shape(product.end)
    if shape is None or any(scope.shapes.shape(value) != shape for value in node.inputs if value):
        return False
    return is_far(shape)


def _gated(scope: Scope, product: Product, split: ir.Node) -> Product | None:
    """Return a product with the Split of its columns, and the nodes that make one value of it."""
    found = gate_of(scope, product.end, split)
    if found is None or product.epilogue or len(product.weight.uses()) > 1:
        return None
    return replace(
        product, nodes=(*product.nodes, *found), epilogue=found, end=found[-1].outputs[0],
        is_gated=True,
    )  # fmt: skip


def _is_step(node: ir.Node) -> bool:
    return is_own_step(node) or (not node.domain and node.op_type in EPILOGUE_OPS)


def _is_bias(node: ir.Node, others: Sequence[Array], product: Product) -> bool:
    """Say whether a node adds a row to a product that has none yet."""
    if (node.domain, node.op_type) != ("", "Add") or product.bias is not None or product.epilogue:
        return False
    return len(others) == 1 and _is_row(others[0], product.columns)


def _is_row(array: Array, columns: int) -> bool:
    """Say whether an array is one row of `columns` numbers."""
    return array.size == columns and array.shape[-1:] == (columns,)

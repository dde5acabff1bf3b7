"""Regions of products with constant weights on CUDA: a norm before, and what follows, in one node.

A region is one product of rows and a matrix, or two of the same rows that meet (the gated layers
of Shazeer, "GLU Variants Improve Transformer", 2020), with the line of pointwise nodes behind, and
of a single row with its norm where nothing else reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.fusion.choose import Judge
from ortkit.fusion.cost import MINIMUM_GAIN, CostModel, Prediction
from ortkit.fusion.cuda_product_cost import Shape, predict_products
from ortkit.fusion.cuda_tiled_cost import predict_halved, predict_tiled
from ortkit.fusion.describe import describe_region
from ortkit.fusion.families import family_of
from ortkit.fusion.recompute import Candidate
from ortkit.fusion.regions import FusedRegion, region_of
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.scope import Scope

KIND = "product"
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: Longest line of nodes behind a product, and operands that they read besides.
MOST_TAIL, MOST_READS = 8, 4
NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


@dataclass(frozen=True)
class Line:
    """A product, or two that meet, and what follows.

    Args:
        products: MatMul or Gemm, of the same rows.
        tail: The nodes behind, in no order.
        output: The result.
    """

    products: tuple[ir.Node, ...]
    tail: tuple[ir.Node, ...]
    output: ir.Value

    @property
    def nodes(self) -> frozenset[ir.Node]:
        """All of them, with what turns their matrices."""
        turns = (turn_before(one) for one in self.products)
        return frozenset((*self.products, *self.tail, *(one for one in turns if one is not None)))


def cuda_product_candidates(
    scope: Scope,
    graph: ir.Graph,
    judge: Judge,
    cost: CostModel,
    taken: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph that may be faster; none share a node.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        taken: Nodes of other regions.
    """
    places = {node: place for place, node in enumerate(graph)}
    own = set(taken)
    for node in graph:
        if node in own or not is_product(scope, node):
            continue
        line = line_behind(scope, node, own)
        norm = norm_before(line, own)
        shape = shape_of(scope, line, norm)
        prediction = predict_products(shape) if shape.rows == 1 else None
        if prediction is None:
            behind = sum(not _is_bias(scope, line, node) for node in line.tail)
            norm, prediction = None, predict_tiled(replace(shape, tail=behind, is_normed=False))
        if prediction is None:
            continue
        nodes = [*(() if norm is None else (norm,)), *line.nodes]
        nodes.sort(key=places.__getitem__)
        region = replace(region_of(scope, nodes), kind=KIND)
        own.update(line.products)
        one = candidate_of(scope, region, prediction, judge, cost)
        if one.signature is not None:
            own.update(nodes)
        yield one


def candidate_of(
    scope: Scope,
    region: FusedRegion,
    prediction: Prediction,
    judge: Judge,
    cost: CostModel,
    signature: RegionSignature | None = None,
) -> Candidate:
    """Return a region as a candidate, without a signature if it does not pay or has no kernel.

    `signature` is the region's where the nodes as they stand do not describe it.
    """
    if reason := cost.refusal(region, prediction):
        return Candidate(region, None, prediction, reason)
    signature = signature or describe_region(scope, region)
    verdict = judge(signature)
    if verdict is not None:
        return Candidate(region, None, Prediction(0.0, 0.0), verdict.reason)
    return Candidate(region, signature, prediction, "")


def is_product(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node multiplies rows in half precision by a constant matrix."""
    if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return False
    rows, weight = node.inputs[0], matrix_of(node)
    if rows is None or weight is None or not scope.is_constant(weight):
        return False
    if scope.is_constant(rows) or scope.shapes.dtype(rows) not in HALVES:
        return False
    shape, result = scope.shapes.shape(rows), scope.shapes.shape(node.outputs[0])
    if shape is None or result is None or len(shape) < 2 or len(result) != len(shape):
        return False
    is_known = isinstance(shape[-1], int) and isinstance(result[-1], int)
    return is_known and scope.shapes.rank(weight) == 2


def matrix_of(product: ir.Node) -> ir.Value | None:
    """Return the matrix of a product as it lies in the model."""
    turn = turn_before(product)
    return product.inputs[1] if turn is None else turn.inputs[0]


def turn_before(product: ir.Node, place: int = 1) -> ir.Node | None:
    """Return the Transpose of a product's matrix, or other factor, if nothing else reads it."""
    value = product.inputs[place]
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = node.attributes.get("perm")
    is_turned = perm is None or (not perm.is_ref() and _swaps_last(perm.as_ints()))
    return node if is_turned and is_read_once(value) and node.graph is product.graph else None


def _swaps_last(perm: Sequence[int]) -> bool:
    """Say whether a Transpose swaps the last two axes, and nothing else."""
    axes = [*range(len(perm))]
    return len(axes) > 1 and [*perm] == [*axes[:-2], axes[-1], axes[-2]]


def is_turned(product: ir.Node) -> bool:
    """Say whether a product's matrix lies with its depth innermost."""
    is_transposed = "transB" in product.attributes and bool(product.attributes["transB"].as_int())
    return (turn_before(product) is not None) != is_transposed


def takes_sum(scope: Scope, product: ir.Node) -> bool:
    """Say whether a sum behind a product that nothing else reads would go into its kernel."""
    line = Line((product,), (), product.outputs[0])
    return predict_products(replace(shape_of(scope, line, None), tail=1)).gain >= MINIMUM_GAIN


def turns(scope: Scope, product: ir.Node) -> bool:
    """Say whether a product goes into a kernel that would rather have its matrix turned."""
    line = line_behind(scope, product, set())
    shape = shape_of(scope, line, norm_before(line, set()))
    return predict_products(shape).gain >= MINIMUM_GAIN


def halves(scope: Scope, product: ir.Node) -> bool:
    """Say whether a product whose halves meet is faster as two in one kernel.

    It is one kernel fewer and two tensors that are not written: half of what others have to gain.
    """
    shape = shape_of(scope, Line((product,), (), product.outputs[0]), None)
    found = predict_halved(replace(shape, columns=shape.columns // 2, products=2, tail=1))
    return found is not None and found.gain >= MINIMUM_GAIN / 2


def line_behind(
    scope: Scope,
    product: ir.Node,
    taken: set[ir.Node],
    may_join: Callable[[Scope, ir.Node], bool] = is_product,
) -> Line:
    """Return the product with the nodes behind it of which each alone reads what it reads.

    Args:
        scope: Its scope.
        product: Where the line begins.
        taken: Nodes of other regions.
        may_join: Says of a node whether it is a product that this one may meet.
    """
    products, tail, reads = [product], list[ir.Node](), dict[ir.Value, None]()
    value = product.outputs[0]
    while len(tail) < MOST_TAIL and (reader := _only_reader(value)) is not None:
        found = _joined(
            scope, product, reader, value, taken, may_join, is_paired=len(products) > 1
        )
        if found is None or len({*reads, *found.reads}) > MOST_READS:
            break
        products += found.products
        tail += [*found.nodes, reader]
        reads |= dict.fromkeys(found.reads)
        value = reader.outputs[0]
    return Line(tuple(products), tuple(tail), value)


@dataclass(frozen=True)
class _Joined:
    """What a node brings into a line: operands, another product, and the nodes behind that."""

    reads: tuple[ir.Value, ...] = ()
    products: tuple[ir.Node, ...] = ()
    nodes: tuple[ir.Node, ...] = ()


def _joined(
    scope: Scope,
    product: ir.Node,
    reader: ir.Node,
    value: ir.Value,
    taken: set[ir.Node],
    may_join: Callable[[Scope, ir.Node], bool],
    *,
    is_paired: bool,
) -> _Joined | None:
    """Return what `reader` brings besides `value`; None if it ends the line."""
    if reader.graph is not product.graph or reader in taken or not _is_step(scope, reader, value):
        return None
    reads, products, nodes = list[ir.Value](), list[ir.Node](), list[ir.Node]()
    for other in reader.inputs:
        if other is None or other is value or scope.array(other, 1) is not None:
            continue
        is_open = not is_paired and not products
        partner = _partner(scope, product, other, taken, may_join) if is_open else None
        if partner is not None:
            products.append(partner.products[0])
            nodes += partner.nodes
            reads += partner.reads
        elif scope.shapes.dtype(other) == scope.shapes.dtype(value) and (
            scope.shapes.same_shape(other, value)
            or _is_row(scope, other, value)
            or _is_part(scope, other, value, product)
        ):
            reads.append(other)
        else:
            return None
    return _Joined(tuple(reads), tuple(products), tuple(nodes))


def _partner(
    scope: Scope,
    product: ir.Node,
    value: ir.Value,
    taken: set[ir.Node],
    may_join: Callable[[Scope, ir.Node], bool],
) -> _Joined | None:
    """Return the other product of the same rows that `value` is made of, and what is between."""
    nodes, reads = list[ir.Node](), list[ir.Value]()
    while is_read_once(value) and len(nodes) < MOST_TAIL:
        node = value.producer()
        if node is None or node in taken or node is product or node.graph is not product.graph:
            return None
        if may_join(scope, node):
            weights = [scope.shapes.shape(one.inputs[1]) for one in (node, product)]  # type: ignore[arg-type]
            is_alike = node.inputs[0] is product.inputs[0] and weights[0] == weights[1]
            is_same = node.op_type == product.op_type and (
                (turn_before(node) is None) == (turn_before(product) is None)
            )
            return _Joined(tuple(reads), (node,), tuple(nodes)) if is_alike and is_same else None
        sources = [one for one in node.inputs if one is not None and not scope.is_constant(one)]
        if len(sources) != 1 or not _is_step(scope, node, sources[0]):
            return None
        for other in node.inputs:
            if other is None or other is sources[0] or scope.array(other, 1) is not None:
                continue
            if not _is_row(scope, other, value):
                return None
            reads.append(other)
        nodes.append(node)
        (value,) = sources
    return None


def _is_step(scope: Scope, node: ir.Node, value: ir.Value) -> bool:
    """Say whether a node computes its one result element by element, of the type of `value`."""
    if family_of(node) != "pointwise" or len(node.outputs) != 1:
        return False
    shapes, output = scope.shapes, node.outputs[0]
    return shapes.same_shape(output, value) and shapes.dtype(output) == shapes.dtype(value)


def _is_row(scope: Scope, value: ir.Value, result: ir.Value) -> bool:
    """Say whether a value is one row, for all rows of the result."""
    shape, whole = scope.shapes.shape(value), scope.shapes.shape(result)
    if not shape or not whole or len(shape) > len(whole):
        return False
    return shape[-1] == whole[-1] and all(size == 1 for size in shape[:-1])


def _is_part(scope: Scope, value: ir.Value, result: ir.Value, product: ir.Node) -> bool:
    """Say whether a value is a row, or rows, for each of many products, or for some of them."""
    matrix = product.inputs[1]
    shape, whole = scope.shapes.shape(value), scope.shapes.shape(result)
    if matrix is None or (scope.shapes.rank(matrix) or 0) < 3 or not shape or not whole:
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return (
        len(shape) <= len(whole)
        and shape[-1] == whole[-1]
        and all(size in (1, full) for size, full in pairs)
    )


def _is_bias(scope: Scope, line: Line, node: ir.Node) -> bool:
    """Say whether a node adds a row to a product, as ONNX Runtime does within its Gemm."""
    if node.op_type != "Add" or node.domain:
        return False
    one, other = node.inputs
    return any(
        product is not None
        and row is not None
        and product.producer() in line.products
        and _is_row(scope, row, node.outputs[0])
        for product, row in ((one, other), (other, one))
    )


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, be it twice, as a square does."""
    readers = {use.node for use in value.uses()}
    return readers.pop() if len(readers) == 1 and not value.is_graph_output() else None


def is_read_once(value: ir.Value) -> bool:
    """Say whether one input of one node is all that reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def norm_before(line: Line, taken: set[ir.Node]) -> ir.Node | None:
    """Return the norm of the rows if nothing but the products reads it."""
    rows = line.products[0].inputs[0]
    norm = None if rows is None else rows.producer()
    if rows is None or norm is None or norm in taken or norm.op_type not in NORMS or norm.domain:
        return None
    if norm.graph is not line.products[0].graph or rows.is_graph_output():
        return None
    if any(use.node not in line.products for use in rows.uses()):
        return None
    if any(one.uses() or one.is_graph_output() for one in norm.outputs[1:]):
        return None
    return norm


def shape_of(scope: Scope, line: Line, norm: ir.Node | None) -> Shape:
    """Return the sizes of a line, of which its time depends."""
    product = line.products[0]
    rows = product.inputs[0]
    assert rows is not None
    leading = (scope.shapes.shape(rows) or ())[:-1]
    count: int | None = 1
    for size in leading:
        count = count * size if isinstance(size, int) and count is not None else None
    columns = (scope.shapes.shape(product.outputs[0]) or (0,))[-1]
    depth = (scope.shapes.shape(rows) or (0,))[-1]
    assert isinstance(columns, int)
    assert isinstance(depth, int)
    return Shape(count, depth, columns, len(line.products), len(line.tail), norm is not None)

"""Regions of products with constant weights on CUDA: norm prologue, matmuls and epilogue in one
node.

A region is one product of rows and a matrix, or a gated pair with the same first operand (the
gated linear units of Shazeer, "GLU Variants Improve Transformer", 2020), with the epilogue of
pointwise nodes, and of a single row with its norm where nothing else reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of, is_read_once
from ortkit.fusion.regions.cost_model import MINIMUM_GAIN, Prediction
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.parameters import looks_up_rows
from ortkit.fusion.regions.past_keys import reads_caches
from ortkit.fusion.regions.search import Search
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.operators import where
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load

#: What knows the times of products of rows and a constant matrix.
_ROWS_AND_MATRIX = "ortkit.custom_ops.triton.gemm.gemv:ANCHOR"
HALF_DTYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: Most nodes of an epilogue, and most additional operands that they read.
MAX_EPILOGUE_OPS, MAX_EPILOGUE_READS = 8, 4
NORMS = where(row_norm=True)
#: Norms by their domain; of those of a sum, terms come first among inputs, and one output is it.
_ALL_NORMS = {"": NORMS, "com.microsoft": where(domain="com.microsoft", row_norm=True)}
_TERMS, _SUM = 2, 3


@dataclass(frozen=True)
class EpilogueChain:
    """A matmul, or a gated pair of them, and the epilogue.

    Args:
        products: MatMul or Gemm nodes with the same first operand.
        epilogue: The nodes behind, in no order.
        output: The result.
    """

    products: tuple[ir.Node, ...]
    epilogue: tuple[ir.Node, ...]
    output: ir.Value

    @property
    def nodes(self) -> frozenset[ir.Node]:
        """All nodes of the chain and the Transposes of the weights."""
        transposes = (operand_transpose_of(product) for product in self.products)
        return frozenset(
            (
                *self.products,
                *self.epilogue,
                *(transpose for transpose in transposes if transpose is not None),
            )
        )


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph that may be faster."""
    scope = search.scope
    for node in search.nodes():
        if not is_product(scope, node):
            continue
        chain = epilogue_chain_of(scope, node, search.excluded)
        norm = norm_prologue(chain, search.excluded)
        prediction = predict(scope, anchor, sizes_of(scope, chain, norm))
        if prediction is None and norm is not None:
            norm, prediction = None, predict(scope, anchor, sizes_of(scope, chain, None))
        if chain.epilogue and (prediction is None or prediction.gain < MINIMUM_GAIN):
            # What may be faster for one row without what follows it.
            alone = EpilogueChain((node,), (), node.outputs[0])
            sizes = sizes_of(scope, alone, None)
            if sizes.is_token and (found := predict(scope, anchor, sizes)) is not None:
                chain, norm, prediction = alone, None, found
        if prediction is None:
            continue
        search.excluded.update(chain.products)
        before = token_norm(scope, chain.products, search.excluded) if norm is None else norm
        candidate = _judged(search, anchor, chain, before, prediction)
        if candidate.signature is None and before is not norm:
            candidate = _judged(search, anchor, chain, norm, prediction)
        yield candidate


def _judged(
    search: Search,
    anchor: Anchor,
    chain: EpilogueChain,
    norm: ir.Node | None,
    prediction: Prediction,
) -> Candidate:
    """Return the region of a chain and the norm before it as a candidate."""
    nodes = [*(() if norm is None else (norm,)), *chain.nodes]
    return search.judged(search.region(nodes, anchor.kind), prediction)


def predict(scope: Scope, anchor: Anchor, sizes: ProductSizes) -> Prediction | None:
    """Return what a template says of products; None if it has no faster kernel."""
    assert anchor.estimate is not None
    found = anchor.estimate(scope.target.level, sizes)
    return None if found is None else Prediction(*found)


def is_product(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node multiplies rows in half precision by a constant matrix."""
    if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return False
    weight = matrix_of(node)
    if weight is None or not scope.is_constant(weight) or scope.shapes.rank(weight) != 2:
        return False
    return has_known_sizes(scope, node, HALF_DTYPES)


def has_known_sizes(scope: Scope, product: ir.Node, dtypes: Collection[ir.DataType]) -> bool:
    """Say whether a matmul has rows of some types, and a known K and N."""
    rows, made = product.inputs[0], product.outputs[0]
    if rows is None or scope.is_constant(rows) or scope.shapes.dtype(rows) not in dtypes:
        return False
    shape, result = scope.shapes.shape(rows), scope.shapes.shape(made)
    if shape is None or result is None or len(shape) < 2 or len(result) != len(shape):
        return False
    return isinstance(shape[-1], int) and isinstance(result[-1], int)


def matrix_of(product: ir.Node) -> ir.Value | None:
    """Return the weight of a matmul as the model stores it."""
    transpose = operand_transpose_of(product)
    return product.inputs[1] if transpose is None else transpose.inputs[0]


def operand_transpose_of(product: ir.Node, index: int = 1) -> ir.Node | None:
    """Return the Transpose of an operand of a matmul, the weight by default, if nothing else reads
    it."""
    value = product.inputs[index]
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = node.attributes.get("perm")
    swaps_axes = perm is None or (not perm.is_ref() and _swaps_last(perm.as_ints()))
    return node if swaps_axes and is_read_once(value) and node.graph is product.graph else None


def _swaps_last(perm: Sequence[int]) -> bool:
    """Say whether a Transpose swaps the last two axes, and nothing else."""
    axes = [*range(len(perm))]
    return len(axes) > 1 and [*perm] == [*axes[:-2], axes[-1], axes[-2]]


def is_transposed(product: ir.Node) -> bool:
    """Say whether the weight of a matmul is stored transposed, with K as the contiguous axis."""
    has_trans_b = bool(product.attributes.get_int("transB", 0))
    return (operand_transpose_of(product) is not None) != has_trans_b


def takes_sum(scope: Scope, product: ir.Node) -> bool:
    """Say whether the kernel of a matmul would absorb a sum that is its only consumer."""
    chain = EpilogueChain((product,), (), product.outputs[0])
    return _gains(scope, replace(sizes_of(scope, chain, None), epilogue_ops=1))


def prefers_transposed_weight(scope: Scope, product: ir.Node) -> bool:
    """Say whether a matmul goes into a kernel that is faster with a transposed weight."""
    chain = epilogue_chain_of(scope, product, set())
    sizes = sizes_of(scope, chain, norm_prologue(chain, set()))
    if not sizes.is_token:
        return _gains(scope, sizes)
    found = predict(scope, load(_ROWS_AND_MATRIX), replace(sizes, is_normed=False))
    if found is None or found.gain < MINIMUM_GAIN:
        alone = EpilogueChain((product,), (), product.outputs[0])
        found = predict(scope, load(_ROWS_AND_MATRIX), sizes_of(scope, alone, None))
    return found is not None and found.gain >= MINIMUM_GAIN


def _gains(scope: Scope, sizes: ProductSizes) -> bool:
    """Say whether a product of a single row gains enough to be a region."""
    found = predict(scope, load(_ROWS_AND_MATRIX), sizes) if sizes.rows == 1 else None
    return found is not None and found.gain >= MINIMUM_GAIN


def prefers_split_gate_up(scope: Scope, product: ir.Node) -> bool:
    """Say whether a fused gate-up projection is faster as two matmuls in one kernel.

    Fusion saves one kernel and two tensors. It has to gain half as much as other regions do.
    """
    sizes = sizes_of(scope, EpilogueChain((product,), (), product.outputs[0]), None)
    pair = replace(sizes, columns=sizes.columns // 2, products=2, epilogue_ops=1, is_merged=True)
    found = predict(scope, load(_ROWS_AND_MATRIX), pair)
    return found is not None and found.gain >= MINIMUM_GAIN / 2


def epilogue_chain_of(
    scope: Scope,
    product: ir.Node,
    excluded: set[ir.Node],
    accepts_partner: Callable[[Scope, ir.Node], bool] = is_product,
) -> EpilogueChain:
    """Return the matmul and its epilogue: the chain of single-consumer elementwise nodes after it.

    Args:
        scope: Its scope.
        product: The matmul that the chain begins at.
        excluded: Nodes of other regions.
        accepts_partner: True for a node that may be the other matmul of a gated pair.
    """
    products, epilogue, reads = [product], list[ir.Node](), dict[ir.Value, None]()
    value = product.outputs[0]
    while len(epilogue) < MAX_EPILOGUE_OPS and (reader := _only_consumer(value)) is not None:
        found = _contribution_of(
            scope, product, reader, value, excluded, accepts_partner, is_paired=len(products) > 1
        )
        if found is None or len({*reads, *found.reads}) > MAX_EPILOGUE_READS:
            break
        products += found.products
        epilogue += [*found.nodes, reader]
        reads |= dict.fromkeys(found.reads)
        value = reader.outputs[0]
    return EpilogueChain(tuple(products), tuple(epilogue), value)


@dataclass(frozen=True)
class _Contribution:
    """What a node adds to a chain: operands, another matmul, and the nodes after that."""

    reads: tuple[ir.Value, ...] = ()
    products: tuple[ir.Node, ...] = ()
    nodes: tuple[ir.Node, ...] = ()


def _contribution_of(
    scope: Scope,
    product: ir.Node,
    reader: ir.Node,
    value: ir.Value,
    excluded: set[ir.Node],
    accepts_partner: Callable[[Scope, ir.Node], bool],
    *,
    is_paired: bool,
) -> _Contribution | None:
    """Return what `reader` adds to the chain in addition to `value`; None if it ends the chain."""
    if (
        reader.graph is not product.graph
        or reader in excluded
        or not _is_step(scope, reader, value)
    ):
        return None
    reads, products, nodes = list[ir.Value](), list[ir.Node](), list[ir.Node]()
    for other in reader.inputs:
        if other is None or other is value or scope.array(other, 1) is not None:
            continue
        is_open = not is_paired and not products
        partner = _partner(scope, product, other, excluded, accepts_partner) if is_open else None
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
    return _Contribution(tuple(reads), tuple(products), tuple(nodes))


def _partner(
    scope: Scope,
    product: ir.Node,
    value: ir.Value,
    excluded: set[ir.Node],
    accepts_partner: Callable[[Scope, ir.Node], bool],
) -> _Contribution | None:
    """Return the other matmul of a gated pair that `value` is computed from, and the nodes
    between."""
    nodes, reads = list[ir.Node](), list[ir.Value]()
    while is_read_once(value) and len(nodes) < MAX_EPILOGUE_OPS:
        node = value.producer()
        if node is None or node in excluded or node is product or node.graph is not product.graph:
            return None
        if accepts_partner(scope, node):
            weights = [scope.shapes.shape(one.inputs[1]) for one in (node, product)]  # type: ignore[arg-type]
            is_equivalent = node.inputs[0] is product.inputs[0] and weights[0] == weights[1]
            is_same = node.op_type == product.op_type and (
                (operand_transpose_of(node) is None) == (operand_transpose_of(product) is None)
            )
            return (
                _Contribution(tuple(reads), (node,), tuple(nodes))
                if is_equivalent and is_same
                else None
            )
        sources = [
            item for item in node.inputs if item is not None and not scope.is_constant(item)
        ]
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
    if access_of(node) != "elementwise" or len(node.outputs) != 1:
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


def _is_bias(scope: Scope, chain: EpilogueChain, node: ir.Node) -> bool:
    """Say whether a node adds a row to a product, as ONNX Runtime does within its Gemm."""
    if node.op_type != "Add" or node.domain:
        return False
    one, other = node.inputs
    return any(
        product is not None
        and row is not None
        and product.producer() in chain.products
        and _is_row(scope, row, node.outputs[0])
        for product, row in ((one, other), (other, one))
    )


def _only_consumer(value: ir.Value) -> ir.Node | None:
    """Return the only consumer of a value, be it twice, as of a square."""
    readers = {use.node for use in value.uses()}
    return readers.pop() if len(readers) == 1 and not value.is_graph_output() else None


def norm_prologue(chain: EpilogueChain, excluded: set[ir.Node]) -> ir.Node | None:
    """Return the norm of the first operand if only the matmuls of the chain read it."""
    return norm_of(chain.products[0].inputs[0], chain.products, excluded)


def norm_of(
    rows: ir.Value | None, readers: Sequence[ir.Node], excluded: set[ir.Node]
) -> ir.Node | None:
    """Return the norm that makes rows for some nodes alone."""
    norm = None if rows is None else rows.producer()
    if rows is None or norm is None or norm in excluded or norm.domain:
        return None
    if norm.op_type not in NORMS or norm.graph is not readers[0].graph or rows.is_graph_output():
        return None
    if rows is not norm.outputs[0] or any(use.node not in readers for use in rows.uses()):
        return None
    if any(output.uses() or output.is_graph_output() for output in norm.outputs[1:]):
        return None
    return norm


def token_norm(scope: Scope, readers: Sequence[ir.Node], excluded: set[ir.Node]) -> ir.Node | None:
    """Return the norm before products of a prompt's rows or one token, alone or of a sum.

    One row has it within the products. It adds nothing to a prompt: there it is a launch before
    them, as it would be by itself. The sum may be read by others. Where something else than such
    products makes the rows, or looks them up, the norm is in one kernel with that.
    """
    rows = readers[0].inputs[0]
    norm = None if rows is None else rows.producer()
    if rows is None or norm is None or norm in excluded or norm.graph is not readers[0].graph:
        return None
    if norm.op_type not in _ALL_NORMS.get(norm.domain, ()) or rows is not norm.outputs[0]:
        return None
    if rows.is_graph_output() or any(use.node not in readers for use in rows.uses()):
        return None
    if any(output.uses() or output.is_graph_output() for output in norm.outputs[1:_SUM]):
        return None
    count = _TERMS if norm.domain else 1
    factors = (value for value in norm.inputs[count:] if value is not None)
    if not all(scope.is_constant(value) for value in factors):
        return None
    makers = [None if value is None else value.producer() for value in norm.inputs[:count]]
    if any(_is_pointwise(node, excluded) for node in makers) or all(
        node is not None and looks_up_rows(scope, node) for node in makers
    ):
        return None
    leading = (scope.shapes.shape(rows) or ())[:-1]
    return norm if known_product(leading) in (None, 1) and reads_caches(scope) else None


def _is_pointwise(node: ir.Node | None, excluded: set[ir.Node]) -> bool:
    """Say whether a node would be in one kernel with the norm of what it makes."""
    return node is not None and node not in excluded and access_of(node) == "elementwise"


def sizes_of(scope: Scope, chain: EpilogueChain, norm: ir.Node | None) -> ProductSizes:
    """Return the sizes of a chain that its time depends on."""
    product = chain.products[0]
    rows = product.inputs[0]
    assert rows is not None
    leading = (scope.shapes.shape(rows) or ())[:-1]
    columns = (scope.shapes.shape(product.outputs[0]) or (0,))[-1]
    depth = (scope.shapes.shape(rows) or (0,))[-1]
    assert isinstance(columns, int)
    assert isinstance(depth, int)
    biases = sum(_is_bias(scope, chain, node) for node in chain.epilogue)
    count = known_product(leading)
    return ProductSizes(
        count, depth, columns, len(chain.products), len(chain.epilogue), biases, norm is not None,
        is_token=count is None and reads_caches(scope),
    )  # fmt: skip


def known_product(sizes: Sequence[Size]) -> int | None:
    """Return the product of sizes; None where one is not known."""
    numbers = [size for size in sizes if isinstance(size, int)]
    return prod(numbers) if len(numbers) == len(sizes) else None

"""Matrix products with a constant matrix, with the bias and the activation behind them.

The matrix is packed in panels of columns (`ortkit.custom_ops.tvm.product`), and what is done to
each element of the result is done in registers. ONNX Runtime's own product adds a bias in its
Gemm, and of the activations it knows a few there. Measured on one core with AVX-512 (Xeon,
onnxruntime 1.31.1, 2026-11, float32) by turns: 1.05 to 1.2 times as fast as its Gemm on 1 to 1500
rows, depths and columns of 768 to 3072; 0.98 to 1.0 where a depth of 3072 meets 197 rows and more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from ortkit.fusion.conv_cost import APPLIED
from ortkit.fusion.conv_finder import TAIL
from ortkit.fusion.cost import CostModel, Prediction, nominal
from ortkit.fusion.members import is_reshape
from ortkit.fusion.ort_costs import ARITHMETIC_NS, ORT_NS
from ortkit.graph.dims import Size
from ortkit.kernels.backend import Refused
from ortkit.kernels.calibration import Calibration
from ortkit.kernels.sizes import extent_of, product
from ortkit.provider.own.heavy import Heavy, Judge
from ortkit.provider.own.product_programs import Product, group_of
from ortkit.provider.own.weights import Origin
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: The rates below are those of such processors.
LEVELS = "x86-64-v4"
#: What is smaller is left alone.
LEAST_ROWS, LEAST_SIDE = 16, 64
#: The part of its own time that a product must gain: less than what regions must, whose time is
#: told less exactly.
LEAST_GAIN = 0.05
#: Longer tails are cut.
MOST_TAIL = 8
#: Multiply-adds a nanosecond, by rows (up to so many): ONNX Runtime's, and ours.
_RUNTIME = ((31, 36.0), (63, 53.0), (127, 60.0), (255, 66.0), (1 << 62, 71.0))
_OURS = ((31, 42.0), (63, 60.0), (127, 66.0), (255, 72.0), (1 << 62, 76.0))
#: Rows of such a depth and of more bytes do not stay in the second level of cache.
_DEEP, _NEAR_BYTES, _DEEP_FACTOR = 2048, 2 << 20, 0.94


def product_groups(
    scope: Scope, cost: CostModel, calibration: Calibration, judge: Judge
) -> Iterator[list[Heavy | Refused]]:
    """Yield for each product of a main graph that pays the groups that it may become.

    The one with the longest tail comes first.

    Args:
        scope: The copy's.
        cost: Of the nodes behind products.
        calibration: What nodes take besides.
        judge: Says why there is no kernel for a signature.
    """
    assert isinstance(scope.root, ir.Graph)
    for node in scope.root:
        found = [one for one in _products(scope, node) if _pays(one, cost, calibration)]
        if found:
            yield [group_of(scope, one, _predict(one, cost, calibration), judge) for one in found]


def _products(scope: Scope, node: ir.Node) -> list[Product]:
    """Return a product with each of its tails, the longest first."""
    first = _first(scope, node)
    if first is None:
        return []
    found = [first]
    while len(found[-1].nodes) <= MOST_TAIL:
        longer = _longer(scope, found[-1])
        if longer is None:
            break
        found.append(longer)
    ends = [one for one in reversed(found) if one is first or not is_reshape(one.nodes[-1])]
    return [each for one in ends for each in (*_before_reshapes(one), one)]


def _before_reshapes(one: Product) -> Iterator[Product]:
    """Yield the product of what its rows are reshaped from: equal reshapes are one in the copy."""
    x, nodes = one.x, one.nodes
    while (node := x.producer()) is not None and is_reshape(node) and node.inputs[0] is not None:
        x, nodes = node.inputs[0], (node, *nodes)
    if x is not one.x:
        yield replace(one, x=x, nodes=nodes)


def _first(scope: Scope, node: ir.Node) -> Product | None:
    site = Site(scope, node, "")
    if node.domain or node.op_type not in ("Gemm", "MatMul") or not _is_plain(site):
        return None
    x, matrix = node.inputs[0], node.inputs[1]
    if x is None or matrix is None or scope.is_constant(x):
        return None
    shape = scope.shapes.shape(x)
    if not shape or scope.shapes.dtype(x) != ir.DataType.FLOAT:
        return None
    rows, count = _rows(shape[:-1]), prod(nominal(size) for size in shape[:-1])
    array = scope.array(matrix)
    if rows is None or count < LEAST_ROWS or array is None or array.ndim != 2:
        return None
    if min(array.shape) < LEAST_SIDE:
        return None
    turned = array.T if site.int("transB", 0) else array
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    added = None if bias is None else scope.array(bias)
    # One column of as many numbers is another sum.
    if bias is not None and (added is None or not _is_row(added, turned.shape[1])):
        return None
    row = None if added is None else added.reshape(-1)
    origin = Origin(matrix.name or "", turned is not array, matrix.const_value)
    return Product((node,), x, rows, count, turned, origin, row, (), node.outputs[0])


def _rows(sizes: Sequence[Size]) -> int | str | None:
    """Return the product of sizes as a `TensorSpec` has it; None where its text would not say."""
    found = product(extent_of(size if isinstance(size, int) else str(size)) for size in sizes)
    if found.static is not None:
        return found.static
    return str(found) if extent_of(str(found)) == found else None


def _is_plain(site: Site) -> bool:
    """Say whether a Gemm is a product and a sum; a MatMul is."""
    factors = (site.float("alpha", 1.0), site.float("beta", 1.0))
    return factors == (1.0, 1.0) and site.int("transA", 0) == 0


def _longer(scope: Scope, one: Product) -> Product | None:
    """Return the product with the node that alone reads its result, if a kernel can take it in."""
    uses = list(one.end.uses())
    if len(uses) != 1 or one.end.is_graph_output():
        return None
    node = uses[0].node
    if node.graph is not scope.root or not node.outputs:
        return None
    nodes, end = (*one.nodes, node), node.outputs[0]
    if is_reshape(node):
        if node.inputs[0] is not one.end:
            return None
        return replace(one, nodes=nodes, end=end)
    others = [value for value in node.inputs if value is not None and value is not one.end]
    arrays = [scope.array(value, one.matrix.shape[1]) for value in others]
    if any(array is None for array in arrays):
        return None
    known = [array for array in arrays if array is not None]
    if _is_bias(node, known, one):
        bias = known[0].reshape(-1)
        return replace(one, nodes=nodes, bias=bias, end=end)
    is_known = (node.domain, node.op_type) == ("com.microsoft", "Gelu") or not node.domain
    is_step = is_known and node.op_type in TAIL and all(array.size == 1 for array in known)
    if not is_step or scope.shapes.dtype(end) != ir.DataType.FLOAT:
        return None
    if any(array.ndim > len(scope.shapes.shape(one.end) or ()) for array in known):
        return None
    return replace(one, nodes=nodes, tail=(*one.tail, node), end=end)


def _is_bias(node: ir.Node, others: Sequence[np.ndarray], one: Product) -> bool:
    """Say whether a node adds a row to a product that has none yet."""
    if (node.domain, node.op_type) != ("", "Add") or one.bias is not None or one.tail:
        return False
    return len(others) == 1 and _is_row(others[0], one.matrix.shape[1])


def _is_row(array: np.ndarray, columns: int) -> bool:
    """Say whether an array is one row of so many numbers."""
    return array.size == columns and array.shape[-1:] == (columns,)


def _pays(one: Product, cost: CostModel, calibration: Calibration) -> bool:
    return _predict(one, cost, calibration).gain >= LEAST_GAIN


def _predict(one: Product, cost: CostModel, calibration: Calibration) -> Prediction:
    depth, columns = one.matrix.shape
    elements = one.count * columns
    before = calibration.node_ns + one.multiplies / _rate(_RUNTIME, one.count)
    after = calibration.kernel_ns + one.multiplies / _rate(_OURS, one.count)
    if depth >= _DEEP and one.count * depth * 4 > _NEAR_BYTES:
        after /= _DEEP_FACTOR
    if one.bias is not None:
        before += elements * ARITHMETIC_NS
    for node in one.tail:
        if node.op_type not in APPLIED:
            each = elements * ORT_NS.get(node.op_type, ARITHMETIC_NS)
            before += calibration.node_ns + each
        after += elements * cost.operations(node) * calibration.operation_ns
    return Prediction(before, after)


def _rate(rates: Sequence[tuple[int, float]], size: int) -> float:
    return next(rate for limit, rate in rates if size <= limit)

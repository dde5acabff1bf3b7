"""Products with constant matrices where our kernel is faster than ONNX Runtime's.

It is that of 1x1 convolutions with channels innermost, the rows being pixels: the matrix is packed
in vectors of sixteen columns, and what is done to each element of the result is done in registers.
Measured on one core with AVX-512 (Xeon, onnxruntime 1.31.1, 2026-11, float32), depths and columns
of 768 to 3072, by turns: 1.15 times as fast on 32 rows, 1.06 on 128, 1.04 on 197; 1.0 on 512, and
0.8 to 0.96 on 1500, where the rows do not stay in the second cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.conv_finder import TAIL
from ortkit.fusion.conv_bodies import TO_NCHW, TO_NHWC, VECTOR
from ortkit.fusion.conv_cost import APPLIED
from ortkit.fusion.cost import CostModel, Prediction
from ortkit.fusion.members import is_reshape
from ortkit.fusion.ort_costs import ARITHMETIC_NS, ORT_NS
from ortkit.kernels.backend import Refused
from ortkit.kernels.calibration import Calibration
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.provider.own.draft import spec_of
from ortkit.provider.own.heavy import Builder, Heavy, Judge
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: The rates below are those of such processors.
LEVELS = "x86-64-v4"
#: What is smaller is left alone, as are more rows.
LEAST_ROWS, MOST_ROWS, LEAST_SIDE = 16, 256, 64
#: The part of its own time that a product must gain: less than what regions must, whose time is
#: told less exactly.
LEAST_GAIN = 0.05
#: Longer tails are cut.
MOST_TAIL = 8
#: Multiply-adds a nanosecond, by rows (up to so many) and by depth.
_RUNTIME = ((31, 43.0), (63, 55.0), (127, 66.0), (1 << 62, 76.0))
_GELU_SINCE = 20
_OURS = ((1536, 81.0), (1 << 62, 77.0))


@dataclass(frozen=True)
class _Product:
    """Rows of `x`, as [rows, depth], times `matrix` [depth, columns], plus `bias` [columns]."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    rows: int
    matrix: np.ndarray
    bias: np.ndarray | None
    tail: tuple[ir.Node, ...]
    end: ir.Value

    @property
    def multiplies(self) -> int:
        """The multiply-adds of a run."""
        return self.rows * self.matrix.size


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
            yield [_group(scope, one, cost, calibration, judge) for one in found]


def _products(scope: Scope, node: ir.Node) -> list[_Product]:
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


def _before_reshapes(one: _Product) -> Iterator[_Product]:
    """Yield the product of what its rows are reshaped from: equal reshapes are one in the copy."""
    x, nodes = one.x, one.nodes
    while (node := x.producer()) is not None and is_reshape(node) and node.inputs[0] is not None:
        x, nodes = node.inputs[0], (node, *nodes)
    if x is not one.x:
        yield replace(one, x=x, nodes=nodes)


def _first(scope: Scope, node: ir.Node) -> _Product | None:
    site = Site(scope, node, "")
    if node.domain or node.op_type not in ("Gemm", "MatMul") or not _is_plain(site):
        return None
    x, matrix = node.inputs[0], node.inputs[1]
    if x is None or matrix is None or scope.is_constant(x):
        return None
    shape, sides = scope.shapes.shape(x), scope.shapes.shape(matrix)
    if shape is None or sides is None or len(sides) != 2 or not shape:
        return None
    sizes = [size for size in (*shape, *sides) if isinstance(size, int)]
    if len(sizes) < len(shape) + 2 or scope.shapes.dtype(x) != ir.DataType.FLOAT:
        return None
    rows = prod(sizes[: len(shape) - 1])
    if not LEAST_ROWS <= rows <= MOST_ROWS or min(sizes[-2:]) < LEAST_SIDE:
        return None
    array = scope.array(matrix)
    if array is None:
        return None
    turned = array.T if site.int("transB", 0) else array
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    added = None if bias is None else scope.array(bias)
    # One column of as many numbers is another sum.
    if bias is not None and (added is None or not _is_row(added, turned.shape[1])):
        return None
    row = None if added is None else added.reshape(-1)
    return _Product((node,), x, rows, turned, row, (), node.outputs[0])


def _is_plain(site: Site) -> bool:
    """Say whether a Gemm is a product and a sum; a MatMul is."""
    factors = (site.float("alpha", 1.0), site.float("beta", 1.0))
    return factors == (1.0, 1.0) and site.int("transA", 0) == 0


def _longer(scope: Scope, one: _Product) -> _Product | None:
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


def _is_bias(node: ir.Node, others: Sequence[np.ndarray], one: _Product) -> bool:
    """Say whether a node adds a row to a product that has none yet."""
    if (node.domain, node.op_type) != ("", "Add") or one.bias is not None or one.tail:
        return False
    return len(others) == 1 and _is_row(others[0], one.matrix.shape[1])


def _is_row(array: np.ndarray, columns: int) -> bool:
    """Say whether an array is one row of so many numbers."""
    return array.size == columns and array.shape[-1:] == (columns,)


def _pays(one: _Product, cost: CostModel, calibration: Calibration) -> bool:
    return _predict(one, cost, calibration).gain >= LEAST_GAIN


def _predict(one: _Product, cost: CostModel, calibration: Calibration) -> Prediction:
    depth, columns = one.matrix.shape
    elements = one.rows * columns
    before = calibration.node_ns + one.multiplies / _rate(_RUNTIME, one.rows)
    after = calibration.kernel_ns + one.multiplies / _rate(_OURS, depth)
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


def _group(
    scope: Scope, one: _Product, cost: CostModel, calibration: Calibration, judge: Judge
) -> Heavy | Refused:
    """Return the group of a product."""
    depth, columns = one.matrix.shape
    given, made = spec_of(scope, one.x), spec_of(scope, one.end)
    if isinstance(given, Refused):
        return given
    if isinstance(made, Refused):
        return made
    builder = Builder(bakes=False, judge=judge, opset=scope.opset())
    x = builder.view(_spec("x", (1, 1, one.rows, depth)), builder.enter(given))
    packed = _packed(one.matrix)
    weights = [builder.weight(_spec("w", packed.shape), packed)]
    if one.bias is not None:
        weights.append(builder.weight(_spec("b", one.bias.shape), one.bias))
    specs = [builder.tensors[place] for place in (x, *weights)]
    result = _spec("y", (1, 1, one.rows, columns))
    place = builder.add(result)
    name = "_".join(["product", *(node.op_type.lower() for node in one.tail)])
    signature = RegionSignature(name, _body(scope, one), tuple(specs), (result,))
    builder.step(signature, (x, *weights), (place,))
    if builder.refused is not None:
        return builder.refused
    program = builder.program(name, [builder.view(made, place)])
    prediction = _predict(one, cost, calibration)
    regions = tuple(node.outputs[0].name or "" for node in one.nodes)
    return Heavy(
        program, (one.x,), (one.end,), builder.held, frozenset(one.nodes), prediction, regions
    )


def _packed(matrix: np.ndarray) -> np.ndarray:
    """Return [depth, columns] as [ceil(columns / 16), depth, 16], a view where that can be."""
    depth, columns = matrix.shape
    if columns % VECTOR:
        matrix = np.pad(matrix, ((0, 0), (0, -columns % VECTOR)))
    return matrix.reshape(depth, -1, VECTOR).transpose(1, 0, 2)


def _spec(name: str, shape: Sequence[int]) -> TensorSpec:
    return TensorSpec(name, "float32", tuple(shape))


def _body(scope: Scope, one: _Product) -> str:
    """Return a 1x1 convolution of rows, as kernels know it, with what follows."""
    depth, columns = one.matrix.shape
    padded = -(-columns // VECTOR) * VECTOR
    nodes = [
        helper.make_node("Transpose", ["x"], ["rows"], perm=TO_NCHW),
        helper.make_node("Transpose", ["w"], ["planar"], perm=[0, 2, 1]),
        _constant("sizes", np.array([padded, depth, 1, 1])),
        helper.make_node("Reshape", ["planar", "sizes"], ["whole"]),
    ]
    matrix = "whole"
    if padded > columns:
        nodes += [_constant("zero", np.array([0])), _constant("columns", np.array([columns]))]
        nodes.append(helper.make_node("Slice", ["whole", "zero", "columns", "zero"], ["matrix"]))
        matrix = "matrix"
    inputs = ["x", "w"] if one.bias is None else ["x", "w", "b"]
    nodes.append(
        helper.make_node("Conv", ["rows", matrix, *inputs[2:]], ["t"], kernel_shape=[1, 1])
    )
    value = "t"
    for number, node in enumerate(one.tail):
        names = []
        for index, operand in enumerate(node.inputs):
            array = None if operand is None else scope.array(operand, 1)
            if array is None:
                names.append("" if operand is None else value)
                continue
            names.append(f"c{number}_{index}")
            nodes.append(_constant(names[-1], array.reshape(())))
        attributes = {key: each.value for key, each in node.attributes.items()}
        nodes.append(helper.make_node(node.op_type, names, [f"t{number}"], **attributes))
        value = f"t{number}"
    nodes.append(helper.make_node("Transpose", [value], ["y"], perm=TO_NHWC))
    function = onnx.FunctionProto(name="product", domain=DOMAIN, input=inputs, output=["y"])
    function.node.extend(nodes)
    function.opset_import.add(domain="", version=max(scope.opset(), _GELU_SINCE))
    return body_text(function)


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))

"""Regions of fp8 matmuls on CUDA, as quantized models have them.

A matrix is read by DequantizeLinear, with a factor for each column or one for all, or is rounded
by QuantizeLinear before it. Rows are as they are, or QuantizeLinear rounded them with one factor,
or `ortkit.precision` with one for each row. A region is one product, or two of the same rows that
meet, the epilogue of pointwise nodes and, where one alone reads that, the QuantizeLinear for the
next product. Another one rounds rows, with the norm prologue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.analysis.quantization import is_op
from ortkit.fusion.gemm.cuda import (
    EpilogueChain,
    epilogue_chain_of,
    has_known_sizes,
    norm_of,
    norm_prologue,
    predict,
    sizes_of,
)
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.describe import describe_region, tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.fp8_rounding import FP8, is_centred, rounding_consumer
from ortkit.fusion.regions.region import FusedRegion, region_of
from ortkit.fusion.regions.search import Search, refused
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.kernels.tuning.gemm_times import rounding_ns
from ortkit.operators import where
from ortkit.rewrite.scope import Scope

ROUNDED = "rounded_rows"
#: Other types of operands and results.
FLOATS = {
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.FLOAT: np.dtype(np.float32),
}
#: The largest fp8 number.
LARGEST = 448.0
#: DequantizeLinear has had this type since then.
SINCE = 19
#: Rows up to which each block may find their norm for itself.
_MOST_NORMED = 8
#: What may make rows of fp8 numbers, and fp8 numbers of rows with a factor each.
_DEQUANTIZE = frozenset({"Cast", "DequantizeLinear", "Mul"})
#: Norms of rows by their domain.
_ALL_NORMS: Mapping[str, frozenset[str]] = defaultdict(
    frozenset, {domain: where(domain=domain, row_norm=True) for domain in ("", "com.microsoft")}
)
_QUANTIZE = frozenset({"Abs", "Cast", "Div", "Max", "Mul", "ReduceMax"})
#: Names an input of the region.
_Add = Callable[[ir.Value, TensorSpec | None], str]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A constant fp8 weight.

    Args:
        source: The value in the model that holds it, by which it is known again.
        numbers: [columns, depth].
        scale: A factor for each column, or one.
        is_direct: Whether the product reads it as [columns, depth].
        is_stored_transposed: Whether `source` has those numbers.
    """

    source: ir.Value
    numbers: np.ndarray
    scale: np.ndarray
    is_direct: bool
    is_stored_transposed: bool


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each fp8 matmul of one graph, and for what rounds rows."""
    if search.scope.opset() < SINCE:
        return
    rounded: dict[ir.Value, None] = {}
    for node in search.nodes():
        if is_fp8_product(search.scope, node):
            makers = _dequantized_by(search.scope, node.inputs[0])
            product = _product(search, anchor, node, makers)
            if product.signature is not None and makers:
                rounded |= dict.fromkeys(v for v in makers[0].inputs[:1] if v is not None)
            yield (
                product if product.signature or not makers else _product(search, anchor, node, ())
            )
    for value in rounded:
        yield from _rounding(search, value)


def _product(
    search: Search, anchor: Anchor, node: ir.Node, makers: tuple[ir.Node, ...]
) -> Candidate:
    """Return the region of a matmul with an fp8 weight.

    Args:
        search: The graph's.
        anchor: Of the template.
        node: The matmul.
        makers: What makes its rows of fp8 numbers; none if they are in half precision.
    """
    scope, is_narrow = search.scope, bool(makers)
    chain = epilogue_chain_of(scope, node, search.excluded, is_fp8_product)
    norm = None if is_narrow else norm_prologue(chain, search.excluded)
    sizes = replace(sizes_of(scope, chain, norm), is_narrow=is_narrow)
    if sizes.rows is None or sizes.rows > _MOST_NORMED:
        norm, sizes = None, replace(sizes, is_normed=False)
    prediction = predict(scope, anchor, sizes)
    last = rounding_consumer(scope, chain.output, search.excluded) if is_narrow else ()
    ends = [*([] if norm is None else [norm]), *last]
    whole = search.region([*chain.products, *chain.epilogue, *ends], anchor.kind)
    if prediction is None:
        return refused(whole, "large-M matmuls in half precision with fp8 weights are no faster")
    return search.judged(*_narrowed(search, whole, chain, makers, prediction))


def _rounding(search: Search, value: ir.Value) -> Iterator[Candidate]:
    """Yield the region that rounds rows for fp8 matmuls."""
    nodes = _rounding_nodes(value)
    excluded = [
        item for item in nodes if item in search.excluded or item.graph is not search.graph
    ]
    if excluded or not nodes:
        return
    sources = [one for node in nodes for one in node.inputs]
    norms = [norm for source in sources if (norm := norm_of(source, nodes, search.excluded))][:1]
    norms = norms or _norms_before(search, sources)
    shape = search.scope.shapes.shape(value) or ()
    # As nodes, one after the other, and as one kernel; a size that is not known counts as one.
    once = rounding_ns(prod(size for size in shape if isinstance(size, int)))
    prediction = Prediction((len(nodes) + len(norms)) * once, once)
    found = search.judged(search.region((*nodes, *norms), ROUNDED), prediction)
    if found.signature is None and norms:
        prediction = Prediction(len(nodes) * once, once)
        found = search.judged(search.region(nodes, ROUNDED), prediction)
    yield found


def _norms_before(search: Search, sources: list[ir.Value | None]) -> list[ir.Node]:
    """Return the norm that makes rows for others, too, with the residual sum before it."""
    for source in sources:
        node = None if source is None else source.producer()
        if node is None or node in search.excluded or node.graph is not search.graph:
            continue
        if node.op_type in _ALL_NORMS[node.domain] and source is node.outputs[0]:
            return [node]
    return []


def _narrowed(
    search: Search,
    whole: FusedRegion,
    chain: EpilogueChain,
    makers: tuple[ir.Node, ...],
    prediction: Prediction,
) -> tuple[FusedRegion, Prediction, RegionSignature]:
    """Return the region with its fp8 inputs, its times, and its signature."""
    scope = search.scope
    wide = region_of(scope, (*makers, *whole.nodes), frozenset(makers))
    plain = describe_region(scope, replace(wide, kind=whole.kind))
    function = plain.function()
    inputs: dict[ir.Value, TensorSpec] = {}
    called: dict[ir.Value, str] = {}
    before: list[onnx.NodeProto] = []

    def add(value: ir.Value, spec: TensorSpec | None = None) -> str:
        inputs.setdefault(value, spec or tensor_spec(scope, value))
        return called.setdefault(value, f"n{len(called)}")

    matrices = {product.inputs[1]: matrix_of(scope, product) for product in chain.products}
    for value, name, spec in zip(wide.inputs, function.input, plain.inputs, strict=True):
        if (matrix := matrices.get(value)) is not None:
            before += _dequantized(search, matrix, value, name, add)
        else:
            called[value], inputs[value] = name, spec
    opsets = [helper.make_opsetid("", scope.opset())]
    made = helper.make_function(
        DOMAIN, whole.kind, [called[value] for value in inputs], list(function.output),
        [*before, *function.node], opsets,
    )  # fmt: skip
    signature = RegionSignature(whole.kind, body_text(made), tuple(inputs.values()), plain.outputs)
    return replace(whole, inputs=tuple(inputs)), prediction, signature


def _dequantized(
    search: Search, matrix: Matrix, value: ir.Value, name: str, add: _Add
) -> list[onnx.NodeProto]:
    """Return nodes that make `value` of a matrix that lies as [columns, depth]."""
    dtype = search.scope.shapes.dtype(value)
    assert dtype is not None
    scale = np.broadcast_to(matrix.scale.reshape(-1), matrix.numbers.shape[:1])
    parts = {"eight": matrix.numbers, "scales": scale.astype(FLOATS[dtype])}
    constants = []
    for what, array in parts.items():
        if what == "eight" and matrix.is_stored_transposed:
            constants.append(add(matrix.source, None))
            continue
        packed = ir.tensor(np.ascontiguousarray(array))
        constant = search.constant((matrix.source, what), f"{matrix.source.name}/{what}", packed)
        constants.append(
            add(constant, TensorSpec(f"{name}/{what}", array.dtype.name, array.shape))
        )
    wide = name if matrix.is_direct else f"{name}_wide"
    nodes = [helper.make_node("DequantizeLinear", constants, [wide], axis=0)]
    if not matrix.is_direct:
        nodes.append(helper.make_node("Transpose", [wide], [name], perm=[1, 0]))
    return nodes


def is_fp8_product(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node is a matmul with a constant fp8 weight."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or matrix_of(scope, node) is None:
        return False
    return has_known_sizes(scope, node, FLOATS)


def matrix_of(scope: Scope, product: ir.Node) -> Matrix | None:
    """Return the fp8 weight of a matmul; None if it has none."""
    value = product.inputs[1]
    transposed = bool(product.attributes.get_int("transB", 0))
    node = None if value is None else value.producer()
    is_direct = transposed
    if node is not None and node.op_type == "Transpose" and not node.domain:
        perm = node.attributes.get("perm")
        if perm is not None and tuple(perm.as_ints()) != (1, 0):
            return None
        transposed = not transposed
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is None or not is_op(node, "DequantizeLinear") or value is None:
        return None
    found = _constant_fp8(scope, node)
    if found is None:
        return None
    source, numbers, scale, axis = found
    if numbers.ndim != 2 or (scale.size > 1 and axis != (0 if transposed else 1)):
        return None
    is_stored_transposed = transposed and scope.shapes.dtype(source) == FP8
    return Matrix(
        source, numbers if transposed else numbers.T, scale, is_direct, is_stored_transposed
    )


def _constant_fp8(
    scope: Scope, node: ir.Node
) -> tuple[ir.Value, np.ndarray, np.ndarray, int] | None:
    """Return what DequantizeLinear reads: its source, numbers, factors, and their axis."""
    scale = scope.array(node.inputs[1]) if node.inputs[1] is not None else None
    is_blocked = node.attributes.get_int("block_size", 0) != 0
    if scale is None or is_blocked or not is_centred(scope, node):
        return None
    source = node.inputs[0]
    assert source is not None
    rounding = source.producer()
    axis = node.attributes.get_int("axis", 1) % 2
    if rounding is not None and is_op(rounding, "QuantizeLinear"):
        own = scope.array(rounding.inputs[1]) if rounding.inputs[1] is not None else None
        wide = rounding.inputs[0]
        array = None if wide is None or not scope.is_constant(wide) else scope.array(wide)
        same = own is not None and np.array_equal(own, scale) and is_centred(scope, rounding)
        if array is None or array.ndim != 2 or not same or scope.shapes.dtype(source) != FP8:
            return None
        assert wide is not None
        factors = scale.reshape(-1).astype(np.float32)
        shape = [1, 1]
        shape[axis] = -1
        return wide, rounded_constant_fp8(array / factors.reshape(shape)), factors, axis
    if not scope.is_constant(source) or scope.shapes.dtype(source) != FP8:
        return None
    array = scope.array(source)
    return None if array is None else (source, array, scale.reshape(-1).astype(np.float32), axis)


def rounded_constant_fp8(array: np.ndarray) -> np.ndarray:
    """Return numbers in fp8, clipped to its range."""
    inside = np.clip(array.astype(np.float32), -LARGEST, LARGEST)
    return inside.astype(ml_dtypes.float8_e4m3fn)


def _dequantized_by(scope: Scope, value: ir.Value | None) -> tuple[ir.Node, ...]:
    """Return what makes rows of fp8 numbers, in order; nothing if they are not made of such.

    What exactly that is the template sees.
    """
    found: tuple[ir.Node, ...] = ()
    while value is not None and scope.shapes.dtype(value) != FP8:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _DEQUANTIZE:
            return ()
        found, value = (node, *found), node.inputs[0]
    return found if value is not None else ()


def _rounding_nodes(value: ir.Value) -> tuple[ir.Node, ...]:
    """Return the nodes that may round rows: QuantizeLinear, or those with a factor for each row.

    What exactly they do the template sees.
    """
    end = value.producer()
    if end is None or is_op(end, "QuantizeLinear"):
        return () if end is None else (end,)
    found, pending = dict[ir.Node, None](), [end]
    while pending and len(found) <= len(_QUANTIZE) + 1:
        node = pending.pop()
        if node in found or node.domain or node.op_type not in _QUANTIZE:
            continue
        found[node] = None
        if node is end or node.op_type != "Cast":  # the other one makes float32 of the rows
            pending += [
                made for item in node.inputs if item is not None and (made := item.producer())
            ]
    return tuple(found)

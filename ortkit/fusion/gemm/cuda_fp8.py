"""Regions of fp8 matmuls on CUDA, as quantized models have them.

A matrix is read by DequantizeLinear, with a factor for each column or one for all, or is rounded
by QuantizeLinear before it. Rows are as they are, or QuantizeLinear rounded them with one factor,
or `ortkit.precision` with one for each row. A region is one product, or two of the same rows that
meet, the epilogue of pointwise nodes and, where one alone reads that, the QuantizeLinear for the
next product. Another one rounds rows, with the norm prologue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.analysis.quantization import is_op
from ortkit.fusion.gemm.cuda import (
    NORMS,
    EpilogueChain,
    epilogue_chain_of,
    norm_prologue,
    predict,
    sizes_of,
)
from ortkit.fusion.gemm.cuda_fp8_operands import (
    FLOATS,
    FP8,
    Matrix,
    Rows,
    is_centred,
    is_fp8_product,
    matrix_of,
    rounding_nodes,
    rows_of,
)
from ortkit.fusion.regions.access import only_reader
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.describe import describe_region, tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search, refused
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.kernels.tuning.gemm_times import rounding_ns
from ortkit.rewrite.scope import Scope

ROUNDED = "rounded_rows"
#: DequantizeLinear has had this type since then.
SINCE = 19
#: Rows up to which each block may find their norm for itself.
_MOST_NORMED = 8
#: Names an input of the region.
_Add = Callable[[ir.Value, TensorSpec | None], str]


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each fp8 matmul of one graph, and for what rounds rows."""
    if search.scope.opset() < SINCE:
        return
    rounded: dict[ir.Value, None] = {}
    for node in search.nodes():
        if is_fp8_product(search.scope, node):
            yield _product(search, anchor, node, rounded)
    for value in rounded:
        yield from _rounding(search, value)


def _product(
    search: Search, anchor: Anchor, node: ir.Node, rounded: dict[ir.Value, None]
) -> Candidate:
    """Return the region of a matmul with an fp8 weight; `rounded` gets its fp8 rows."""
    scope = search.scope
    rows = rows_of(scope, node)
    chain = epilogue_chain_of(scope, node, search.excluded, is_fp8_product)
    norm = norm_prologue(chain, search.excluded) if rows.scale is None else None
    sizes = replace(sizes_of(scope, chain, norm), is_narrow=rows.scale is not None)
    if sizes.rows is None or sizes.rows > _MOST_NORMED:
        norm, sizes = None, replace(sizes, is_normed=False)
    prediction = predict(scope, anchor, sizes)
    nodes = [*(() if norm is None else (norm,)), *chain.products, *chain.epilogue]
    last = _rounding_consumer(scope, chain.output, search.excluded)
    if last is not None and rows.scale is not None:
        nodes.append(last)
    whole = search.region(nodes, anchor.kind)
    if prediction is None:
        return refused(whole, "large-M matmuls in half precision with fp8 weights are no faster")
    region, signature = _narrowed(search, whole, chain, rows)
    one = search.judged(region, prediction, signature)
    if one.signature is not None and rows.scale is not None:
        rounded[rows.value] = None
    return one


def _rounding(search: Search, value: ir.Value) -> Iterator[Candidate]:
    """Yield the region that rounds rows for fp8 matmuls."""
    nodes = rounding_nodes(search.scope, value)
    if not nodes or search.excluded.intersection(nodes):
        return
    norm = _norm_of(nodes, search.excluded)
    shape = search.scope.shapes.shape(value) or ()
    # As nodes, one after the other, and as one kernel; a size that is not known counts as one.
    once = rounding_ns(prod(size for size in shape if isinstance(size, int)))
    prediction = Prediction((len(nodes) + bool(norm)) * once, once)
    yield search.judged(search.region((*nodes, *norm), ROUNDED), prediction)


def _narrowed(
    search: Search, whole: FusedRegion, chain: EpilogueChain, rows: Rows
) -> tuple[FusedRegion, RegionSignature]:
    """Return the region with its fp8 inputs, and its signature."""
    scope = search.scope
    plain = describe_region(scope, whole)
    function = plain.function()
    names = dict(zip(whole.inputs, function.input, strict=True))
    specs = dict(zip(whole.inputs, plain.inputs, strict=True))
    inputs: dict[ir.Value, TensorSpec] = {}
    called: dict[ir.Value, str] = {}
    before: list[onnx.NodeProto] = []

    def add(value: ir.Value, spec: TensorSpec | None = None) -> str:
        inputs.setdefault(value, spec or tensor_spec(scope, value))
        return called.setdefault(value, f"n{len(called)}")

    matrices = {product.inputs[1]: matrix_of(scope, product) for product in chain.products}
    multiplied = chain.products[0].inputs[0]
    for value, name in names.items():
        matrix = matrices.get(value)
        if matrix is not None:
            before += _dequantized(search, matrix, value, name, add)
        elif value is multiplied and rows.scale is not None:
            dtype = scope.shapes.dtype(value)
            assert dtype is not None
            before += _widened(rows, name, add, dtype, specs[value])
        else:
            called[value] = name
            inputs[value] = specs[value]
    opsets = [helper.make_opsetid("", scope.opset())]
    made = helper.make_function(
        DOMAIN, whole.kind, [called[value] for value in inputs], list(function.output),
        [*before, *function.node], opsets,
    )  # fmt: skip
    signature = RegionSignature(whole.kind, body_text(made), tuple(inputs.values()), plain.outputs)
    return replace(whole, inputs=tuple(inputs)), signature


def _dequantized(
    search: Search, matrix: Matrix, value: ir.Value, name: str, add: _Add
) -> list[onnx.NodeProto]:
    """Return nodes that make `value` of a matrix that lies as [columns, depth]."""
    dtype = search.scope.shapes.dtype(value)
    assert dtype is not None
    scale = np.broadcast_to(matrix.scale.reshape(-1), matrix.numbers.shape[:1])
    parts = {"eight": matrix.numbers, "scales": scale.astype(FLOATS[dtype])}
    held = []
    for what, array in parts.items():
        if what == "eight" and matrix.is_stored_transposed:
            held.append(add(matrix.source, None))
            continue
        packed = ir.tensor(np.ascontiguousarray(array))
        constant = search.constant((matrix.source, what), f"{matrix.source.name}/{what}", packed)
        held.append(add(constant, TensorSpec(f"{name}/{what}", array.dtype.name, array.shape)))
    wide = name if matrix.is_direct else f"{name}_wide"
    nodes = [helper.make_node("DequantizeLinear", held, [wide], axis=0)]
    if not matrix.is_direct:
        nodes.append(helper.make_node("Transpose", [wide], [name], perm=[1, 0]))
    return nodes


def _widened(
    rows: Rows, name: str, add: _Add, dtype: ir.DataType, spec: TensorSpec
) -> list[onnx.NodeProto]:
    """Return nodes that dequantize fp8 rows for the matmul."""
    narrow = add(rows.value, replace(spec, dtype="float8_e4m3fn"))
    if isinstance(rows.scale, float):
        held = numpy_helper.from_array(np.array(rows.scale, FLOATS[dtype]))
        scale = f"{name}_scale"
        return [
            helper.make_node("Constant", [], [scale], value=held),
            helper.make_node("DequantizeLinear", [narrow, scale], [name]),
        ]
    assert rows.scale is not None
    factors = add(rows.scale, TensorSpec(f"{name}/factors", "float32", (*spec.shape[:-1], 1)))
    is_float = dtype == ir.DataType.FLOAT
    scaled = name if is_float else f"{name}_scaled"
    nodes = [
        helper.make_node("Cast", [narrow], [f"{name}_wide"], to=int(ir.DataType.FLOAT)),
        helper.make_node("Mul", [f"{name}_wide", factors], [scaled]),
    ]
    return (
        nodes if is_float else [*nodes, helper.make_node("Cast", [scaled], [name], to=int(dtype))]
    )


def _norm_of(nodes: Sequence[ir.Node], excluded: set[ir.Node]) -> tuple[ir.Node, ...]:
    """Return the norm whose result these nodes alone read."""
    made = {value for node in nodes for value in node.outputs}
    for node in nodes:
        for value in node.inputs:
            norm = None if value is None or value in made else value.producer()
            if norm is None or norm in excluded or norm.op_type not in NORMS or norm.domain:
                continue
            others = [one for one in norm.outputs[1:] if one.uses() or one.is_graph_output()]
            is_own = all(use.node in nodes for use in norm.outputs[0].uses())
            if is_own and not others and not norm.outputs[0].is_graph_output():
                return (norm,)
    return ()


def _rounding_consumer(scope: Scope, value: ir.Value, excluded: set[ir.Node]) -> ir.Node | None:
    """Return the QuantizeLinear to fp8 with one scale that is the only consumer of a value."""
    node = only_reader(value)
    if node is None or node in excluded or not is_op(node, "QuantizeLinear"):
        return None
    if node.inputs[0] is not value:
        return None
    if scope.shapes.dtype(node.outputs[0]) != FP8 or not is_centred(scope, node):
        return None
    return node if rounding_nodes(scope, node.outputs[0]) else None

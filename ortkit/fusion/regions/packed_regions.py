"""Regions of products with a packed matrix: the matmul, its bias, and the epilogue.

A kernel sees each as a function of rows, the packed matrix and, if there is one, the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import onnx
import onnx_ir as ir

from ortkit.fusion.regions.bodies import write_step
from ortkit.fusion.regions.cost_model import Prediction, gain_refusal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.members import is_reshape
from ortkit.fusion.regions.ort_costs import ARITHMETIC_NS
from ortkit.fusion.regions.packed import (
    Product,
    find_product,
    sizes_as_text,
    with_epilogues,
    with_scale,
)
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.fusion.regions.sizes import joined_rows
from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor, ProductSizes
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.signature import RegionSignature, TensorSpec, signature_of
from ortkit.kernels.sizes import extent_of
from ortkit.refusal import Refused
from ortkit.rewrite.log import DENIED

#: Of bodies that kernels are made of, and nothing else.
_OPSET = 20
#: What a product takes longer if its matrix has factors: those of a tile of 14 rows.
_SCALED = 15 / 14
_Sizes = Sequence[int | str]


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield the products of one graph that are taken; what is left has its reason in the log.

    Only the last node has consumers outside the region. Its only non-constant input is the
    activation. The region is therefore convex: replacing it by one node creates no cycle.
    """
    for node in search.nodes():
        first = find_product(search.scope, node, anchor)
        if first is None:
            continue
        found = first if isinstance(first, Refused) else _best(search, anchor, first)
        if isinstance(found, Refused):
            search.miss(node, found.reason)
        else:
            yield found


def _best(search: Search, anchor: Anchor, first: Product) -> Candidate | Refused:
    """Return the region with the longest epilogue that a kernel absorbs profitably."""
    lost, least = None, first.of.least_gain
    refused = _stored_twice(search, anchor, first) if search.in_place else None
    for choice in () if refused else _choices(search, anchor, first):
        # Equal reshapes of rows may be one node.
        if not search.excluded.isdisjoint(node for node in choice.nodes if not is_reshape(node)):
            continue
        prediction = _predict(search, anchor, choice)
        if isinstance(prediction, Refused):
            return prediction
        if prediction.gain < least:
            refused = refused or Refused(gain_refusal(prediction.gain, least))
            continue
        signature = _signature(search, anchor, choice)
        refused = signature if isinstance(signature, Refused) else search.accepts(signature)
        if refused is not None or isinstance(signature, Refused):
            continue
        found = search.take(_region(search, choice, signature.name), signature, prediction)
        if found.signature is not None or found.reason == DENIED:
            return found
        lost = lost or found
    return lost or refused or Refused("its nodes are in other regions")


def _choices(search: Search, anchor: Anchor, first: Product) -> Iterator[Product]:
    """Yield a product with each epilogue, the longest first; also from before reshapes of rows."""
    for epilogue in with_epilogues(search.scope, first, anchor.longest, in_place=search.in_place):
        x, nodes = epilogue.x, epilogue.nodes
        while (node := x.producer()) is not None and is_reshape(node) and node.inputs[0]:
            x, nodes = node.inputs[0], (node, *nodes)
        if x is not epilogue.x and not search.in_place:
            yield replace(epilogue, x=x, nodes=nodes)
        scaled = with_scale(search.scope, epilogue) if search.in_place else None
        if scaled is not None:
            yield scaled
        yield epilogue


def _stored_twice(search: Search, anchor: Anchor, one: Product) -> Refused | None:
    """Say that the model would hold a weight twice: packed, and as it is."""
    for use in one.weight.uses():
        other = find_product(search.scope, use.node, anchor) if use.idx == 1 else None
        if not isinstance(other, Product) or other.panels != one.panels:
            return Refused(f"its matrix is read by a {use.node.op_type} as well")
    return Refused("its matrix is a result") if one.weight.is_graph_output() else None


def _predict(search: Search, anchor: Anchor, product: Product) -> Prediction | Refused:
    """Return the times of a matmul and its epilogue before and after."""
    assert anchor.estimate is not None
    found = anchor.estimate(
        search.level,
        ProductSizes(
            product.count, product.depth, product.columns, of_sample=_rows_of_sample(product)
        ),
    )
    if found is None:
        return Refused("no kernel of its product is faster than ONNX Runtime's there")
    before, after = search.cost.corrected(anchor.kind, found)
    if product.bias is not None:
        before += product.count * product.columns * ARITHMETIC_NS
    first = next(iter(product.epilogue), None)
    if first is not None and first.op_type == "Add" and product.residual in first.inputs:
        # No product of ONNX Runtime's adds rows.
        before += search.cost.elements(product.end) * ARITHMETIC_NS
    prologue = product.nodes[:1] if product.scale is not None else ()
    if prologue:
        after *= _SCALED
    return search.cost.around((before, after), prologue, product.epilogue)


def _rows_of_sample(product: Product) -> int:
    """Return the rows of one sample, if the number of samples is not known, and 0 elsewhere."""
    samples, *rows = product.rows
    known = (size if isinstance(size, int) else NOMINAL_SIZE for size in rows)
    return 0 if isinstance(samples, int) or not rows else prod(known)


def _signature(search: Search, anchor: Anchor, product: Product) -> RegionSignature | Refused:
    """Return inputs x, the packed matrix, and the bias if there is one, and what is made."""
    scope = search.scope
    given, made = scope.shapes.shape(product.x), scope.shapes.shape(product.end)
    if given is None or made is None:
        return Refused("a result of unknown shape")
    rows, results, opset = product.rows, sizes_as_text(made[:-1]), scope.opset()
    if not search.in_place:
        count = joined_rows(rows)
        if count is None:
            return Refused("a number of rows that has no name")
        rows = (_name_of(count, (*sizes_as_text(given), *sizes_as_text(made))),)
        results, opset = rows, max(opset, _OPSET)

    def spec(name: str, shape: _Sizes) -> TensorSpec:
        return TensorSpec(name, anchor.dtype, tuple(shape))

    columns = product.columns // 2 if product.is_gated else product.columns
    sizes = {"x": (*rows, product.depth), "w": product.packing.shape}
    if product.bias is not None:
        sizes["b"] = (product.columns,)
    if product.scale is not None:
        sizes["s"] = sizes_as_text(scope.shapes.shape(product.scale) or ())
    if product.residual is not None:
        sizes["r"] = (*results, columns)
    name = "_".join([anchor.kind, *(node.op_type.lower() for node in product.epilogue)])
    nodes = _nodes(search, product, opset)
    inputs = {each: spec(each, shape) for each, shape in sizes.items()}
    result = {nodes[-1].output[0]: spec("y", (*results, columns))}
    return signature_of(name, nodes, opset, inputs, result)


def _name_of(rows: int | str, sizes: _Sizes) -> int | str:
    """Return what the kernel calls a number of rows: products of sizes it could not tell apart."""
    if isinstance(rows, int) or len(extent_of(rows).symbols) == 1:
        return rows
    name, known = "rows", {symbol for size in sizes for symbol in extent_of(size).symbols}
    while name in known:
        name += "_"
    return name


def _nodes(search: Search, product: Product, opset: int) -> list[onnx.NodeProto]:
    writer = NodeWriter()
    rows = "x" if product.scale is None else writer.op("Mul", "x", "s")
    value = writer.op("MatMul", rows, writer.unpacked("w", product.packing))
    if product.bias is not None:
        value = writer.op("Add", value, "b")
    known: dict[ir.Value, str] = {}
    if product.residual is not None:
        known[product.residual] = "r"
    for node in product.epilogue:
        if node.op_type == "Split":
            sizes = writer.integers(*[product.columns // 2] * 2)
            known |= zip(node.outputs, writer.split(value, sizes, axis=-1), strict=True)
            continue
        names = []
        for operand in node.inputs:
            array = search.scope.array(operand, 1)
            if array is None:
                names.append("" if operand is None else known.get(operand, value))
            else:
                names.append(writer.constant(array.reshape(())))
        value = write_step(writer, node, names, opset)
        known[node.outputs[0]] = value
    return writer.nodes


def _region(search: Search, product: Product, name: str) -> FusedRegion:
    inputs = [
        product.x,
        search.constant(product.panels, f"{product.weight.name}/panels", product.panels.tensor()),
    ]
    if product.bias is not None:
        row = product.bias_value
        inputs.append(
            row or detached_constant(ir.tensor(product.bias), f"{product.end.name}/bias")
        )
    inputs += [each for each in (product.scale, product.residual) if each is not None]
    return FusedRegion(name, product.nodes, tuple(inputs), (product.end,))

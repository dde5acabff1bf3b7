"""Regions of products in float32 on CPUs: the matmul, its bias, and the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.gemm.cpu_fp32 import Product, find_product, sizes_as_text, with_epilogues
from ortkit.fusion.gemm.cpu_fp32_bodies import product_signature
from ortkit.fusion.gemm.cpu_fp32_cost import LEAST_GAIN, multiplies, predict_product, rates_on
from ortkit.fusion.regions.cost_model import gain_refusal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.members import is_reshape
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.fusion.regions.sizes import joined_rows
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of
from ortkit.refusal import Refused
from ortkit.rewrite.log import DENIED
from ortkit.rewrite.scope import Scope

#: Of bodies that kernels are made of, and nothing else.
_OPSET = 20


def family(search: Search) -> Iterator[Candidate]:
    """Yield the products of one graph that are taken; what is left has its reason in the log.

    Only the last node has consumers outside the region. Its only non-constant input is the
    activation. The region is therefore convex: replacing it by one node creates no cycle.
    """
    for node in search.nodes() if multiplies(search.scope.target) else ():
        first = find_product(search.scope, node)
        if first is None:
            continue
        found = first if isinstance(first, Refused) else _best(search, first)
        if isinstance(found, Refused):
            search.miss(node, found.reason)
        else:
            yield found


def _best(search: Search, first: Product) -> Candidate | Refused:
    """Return the region with the longest epilogue that a kernel absorbs profitably."""
    rates, lost = rates_on(search.scope.target), None
    refused = _held_twice(search.scope, first) if search.in_place else None
    for one in () if refused else _choices(search, first):
        # Equal reshapes of rows may be one node.
        if not search.taken.isdisjoint(node for node in one.nodes if not is_reshape(node)):
            continue
        prediction = predict_product(one, search.cost, rates)
        if prediction.gain < LEAST_GAIN:
            refused = refused or Refused(gain_refusal(prediction.gain, LEAST_GAIN))
            continue
        signature = _signature(search, one)
        refused = signature if isinstance(signature, Refused) else search.accepts(signature)
        if refused is not None or isinstance(signature, Refused):
            continue
        found = search.take(_region(search, one, signature.name), signature, prediction)
        if found.signature is not None or found.reason == DENIED:
            return found
        lost = lost or found
    return lost or refused or Refused("its nodes are in other regions")


def _choices(search: Search, first: Product) -> Iterator[Product]:
    """Yield a product with each epilogue, the longest first; also from before reshapes of rows."""
    for one in with_epilogues(search.scope, first, in_place=search.in_place):
        x, nodes = one.x, one.nodes
        while (node := x.producer()) is not None and is_reshape(node) and node.inputs[0]:
            x, nodes = node.inputs[0], (node, *nodes)
        if x is not one.x and not search.in_place:
            yield replace(one, x=x, nodes=nodes)
        yield one


def _held_twice(scope: Scope, one: Product) -> Refused | None:
    """Say that the model would have to hold a matrix as it lies, too."""
    for use in one.weight.uses():
        other = find_product(scope, use.node) if use.idx == 1 else None
        if not isinstance(other, Product) or other.panels != one.panels:
            return Refused(f"its matrix is read by a {use.node.op_type} as well")
    return Refused("its matrix is a result") if one.weight.is_graph_output() else None


def _signature(search: Search, one: Product) -> RegionSignature | Refused:
    scope = search.scope
    given, made = scope.shapes.shape(one.x), scope.shapes.shape(one.end)
    if given is None or made is None:
        return Refused("a result of unknown shape")
    if search.in_place:
        sizes = one.rows, sizes_as_text(made[:-1])
        return product_signature(scope, one, sizes, scope.opset())
    rows = joined_rows(one.rows)
    if rows is None:
        return Refused("a number of rows that has no name")
    name = _name_of(rows, (*sizes_as_text(given), *sizes_as_text(made)))
    return product_signature(scope, one, ((name,), (name,)), max(scope.opset(), _OPSET))


def _name_of(rows: int | str, sizes: Sequence[int | str]) -> int | str:
    """Return what the kernel calls a number of rows: products of sizes it could not tell apart."""
    if isinstance(rows, int) or len(extent_of(rows).symbols) == 1:
        return rows
    name, known = "rows", {symbol for size in sizes for symbol in extent_of(size).symbols}
    while name in known:
        name += "_"
    return name


def _region(search: Search, one: Product, name: str) -> FusedRegion:
    inputs = [one.x, search.constant(one.panels, f"{one.weight.name}/panels", one.panels.tensor())]
    if one.bias is not None:
        row = one.bias_value
        inputs.append(row or detached_constant(ir.tensor(one.bias), f"{one.end.name}/bias"))
    return FusedRegion(name, one.nodes, tuple(inputs), (one.end,))

"""Regions of products in float32 on CPUs: the matmul, its bias, and the epilogue."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortkit.fusion.gemm.cpu_fp32 import Product, find_product, sizes_as_text, with_epilogues
from ortkit.fusion.gemm.cpu_fp32_bodies import product_signature
from ortkit.fusion.gemm.cpu_fp32_cost import LEAST_GAIN, multiplies, predict_product
from ortkit.fusion.regions.cost_model import gain_refusal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.kernels.layouts.fp32_panels import panels, panels_shape
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope


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
    calibration = load_calibration()
    refused = _held_twice(search.scope, first)
    for one in () if refused else with_epilogues(search.scope, first, in_place=True):
        if not search.taken.isdisjoint(one.nodes):
            continue
        prediction = predict_product(one, calibration)
        if prediction.gain < LEAST_GAIN:
            refused = refused or Refused(gain_refusal(prediction.gain, LEAST_GAIN))
            continue
        signature = _signature(search.scope, one)
        refused = signature if isinstance(signature, Refused) else search.accepts(signature)
        if refused is None and not isinstance(signature, Refused):
            return search.take(_region(search, one, signature.name), signature, prediction)
    return refused or Refused("its nodes are in other regions")


def _held_twice(scope: Scope, one: Product) -> Refused | None:
    """Say that the model would have to hold a matrix as it lies, too."""
    for use in one.weight.uses():
        other = find_product(scope, use.node) if use.idx == 1 else None
        if not isinstance(other, Product) or _packing(other) != _packing(one):
            return Refused(f"its matrix is read by a {use.node.op_type} as well")
    return Refused("its matrix is a result") if one.weight.is_graph_output() else None


def _signature(scope: Scope, one: Product) -> RegionSignature | Refused:
    shape = scope.shapes.shape(one.end)
    if shape is None:
        return Refused("a result of unknown shape")
    return product_signature(scope, one, (one.rows, sizes_as_text(shape[:-1])), scope.opset())


def _region(search: Search, one: Product, name: str) -> FusedRegion:
    packed = ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(panels(one.matrix()))),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(panels_shape(one.depth, one.columns)),
    )
    inputs = [one.x, search.constant(_packing(one), f"{one.weight.name}/panels", packed)]
    if one.bias is not None:
        row = one.bias_value
        inputs.append(row or detached_constant(ir.tensor(one.bias), f"{one.end.name}/bias"))
    return FusedRegion(name, one.nodes, tuple(inputs), (one.end,))


def _packing(one: Product) -> tuple[ir.Value, bool, float]:
    """Return what tells packed matrices apart."""
    return one.weight, one.is_transposed, one.factor

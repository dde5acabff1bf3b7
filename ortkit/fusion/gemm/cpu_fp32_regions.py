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
from ortkit.fusion.regions.family import Find, Search
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.region import PASS, FusedRegion
from ortkit.fusion.regions.select import Accepts
from ortkit.kernels.layouts.fp32_panels import panels, panels_shape
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe


def family(search: Search) -> Find:
    """Look for these products, where their rates hold."""
    if not multiplies(search.target):
        return lambda _, __: iter(())
    return ProductRegions(search.scope, search.accepts).candidates


class ProductRegions:
    """The regions of one scope; products of one matrix share its packed form."""

    def __init__(self, scope: Scope, accepts: Accepts) -> None:
        self._scope = scope
        self._accepts = accepts
        self._calibration = load_calibration()
        self._packed: dict[tuple[ir.Value, bool, float], ir.Value] = {}

    def candidates(
        self, graph: ir.Graph, excluded: frozenset[ir.Node] = frozenset()
    ) -> Iterator[Candidate]:
        """Yield the regions of one graph that are taken; what is left has its reason in the log.

        Only the last node has consumers outside the region. Its only non-constant input is the
        activation. The region is therefore convex: replacing it by one node creates no cycle.

        Args:
            graph: Whose nodes are looked at.
            excluded: Nodes of other regions.
        """
        for node in graph:
            first = None if node in excluded else find_product(self._scope, node)
            if first is None:
                continue
            found = first if isinstance(first, Refused) else self._best(first, excluded)
            if isinstance(found, Candidate):
                yield found
                continue
            outputs = tuple(value.name or "" for value in node.outputs)
            self._scope.log.miss(PASS, describe(node), found.reason, outputs)

    def _best(self, first: Product, excluded: frozenset[ir.Node]) -> Candidate | Refused:
        """Return the region with the longest epilogue that a kernel absorbs profitably."""
        refused = self._held_twice(first)
        for one in () if refused else with_epilogues(self._scope, first, in_place=True):
            if not excluded.isdisjoint(one.nodes):
                continue
            prediction = predict_product(one, self._calibration)
            if prediction.gain < LEAST_GAIN:
                refused = refused or Refused(gain_refusal(prediction.gain, LEAST_GAIN))
                continue
            signature = self._signature(one)
            verdict = signature if isinstance(signature, Refused) else self._accepts(signature)
            if verdict is None and not isinstance(signature, Refused):
                return Candidate(self._region(one, signature.name), signature, prediction, "")
            refused = verdict
        return refused or Refused("its nodes are in other regions")

    def _held_twice(self, one: Product) -> Refused | None:
        """Say that the model would have to hold a matrix as it lies, too."""
        for use in one.weight.uses():
            other = find_product(self._scope, use.node) if use.idx == 1 else None
            if not isinstance(other, Product) or _packing(other) != _packing(one):
                return Refused(f"its matrix is read by a {use.node.op_type} as well")
        return Refused("its matrix is a result") if one.weight.is_graph_output() else None

    def _signature(self, one: Product) -> RegionSignature | Refused:
        shape = self._scope.shapes.shape(one.end)
        if shape is None:
            return Refused("a result of unknown shape")
        rows = (one.rows, sizes_as_text(shape[:-1]))
        return product_signature(self._scope, one, rows, self._scope.opset())

    def _region(self, one: Product, name: str) -> FusedRegion:
        key = _packing(one)
        if key not in self._packed:
            packed = ir.LazyTensor(
                lambda: ir.tensor(np.ascontiguousarray(panels(one.matrix()))),
                dtype=ir.DataType.FLOAT,
                shape=ir.Shape(panels_shape(one.depth, one.columns)),
            )
            self._packed[key] = detached_constant(packed, f"{one.weight.name}/panels")
        inputs = [one.x, self._packed[key]]
        if one.bias is not None:
            row = one.bias_value
            inputs.append(row or detached_constant(ir.tensor(one.bias), f"{one.end.name}/bias"))
        return FusedRegion(name, one.nodes, tuple(inputs), (one.end,))


def _packing(one: Product) -> tuple[ir.Value, bool, float]:
    """Return what tells packed matrices apart."""
    return one.weight, one.is_transposed, one.factor

"""fold-constants: what follows from constants alone is computed now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.random_ops import is_random
from ortkit.graph.shapes.evaluate import Unsupported, evaluate
from ortkit.graph.shapes.reshape import static
from ortkit.graph.walk import subgraphs
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import PURE_DOMAINS, Scope
from ortkit.rewrite.site import describe

#: Folding a weight's DequantizeLinear would take ONNX Runtime's int8 kernels away.
KEPT = frozenset({"Constant", "DequantizeLinear", "QuantizeLinear"})
_INT64_BYTES = 8

#: Operators whose data decide the size of their results, and the most that these hold for each
#: element of the input: int64 numbers, int64 numbers for each axis, and elements themselves.
_MAX_FOLDED: Mapping[str, tuple[int, int, int]] = {
    "Compress": (0, 0, 1),
    "NonMaxSuppression": (3, 0, 0),
    "NonZero": (0, 1, 0),
    "Unique": (3, 0, 1),
}


@dataclass(frozen=True)
class FoldConstants(GraphPass):
    """Evaluate nodes whose inputs are all constant.

    Before:
        t = Transpose(W);  y = MatMul(x, t)            # W: initializer
    After:
        y = MatMul(x, W_transposed)

    Skips:
        * Results that would grow the model by more than `limit` bytes over what they replace, or
          of a size that is not known before they are computed.
        * Random ops, control flow, DequantizeLinear groups, ops of unknown domains.
        * Results that a graph returns: they must be computed there.

    Source:
        Each op's own definition; see `ortkit.graph.shapes.evaluate`.
    """

    name: ClassVar[str] = "fold-constants"

    limit: int = 1 << 20
    """Bytes by which one folded result may exceed the constants that it is made from."""

    def run(self, scope: Scope) -> None:
        for node in list(scope.nodes()):
            if node.graph is not None and self._is_candidate(scope, node):
                self._fold(scope, node)

    def _is_candidate(self, scope: Scope, node: ir.Node) -> bool:
        if node.domain not in PURE_DOMAINS or node.op_type in KEPT or is_random(node):
            return False
        inputs = [value for value in node.inputs if value is not None]
        if not inputs and node.op_type != "Range":
            return False
        if not all(scope.is_constant(value) for value in inputs):
            return False
        return not any(True for _ in subgraphs(node))

    def _fold(self, scope: Scope, node: ir.Node) -> None:
        label = describe(node)
        if not any(value.uses() for value in node.outputs):
            return
        if any(value.is_graph_output() for value in node.outputs):
            scope.log.miss(self.name, label, "a graph returns it")
            return
        read = sum(_nbytes(value) for value in node.inputs)
        predicted = _predicted_bytes(scope, node)
        if predicted is None:
            predicted = _most_bytes(scope, node)
        if predicted is None:
            scope.log.miss(self.name, label, "the size of its result is not known")
            return
        if predicted - read > self.limit:
            scope.log.miss(self.name, label, f"its result would add {predicted - read:,} bytes")
            return
        try:
            results = evaluate(node, [_data(scope, v) for v in node.inputs], _opsets(scope, node))
        except Unsupported as unsupported:
            scope.log.miss(self.name, label, str(unsupported))
            return
        grown = sum(array.nbytes for array in results if array is not None) - read
        if grown > self.limit:
            scope.log.miss(self.name, label, f"its result would add {grown:,} bytes")
            return
        if not scope.log.claim(self.name, "fold", node.outputs[0].name or "", label):
            return
        for value, array in list(zip(node.outputs, results, strict=True)):
            if array is not None and value.uses():
                scope.replace(value, scope.constant(array, f"{value.name}/folded", node))


def _opsets(scope: Scope, node: ir.Node) -> dict[str, int]:
    return {node.domain: scope.opset(node.domain) or 1}


def _data(scope: Scope, value: ir.Value | None) -> np.ndarray | None:
    """Return a constant input's data, None if the input is absent."""
    if value is None:
        return None
    array = scope.array(value)
    if array is None:
        raise Unsupported("its input is a tensor of strings")
    return array


def _nbytes(value: ir.Value | None) -> int:
    """Return the bytes that go if `value` is read here only, else 0."""
    if value is None or value.const_value is None or len(value.uses()) > 1:
        return 0
    return int(value.const_value.nbytes)


def _most_bytes(scope: Scope, node: ir.Node) -> int | None:
    """Return the most that a result can have whose size the data decide."""
    limits = _MAX_FOLDED.get(node.op_type)
    # NonMaxSuppression picks from its scores.
    read = node.inputs[1 if node.op_type == "NonMaxSuppression" else 0] if node.inputs else None
    if limits is None or read is None:
        return None
    shape, dtype = static(scope.shapes.shape(read)), scope.shapes.dtype(read)
    if shape is None or dtype is None or dtype == ir.DataType.STRING:
        return None
    numbers, by_axis, elements = limits
    item = elements * max(1, int(dtype.itemsize))
    return int(prod(shape)) * (_INT64_BYTES * (numbers + by_axis * len(shape)) + item)


def _predicted_bytes(scope: Scope, node: ir.Node) -> int | None:
    total = 0
    for value in node.outputs:
        shape, dtype = static(scope.shapes.shape(value)), scope.shapes.dtype(value)
        if shape is None or dtype is None or dtype == ir.DataType.STRING:
            return None
        total += int(prod(shape) * dtype.itemsize)  # Python's integers: sizes overflow others
    return total

"""What a region takes on a GPU as ONNX Runtime's nodes and as one kernel, predicted.

Measured on an H100 with onnxruntime-gpu 1.31.1, float16, in CUDA graphs (2026-11): a node with few
elements takes 1.5 microseconds, a large one the time that its bytes take at a part of the
bandwidth that depends on the operator (Add 0.88, LayerNormalization 0.32, Gelu 0.42,
RMSNormalization 0.62, Softmax 0.6 at 4096 x 4096). Without a graph the launch, some 5 microseconds
on the host, is what a small node costs; fewer nodes gain then, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.cost_model import CostModel, Prediction, nominal
from ortkit.fusion.regions.members import is_reshape
from ortkit.fusion.regions.parameters import looks_up_rows, parameter_inputs
from ortkit.fusion.regions.past_keys import reads_caches
from ortkit.fusion.regions.region import FusedRegion
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS
from ortkit.operators import where

#: Bytes per nanosecond of the memory, and the part of it that generated kernels reach.
BANDWIDTH, REACHED = 2900.0, 0.94
#: The part of the bandwidth that ONNX Runtime's kernels reach.
ORT_REACHES: Mapping[str, float] = {
    "BiasGelu": 0.8, "FastGelu": 0.45, "Gather": 0.3, "Gelu": 0.42, "GroupNormalization": 0.3,
    "InstanceNormalization": 0.3, "LayerNormalization": 0.32, "LogSoftmax": 0.5,
    "QuickGelu": 0.55, "RMSNormalization": 0.62, "SimplifiedLayerNormalization": 0.62,
    "SkipLayerNormalization": 0.9, "SkipSimplifiedLayerNormalization": 0.9, "Softmax": 0.6,
    "Transpose": 0.5,
}  # fmt: skip
_ELSE = 0.85
#: ONNX Runtime's norms, one block of threads for each row: 12,288 rows of 128 take 11.5
#: microseconds in two launches (heads of queries and keys on an H100, 2026-11).
_NORMS = where(row_norm=True)
_NORM_ROW_NS = 0.69
_SKIP_NORMS = where(domain="com.microsoft", row_norm=True)
#: Of one row between products of ours: what a launch of another library takes in addition, since
#: neither it nor the one behind it begins before the one in front has ended (H200, 2026-11).
_BETWEEN_NS = 1000.0
_PRODUCTS = frozenset({("", "MatMul"), ("", "Gemm"), ("com.microsoft", "MatMulNBits")})
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class CudaCostModel(CostModel):
    """Predictions for the regions of one scope on a GPU."""

    def predict(self, region: FusedRegion) -> Prediction:
        """Return what the region takes before and after.

        A norm of a decoder's step is for a prompt's rows or for one, whose bytes are few.
        """
        if any(map(self._is_token_norm, region.nodes)):
            launches = sum(not is_reshape(node) for node in region.nodes)
            return Prediction(launches * LAUNCH_NS + _BETWEEN_NS, LAUNCH_NS)
        before = sum(self._cuda_node_ns(node) for node in region.nodes)
        read = sum(self._read_bytes(region, value) for value in region.inputs)
        moved = read + self._bytes(region.outputs)
        return Prediction(before, LAUNCH_NS + moved / (BANDWIDTH * REACHED))

    def _is_token_norm(self, node: ir.Node) -> bool:
        """Say whether a norm is of a decoder's rows, before products that have kernels of ours."""
        if node.op_type not in (_SKIP_NORMS if node.domain else _NORMS):
            return False
        shapes, normed = self._scope.shapes, node.outputs[0]
        readers = (use.node for use in normed.uses())
        if _PRODUCTS.isdisjoint((reader.domain, reader.op_type) for reader in readers):
            return False
        leading = (shapes.shape(normed) or ())[:-1]
        is_known = all(isinstance(size, int) for size in leading)
        return not is_known and shapes.dtype(normed) in _HALF and reads_caches(self._scope)

    def of_one_sample(self) -> Self:
        """Return this model: it has no caches, so that a part of the time stays the same part."""
        return self

    def _minimum_points(self) -> int:
        return 0  # a launch less is a launch less, however few the elements

    def _cuda_node_ns(self, node: ir.Node) -> float:
        if is_reshape(node) or self.is_gemm_bias(node):
            return 0.0
        data = [
            value
            for index, value in enumerate(node.inputs)
            if value is not None and index not in parameter_inputs(node)
        ]
        if looks_up_rows(self._scope, node):
            data = list(node.outputs)  # as many rows as are written
        moved = self._bytes([*data, *(value for value in node.outputs if value.name)])
        # A reduction that is no norm is a library call of several launches.
        launches = 2 if access_of(node) == "reduction" else 1
        rate = BANDWIDTH * ORT_REACHES.get(node.op_type, _ELSE)
        return launches * LAUNCH_NS + max(moved / rate, self._rows_ns(node))

    def _rows_ns(self, node: ir.Node) -> float:
        """Return the least that the rows of a norm take, however narrow they are."""
        shape = self._scope.shapes.shape(node.outputs[0]) if node.op_type in _NORMS else None
        axis = node.attributes.get("axis")
        if not shape or (axis is not None and axis.as_int() not in (-1, len(shape) - 1)):
            return 0.0
        return _NORM_ROW_NS * self.elements(node.outputs[0]) / max(nominal(shape[-1]), 1)

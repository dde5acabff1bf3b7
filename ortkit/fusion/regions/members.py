"""Which nodes may stand in a region, and why others may not."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortkit.fusion.regions.access import RESHAPES, access_of
from ortkit.fusion.regions.parameters import has_static_parameters, looks_up_rows
from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.operators.info import Access
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope, is_unused
from ortkit.targets.catalog import load
from ortkit.targets.cpu import CPU

#: Integers in tensors of up to this many elements are sizes and indices, not data.
SHAPE_ARITHMETIC = 64
INTEGERS = frozenset(
    {
        ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
    }
)  # fmt: skip
#: Others are no elements of kernels, and not all have a text form.
TYPES = INTEGERS | {
    ir.DataType.BOOL, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
}  # fmt: skip
#: What ONNX Runtime computes in the blocked layout of its convolutions; it moves transposes out.
BLOCKED = frozenset(
    {
        "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Gelu",
        "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool",
        "Mul", "QuickGelu", "Relu", "Resize", "Sigmoid", "Sum", "Tanh", "Transpose", "Upsample",
    }
)  # fmt: skip
#: What it computes at the end of a convolution, or of a Gemm, of any rank.
EPILOGUES = CPU.fused_conv_activations - {"HardSwish"}  # of convolutions only
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})
_QUANTIZED = where(access="quantize")


class Members:
    """The judgement on the nodes of one graph, asked in topological order."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._blocked: set[ir.Value] = set()
        self._ends_convolution = load(scope.traits.conv_epilogue)

    def access(self, node: ir.Node) -> Access | Refused | None:
        """Return the node's family, why it may not be a member, or None if it is no candidate."""
        access = access_of(node)
        if self._is_blocked(node):
            self._blocked.update(node.outputs)
            if access is not None:
                return Refused("ONNX Runtime keeps it in the blocked layout of its convolutions")
        if access is None or self._is_data_indexed(node) or is_unused(node):
            return None
        reason = self._refusal(node, access)
        return access if reason is None else Refused(reason)

    def _refusal(self, node: ir.Node, access: Access) -> str | None:
        shapes, scope = self._scope.shapes, self._scope
        read = [value for value in node.inputs if value is not None]
        for value in (*read, *node.outputs):
            if value.name and (shapes.shape(value) is None or shapes.dtype(value) is None):
                return f"shape or type of {value.name!r} is unknown"
            if value.name and shapes.dtype(value) not in TYPES:
                return f"no kernel computes with {shapes.dtype(value)}"
        if all(scope.is_constant(value) for value in read):
            return "it is constant"
        if any(_is_shape_arithmetic(scope, value) for value in node.outputs):
            return "integers of sizes and indices are no work"
        if _is_quantized(node):
            return "it belongs to a quantized group"
        if access in ("elementwise", "normalization") and self._ends_convolution(
            self._scope, node
        ):
            return "ONNX Runtime computes it at the end of the convolution"
        if looks_up_rows(scope, node):
            return None
        if access != "elementwise" and not has_static_parameters(scope, node):
            return f"{node.op_type} with parameters that are no constants"
        if _reads_statistics(node):
            return "statistics of the norm are read"
        return None

    def _is_data_indexed(self, node: ir.Node) -> bool:
        """Say whether data says where to gather from, which no kernel of the target can."""
        if node.op_type != "Gather" or has_static_parameters(self._scope, node):
            return False
        has_kernel = self._scope.traits.kernels_look_up_rows
        return not has_kernel or not looks_up_rows(self._scope, node)

    def _is_blocked(self, node: ir.Node) -> bool:
        """Say whether the node makes a blocked value: a 2-D convolution, or what follows one."""
        if node.op_type not in BLOCKED or not self._scope.traits.has_blocked_conv_layout:
            return False
        shape = self._scope.shapes.shape(node.outputs[0])
        if shape is None or len(shape) != 4:
            return False
        if self._scope.shapes.dtype(node.outputs[0]) != ir.DataType.FLOAT:
            return False
        return node.op_type == "Conv" or any(value in self._blocked for value in node.inputs)


def is_tiny(shape: Iterable[Size], limit: int) -> bool:
    """Say whether a tensor surely has at most `limit` elements."""
    total = 1
    for size in shape:
        if not isinstance(size, int):
            return False
        total *= size
    return total <= limit


def is_reshape(node: ir.Node) -> bool:
    """Say whether ONNX Runtime mostly does the node by sharing memory."""
    return node.domain == "" and (node.op_type in RESHAPES or node.op_type == "Identity")


def _is_shape_arithmetic(scope: Scope, value: ir.Value) -> bool:
    shape = scope.shapes.shape(value)
    if shape is None or scope.shapes.dtype(value) not in INTEGERS:
        return False
    return is_tiny(shape, SHAPE_ARITHMETIC)


def _is_quantized(node: ir.Node) -> bool:
    """Say whether the node stands between DequantizeLinear and QuantizeLinear, or beside one."""
    producers = (value.producer() for value in node.inputs if value is not None)
    if any(producer is not None and producer.op_type in _QUANTIZED for producer in producers):
        return True
    readers = (use.node for value in node.outputs for use in value.uses())
    return any(reader.op_type in _QUANTIZED for reader in readers)


def _is_convolved(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if value is None or producer is None or producer.op_type not in CONVOLUTIONS:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


def ends_convolution(_: Scope, node: ir.Node) -> bool:
    """Say whether the CPU provider has one kernel for the convolution before it and this."""
    return node.op_type in EPILOGUES and _is_convolved(node.inputs[0] if node.inputs else None)


def ends_cudnn_convolution(scope: Scope, node: ir.Node) -> bool:
    """Say the same of cuDNN: it takes a Relu, or a sum and a Relu, and of float32 only."""
    value = node.inputs[0] if node.inputs else None
    if value is None or scope.shapes.dtype(value) != ir.DataType.FLOAT:
        return False
    if node.op_type == "Relu":
        producer = value.producer()
        return _is_convolved(value) or (producer is not None and _is_sum_before_relu(producer))
    return _is_sum_before_relu(node)


def _is_sum_before_relu(node: ir.Node) -> bool:
    """Say whether the node adds something to a convolution, and only a Relu reads the sum."""
    if node.op_type != "Add" or node.domain or node.outputs[0].is_graph_output():
        return False
    readers = [use.node.op_type for use in node.outputs[0].uses()]
    return readers == ["Relu"] and any(_is_convolved(value) for value in node.inputs)


def _reads_statistics(node: ir.Node) -> bool:
    """Say whether mean or deviation of a norm, or an older op's other outputs, are read."""
    if node.op_type == "Split":
        return False
    kept = {0, 3} if node.op_type.startswith("Skip") else {0}
    return any(
        value.uses() or value.is_graph_output()
        for index, value in enumerate(node.outputs)
        if index not in kept
    )

"""Which operators may compute in float16 or bfloat16, and which of their tensors then do."""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from ortkit.operators import where

#: Safe in half precision: products whose kernels accumulate in float32, norms and softmax whose
#: kernels keep their statistics in float32, and what neither grows values nor sums many.
_STANDARD = frozenset(
    {
        "Abs", "Add", "Attention", "AveragePool", "Cast", "Ceil", "Celu", "Clip", "Compress",
        "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Dropout", "Elu", "Erf",
        "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm",
        "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish",
        "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "MatMul", "Max",
        "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "RMSNormalization",
        "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Reshape", "Resize", "RotaryEmbedding",
        "Round", "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign",
        "SimplifiedLayerNormalization", "Slice", "Softmax", "Softsign", "SpaceToDepth", "Split",
        "Squeeze", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu", "Tile", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip
_MICROSOFT = frozenset(
    {
        "Attention", "BiasAdd", "BiasGelu", "BiasSplitGelu", "FastGelu", "FusedConv", "FusedGemm",
        "FusedMatMul", "Gelu", "GroupNorm", "GroupQueryAttention", "MatMulNBits",
        "MultiHeadAttention", "NhwcConv", "PackedAttention", "QuickGelu",
        "RelativePositionBias", "RotaryEmbedding", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"attention", "conv", "matmul"})
#: What makes a run worth its casts: the products and attention.
HEAVY = (where(access=_PRODUCTS) | where(domain="com.microsoft", access=_PRODUCTS)) & (
    _STANDARD | _MICROSOFT
)
#: They average what may have been squared: as coarse as what they read, never coarser.
REDUCTIONS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool", "Mean", "Sum"})
#: Here constants beyond the range stand for infinity: masks.
SENTINELS = frozenset({"Add", "Clip", "Max", "Min", "Mul", "Pad", "Sub", "Where"})
#: Inputs that stay float32, by operator: sizes and factors, statistics of norms.
_KEPT_INPUTS = {("", "Resize"): {1, 2}, ("com.microsoft", "GroupNorm"): {1, 2}}


def may_be_half(node: ir.Node) -> bool:
    """Say whether an operator is safe in half precision, whatever its data."""
    if any(isinstance(attribute.value, ir.Graph) for attribute in node.attributes.values()):
        return False
    if node.domain == "":
        if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
            return False  # a square leaves float16's range at 256
        if _accumulates(node):
            return False
        return node.op_type in _STANDARD
    return node.domain == "com.microsoft" and node.op_type in _MICROSOFT


def _accumulates(node: ir.Node) -> bool:
    """Say whether a scatter adds or multiplies what falls to one place: any number of values."""
    reduction = node.attributes.get_string("reduction", "none")
    return node.op_type.startswith("Scatter") and reduction in ("add", "mul")


def half_inputs(node: ir.Node, opset: int) -> frozenset[int]:
    """Return the inputs whose type changes with the operator's own."""
    kept = set(_KEPT_INPUTS.get((node.domain, node.op_type), ()))
    if node.domain == "":
        kept |= _fixed(node.op_type, opset)
    return frozenset(range(len(node.inputs))) - kept


def half_outputs(node: ir.Node) -> frozenset[int]:
    """Return the outputs whose type changes; means and deviations of norms stay float32."""
    found = range(len(node.outputs))
    if not node.op_type.endswith("LayerNormalization"):
        return frozenset(found)
    # The last output of the skip norms is the sum that they normalize.
    return frozenset({0, 3}).intersection(found)


@cache
def _fixed(op_type: str, opset: int) -> frozenset[int]:
    """Return inputs that the schema says are float32 in any case."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return frozenset()
    return frozenset(
        i
        for i, formal_parameter in enumerate(schema.inputs)
        if formal_parameter.type_str == "tensor(float)"
    )

"""Which rule belongs to which operator. One without a rule may mix the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping

from ortkit.graph.batch import along, layout, products
from ortkit.graph.batch.site import Rule
from ortkit.graph.shapes.rules import elementwise
from ortkit.operators import where

_SAMPLES = (
    "Conv ConvTranspose ConvInteger QLinearConv AveragePool LpPool GlobalAveragePool"
    " GlobalMaxPool GlobalLpPool InstanceNormalization GroupNormalization LRN SpaceToDepth"
    " DepthToSpace"
)
_STANDARD: Mapping[str, Rule] = {
    **dict.fromkeys(elementwise.RULES, along.elementwise),
    **dict.fromkeys(_SAMPLES.split(), along.samples),
    **dict.fromkeys(where(access="reduction", dtype="input"), along.reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along.softmax),
    **dict.fromkeys(where(row_norm=True), along.norm),
    **dict.fromkeys(("ArgMax", "ArgMin"), along.arg_reduce),
    **dict.fromkeys(("CumSum", "CumProd"), along.cumulative),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), along.quantize),
    **dict.fromkeys(where(reshapes=True), layout.reshape),
    "BatchNormalization": along.batch_norm,
    "MaxPool": along.max_pool,
    "Dropout": along.dropout,
    "Resize": along.resize,
    "TopK": along.along(-1),
    "LpNormalization": along.along(-1),
    "Split": along.along(0),
    "MeanVarianceNormalization": along.mean_variance,
    "Transpose": layout.transpose,
    "Expand": layout.expand,
    "Concat": layout.concat,
    "Slice": layout.cut,
    "Gather": layout.gather,
    "GatherElements": layout.gather_elements,
    "Tile": layout.tile,
    "Pad": layout.pad,
    "OneHot": layout.one_hot,
    "Trilu": layout.triangle,
    "MatMul": products.matmul,
    "MatMulInteger": products.matmul_integer,
    "Gemm": products.gemm,
    "Einsum": products.einsum,
    "Attention": products.attention,
    "RotaryEmbedding": products.rotary,
    "RNN": products.recurrent(1),
    "GRU": products.recurrent(1),
    "LSTM": products.recurrent(2),
}
_CONTRIB: Mapping[str, Rule] = {
    **dict.fromkeys(where(domain="com.microsoft", access="elementwise"), along.elementwise),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), along.quantize),
    **dict.fromkeys(where(domain="com.microsoft", row_norm=True), along.skip_norm),
    "FusedConv": along.samples,
    "RotaryEmbedding": products.rotary,
    "FusedMatMul": products.matmul,
    "FusedGemm": products.gemm,
    "MatMulNBits": products.matmul_nbits,
    "MultiHeadAttention": products.multi_head_attention,
}


def rule_of(domain: str, op_type: str) -> Rule | None:
    """Return the rule of an operator, None if there is none."""
    if domain in ("", "ai.onnx"):
        return _STANDARD.get(op_type)
    return _CONTRIB.get(op_type) if domain == "com.microsoft" else None

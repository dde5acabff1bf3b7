"""The operators whose arithmetic no graph optimization takes away."""

from __future__ import annotations

#: As ONNX Runtime's profile calls them, its own fused forms included. Attention is here as a
#: whole: how much of it is products the profile does not say.
HEAVY = frozenset(
    {
        "Attention", "Conv", "ConvInteger", "ConvTranspose", "DecoderMaskedMultiHeadAttention",
        "DeformConv", "DynamicQuantizeMatMul", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul",
        "GRU", "Gemm", "GroupQueryAttention", "LSTM", "MatMul", "MatMulInteger",
        "MatMulIntegerToFloat", "MatMulNBits", "MoE", "MultiHeadAttention", "NhwcConv",
        "NhwcFusedConv", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul", "RNN",
    }
)  # fmt: skip
#: Those of them that compute in integers already.
INTEGER = frozenset(
    {
        "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat",
        "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
    }
)  # fmt: skip

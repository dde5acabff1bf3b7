"""Operators that ONNX Runtime adds, most of them in `com.microsoft`."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

MICROSOFT = "com.microsoft"

_op = partial(OpInfo, MICROSOFT)
_pointwise = partial(_op, access="elementwise")
_skip_norm = partial(_op, access="normalization", row_norm=True, data_inputs=(0, 1))
_attention = partial(_op, access="attention")
_random = partial(_op, access="other", random=True)

CONTRIB = (
    _attention("Attention", inputs=(2, 7)),
    _random("BiasDropout", inputs=(2, 5), training_input=4),
    _pointwise("BiasGelu", inputs=(2, 2), broadcasts=True, data_inputs=(0, 1)),
    _random("BitmaskBiasDropout", inputs=(2, 5), training_input=4),
    _random("BitmaskDropout", inputs=(1, 3), training_input=2),
    _attention("DecoderMaskedMultiHeadAttention", inputs=(1, 11)),
    _op("DequantizeLinear", "quantize", (2, 3), "other"),
    _op("DynamicQuantizeMatMul", "matmul", (3, 5), integer=True),
    # The second input is a bias, which may be missing.
    _pointwise("FastGelu", inputs=(1, 2)),
    _op("FusedConv", "conv", (2, 4)),
    _op("FusedGemm", "matmul", (2, 3)),
    _op("FusedMatMul", "matmul", (2, 2)),
    _pointwise("Gelu", inputs=(1, 1)),
    _attention("GroupQueryAttention", inputs=(7, 16)),
    _op("MatMulIntegerToFloat", "matmul", (4, 7), "other", integer=True),
    _op("MatMulNBits", "matmul", (3, 6)),
    _attention("MultiHeadAttention", inputs=(1, 10)),
    _op("NhwcConv", "conv", (2, 3)),
    _op("NhwcFusedConv", "conv", (2, 4)),
    _attention("PackedAttention", inputs=(5, 6)),
    _attention("QAttention", inputs=(5, 9), dtype="other", integer=True),
    _op("QGemm", "matmul", (6, 9), "other", integer=True),
    _op("QLinearConv", "conv", (8, 9), "other", integer=True),
    _op("QuantizeLinear", "quantize", (2, 3), "other"),
    _pointwise("QuickGelu", inputs=(1, 1)),
    _op("RotaryEmbedding", "rotary", (4, 4)),
    _random("Sampling", inputs=(2, 9)),
    _skip_norm("SkipLayerNormalization", inputs=(3, 5)),
    _skip_norm("SkipSimplifiedLayerNormalization", inputs=(3, 4)),
)
#: In ONNX's domain, which has no such operator.
ADDED = (
    OpInfo("", "SimplifiedLayerNormalization", "normalization", (2, 2), "other", row_norm=True),
)

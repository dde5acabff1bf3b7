"""Operators of ONNX that multiply matrices, hold graphs, quantize or draw random numbers."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_control = partial(OpInfo, "", access="control", dtype="other")
_recurrent = partial(OpInfo, "", access="recurrent")
_random = partial(OpInfo, "", access="other", random=True)
_quantize = partial(OpInfo, "", access="quantize", dtype="other")

PRODUCTS = (
    OpInfo("", "Attention", "attention", (3, 7)),
    OpInfo("", "Conv", "conv", (2, 3)),
    OpInfo("", "ConvInteger", "conv", (2, 4), "other", integer=True),
    OpInfo("", "ConvTranspose", "conv", (2, 3)),
    OpInfo("", "DeformConv", "conv", (3, 5)),
    OpInfo("", "Einsum", "matmul", (1, None)),
    _recurrent("GRU", inputs=(3, 6)),
    OpInfo("", "Gemm", "matmul", (2, 3)),
    _recurrent("LSTM", inputs=(3, 8)),
    OpInfo("", "MatMul", "matmul", (2, 2)),
    OpInfo("", "MatMulInteger", "matmul", (2, 4), "other", integer=True),
    OpInfo("", "QLinearConv", "conv", (8, 9), "other", integer=True),
    OpInfo("", "QLinearMatMul", "matmul", (8, 8), "other", integer=True),
    _recurrent("RNN", inputs=(3, 6)),
)

CONTROL = (
    _control("If", inputs=(1, 1)),
    _control("Loop", inputs=(2, None)),
    _control("Scan", inputs=(1, None)),
    _control("SequenceMap", inputs=(1, None)),
)

QUANTIZE = (
    _quantize("DequantizeLinear", inputs=(2, 3)),
    _quantize("DynamicQuantizeLinear", inputs=(1, 1)),
    _quantize("QuantizeLinear", inputs=(2, 3)),
)

RANDOM = (
    _random("Bernoulli", inputs=(1, 1), dtype="other"),
    _random("Dropout", inputs=(1, 3), training_input=2),
    _random("Multinomial", inputs=(1, 1), dtype="other"),
    _random("RandomNormal", inputs=(0, 0), dtype="other"),
    _random("RandomNormalLike", inputs=(1, 1), dtype="other"),
    _random("RandomUniform", inputs=(0, 0), dtype="other"),
    _random("RandomUniformLike", inputs=(1, 1), dtype="other"),
)

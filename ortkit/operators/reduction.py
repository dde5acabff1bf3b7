"""Operators of ONNX that compute along axes."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_reduce = partial(OpInfo, "", access="reduction", inputs=(1, 2), parameter_inputs=(1,))
_arg = partial(OpInfo, "", access="reduction", inputs=(1, 1), dtype="int64")
_norm = partial(OpInfo, "", access="normalization")
_row_norm = partial(_norm, row_norm=True)

REDUCTION = (
    _arg("ArgMax"),
    _arg("ArgMin"),
    _reduce("ReduceL1"),
    _reduce("ReduceL2"),
    _reduce("ReduceLogSum"),
    _reduce("ReduceLogSumExp"),
    _reduce("ReduceMax", exact=True),
    _reduce("ReduceMean"),
    _reduce("ReduceMin", exact=True),
    _reduce("ReduceProd"),
    _reduce("ReduceSum"),
    _reduce("ReduceSumSquare"),
)

NORMALIZATION = (
    _norm("GroupNormalization", inputs=(3, 3)),
    _norm("InstanceNormalization", inputs=(3, 3)),
    _row_norm("LayerNormalization", inputs=(2, 3)),
    _norm("LogSoftmax", inputs=(1, 1)),
    _row_norm("RMSNormalization", inputs=(2, 2), dtype="other"),
    _norm("Softmax", inputs=(1, 1)),
    OpInfo("", "RotaryEmbedding", "rotary", (3, 4)),
)

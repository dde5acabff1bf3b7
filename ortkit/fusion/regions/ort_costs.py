"""What ONNX Runtime's own kernels cost: nanoseconds for each element, one thread, float32.

Measured with onnxruntime 1.31.1 on a server processor with AVX-512 (2026-11) in chains of 12 nodes
on [128, 768], which stays in the cache. What is larger is bound by memory, which
`ortkit.fusion.regions.cost_model` adds. Elements of the output; of the input for reductions.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Arithmetic and comparisons that run at the speed of the cache.
ARITHMETIC_NS = 0.1
ORT_NS: Mapping[str, float] = {
    "Acos": 5.0, "Acosh": 5.0, "Add": 0.11, "And": 0.1, "ArgMax": 1.0, "ArgMin": 1.0, "Asin": 5.0,
    "Asinh": 5.0, "Atan": 5.0, "Atanh": 5.0, "BiasGelu": 0.55, "BitCast": 0.05, "Cast": 0.12,
    "Celu": 0.6, "Concat": 0.19, "Cos": 1.4, "Cosh": 5.0, "Div": 0.19, "Elu": 0.55, "Erf": 0.41,
    "Exp": 0.12, "Expand": 0.2, "FastGelu": 0.45, "Floor": 0.28, "Gather": 0.15, "Gelu": 0.52,
    "Greater": 0.17, "GreaterOrEqual": 0.17, "GroupNormalization": 2.0, "HardSwish": 0.24,
    "InstanceNormalization": 0.4, "LayerNormalization": 0.4, "Less": 0.17,
    "LessOrEqual": 0.17, "Log": 1.4, "LogSoftmax": 0.24, "Mish": 9.0, "Mod": 5.0, "Mul": 0.12,
    "PRelu": 1.4, "Pad": 0.19, "Pow": 0.9, "QuickGelu": 0.26, "RMSNormalization": 0.21,
    "Reciprocal": 0.21, "ReduceLogSumExp": 0.5, "ReduceMax": 0.1, "ReduceMean": 0.07,
    "ReduceMin": 0.1, "ReduceProd": 0.1, "ReduceSum": 0.07, "Relu": 0.08, "RotaryEmbedding": 0.2,
    "Round": 0.2, "Selu": 0.55, "Sigmoid": 0.29, "SimplifiedLayerNormalization": 0.21, "Sin": 1.46,
    "Sinh": 5.0, "SkipLayerNormalization": 3.3, "SkipSimplifiedLayerNormalization": 0.6,
    "Slice": 0.15, "Softmax": 0.23, "Softplus": 8.9, "Split": 0.2, "Sqrt": 0.19, "Swish": 0.4,
    "Tan": 5.0, "Tanh": 0.27, "Transpose": 0.3, "Where": 0.37,
}  # fmt: skip
#: Nanoseconds that each row of a norm or softmax takes beside its elements: the intercepts of rows
#: of 8 to 2,048 elements on an Emerald Rapids, times 0.65, by which that machine was slower.
#: A LayerNormalization of [4096, 32] takes 4 times as long for each element as one of [170, 768].
ROW_NS: Mapping[str, float] = {
    "LayerNormalization": 25.0, "LogSoftmax": 14.0, "RMSNormalization": 16.0,
    "SimplifiedLayerNormalization": 16.0, "Softmax": 9.0,
}  # fmt: skip
#: Pow with an exponent other than 2 and 3 goes through the general power, also for a root.
GENERAL_POW_NS = 4.6

"""The access pattern of each operator: pointwise, view, reduction, norm, rotary or boundary."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

Access = Literal["pointwise", "view", "reduction", "norm", "rotary"]
"""pointwise: each output element from the broadcast elements of the inputs.
view: elements moved, repeated or left out, none computed.
reduction: along axes, which stay with size 1 or go.
norm: along axes, the input's shape kept (LayerNormalization, Softmax).
rotary: pairs of elements along the last axis, the input's shape kept."""

POINTWISE = frozenset(
    {
        "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
        "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu",
        "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
        "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu",
        "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not",
        "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
        "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
        "ThresholdedRelu", "Where", "Xor",
    }
)  # fmt: skip
#: Neither a copy nor a change of order: ONNX Runtime mostly does these by sharing memory.
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
VIEWS = RESHAPES | {"Concat", "Expand", "Gather", "Pad", "Slice", "Split", "Transpose"}
REDUCTIONS = frozenset(
    {
        "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    }
)  # fmt: skip
NORMS = frozenset(
    {
        "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax",
        "RMSNormalization", "SimplifiedLayerNormalization", "Softmax",
    }
)  # fmt: skip
#: ONNX Runtime's own, each written back in standard ops by `ortkit.fusion.regions.bodies`.
RUNTIME_OWN: dict[str, Access] = {
    "BiasGelu": "pointwise",
    "FastGelu": "pointwise",
    "Gelu": "pointwise",
    "QuickGelu": "pointwise",
    "SkipLayerNormalization": "norm",
    "SkipSimplifiedLayerNormalization": "norm",
}

_ACCESS: dict[str, Access] = {
    **dict.fromkeys(POINTWISE, "pointwise"),
    **dict.fromkeys(VIEWS, "view"),
    **dict.fromkeys(REDUCTIONS, "reduction"),
    **dict.fromkeys(NORMS, "norm"),
    "RotaryEmbedding": "rotary",
}


def access_of(node: ir.Node) -> Access | None:
    """Return what the operator is to a region; None if it ends one."""
    if node.domain in ("", "ai.onnx"):
        return _ACCESS.get(node.op_type)
    if node.domain == "com.microsoft":
        return RUNTIME_OWN.get(node.op_type)
    return None

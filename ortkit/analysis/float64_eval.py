"""What nodes compute, in float64 on numpy: functions are recognised by their values.

Casts between float types do nothing here, so that a value computed in float16 and one
computed in float32 are the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

Array = np.ndarray


def erf(x: Array) -> Array:
    """Return the error function of each element."""
    x = np.asarray(x, np.float64)
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)


def sample(node: ir.Node, inputs: Sequence[Array | None]) -> Array | None:
    """Compute the first output of `node`, None where this table does not know how.

    Args:
        node: Any node; only its op type, domain and attributes are read.
        inputs: Float64 for float values, else bool or int64; None where one is absent.

    Returns:
        Float64 or bool; NaN and infinities as IEEE says, without warnings.
    """
    if node.domain not in ("", "com.microsoft"):
        return None
    function = OPS.get(node.op_type)
    if function is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    with np.errstate(all="ignore"):
        try:
            result = function(node, [as_sample(array) for array in inputs])
        except (ValueError, IndexError, TypeError):
            return None
    return None if result is None else as_sample(result)


def as_sample(array: Array | None) -> Array | None:
    """Return `array` with its floats as float64; bools and integers stay."""
    if array is None:
        return None
    array = np.asarray(array)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


Function = Callable[[ir.Node, list[Array | None]], Array | None]


def _given(inputs: Sequence[Array | None], index: int) -> Array:
    array = inputs[index] if index < len(inputs) else None
    if array is None:
        raise ValueError("a required input is absent")
    return array


def _optional(inputs: Sequence[Array | None], index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _float(node: ir.Node, name: str, default: float) -> float:
    found = node.attributes.get(name)
    return default if found is None else found.as_float()


def _int(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _unary(function: Callable[[Array], Array]) -> Function:
    return lambda _node, inputs: function(_given(inputs, 0))


def _binary(function: Callable[[Array, Array], Array]) -> Function:
    return lambda _node, inputs: function(_given(inputs, 0), _given(inputs, 1))


def _variadic(function: Callable[[Array, Array], Array]) -> Function:
    def run(_node: ir.Node, inputs: list[Array | None]) -> Array:
        total = _given(inputs, 0)
        for index in range(1, len(inputs)):
            total = function(total, _given(inputs, index))
        return total

    return run


_total = _variadic(np.add)


def _with(function: Callable[..., Array], **defaults: float) -> Function:
    """Wrap a function of one value and float attributes."""
    return lambda node, inputs: function(
        _given(inputs, 0), *(_float(node, name, value) for name, value in defaults.items())
    )


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _clip(node: ir.Node, inputs: list[Array | None]) -> Array:
    low, high = _optional(inputs, 1), _optional(inputs, 2)
    floor = np.array(_float(node, "min", -math.inf)) if low is None else low
    ceiling = np.array(_float(node, "max", math.inf)) if high is None else high
    return np.asarray(np.minimum(np.maximum(_given(inputs, 0), floor), ceiling))


def _gelu(node: ir.Node, inputs: list[Array | None]) -> Array:
    x = _given(inputs, 0)
    if len(inputs) > 1 and inputs[1] is not None:
        x = x + inputs[1]
    found = node.attributes.get("approximate")
    is_tanh = found is not None and found.as_string() == "tanh"
    if is_tanh or node.op_type == "FastGelu":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf(x * math.sqrt(0.5))))


def _quick_gelu(node: ir.Node, inputs: list[Array | None]) -> Array:
    x = _given(inputs, 0)
    default = 1.0 if node.op_type == "Swish" else 1.702
    return np.asarray(x * sigmoid(_float(node, "alpha", default) * x))


def _cast(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    to, x = _int(node, "to", 0), _given(inputs, 0)
    if to == ir.DataType.BOOL:
        return np.asarray(x != 0)
    return np.asarray(x, np.float64) if to in FLOATS else None


def _where(_node: ir.Node, inputs: list[Array | None]) -> Array:
    return np.where(_given(inputs, 0), _given(inputs, 1), _given(inputs, 2))


def _axes(node: ir.Node, inputs: Sequence[Array | None]) -> tuple[int, ...] | None:
    given = _optional(inputs, 1)
    if given is not None:
        return tuple(int(axis) for axis in given.reshape(-1)) or None
    found = node.attributes.get("axes")
    return None if found is None else tuple(found.as_ints())


def _reduce(function: Callable[..., Array]) -> Function:
    def run(node: ir.Node, inputs: list[Array | None]) -> Array:
        x, axes = _given(inputs, 0), _axes(node, inputs)
        if axes is None and _int(node, "noop_with_empty_axes", 0):
            return x
        return np.asarray(function(x, axis=axes, keepdims=bool(_int(node, "keepdims", 1))))

    return run


def _softmax(node: ir.Node, inputs: list[Array | None]) -> Array:
    x, axis = _given(inputs, 0), _int(node, "axis", -1)
    shifted = x - x.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    if node.op_type == "LogSoftmax":
        return np.asarray(shifted - np.log(total))
    return np.asarray(np.exp(shifted) / total)


def _log_sum_exp(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    return np.asarray(np.log(np.exp(x).sum(axis=axis, keepdims=keepdims)))


OPS: Mapping[str, Function] = {
    "Abs": _unary(np.abs),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Cast": _cast,
    "Celu": _with(lambda x, a: np.maximum(x, 0) + np.minimum(0, a * np.expm1(x / a)), alpha=1.0),
    "Clip": _clip,
    "Cos": _unary(np.cos),
    "Div": _binary(np.divide),
    "Elu": _with(lambda x, a: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), alpha=1.0),
    "Equal": _binary(np.equal),
    "Erf": _unary(erf),
    "Exp": _unary(np.exp),
    "FastGelu": _gelu,
    "Gelu": _gelu,
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "HardSigmoid": _with(lambda x, a, b: np.clip(a * x + b, 0, 1), alpha=0.2, beta=0.5),
    "HardSwish": _unary(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Identity": _unary(lambda x: x),
    "IsNaN": _unary(np.isnan),
    "LeakyRelu": _with(lambda x, a: np.where(x < 0, a * x, x), alpha=0.01),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Log": _unary(np.log),
    "LogSoftmax": _softmax,
    "Max": _variadic(np.maximum),
    "Mean": lambda node, inputs: np.asarray(_total(node, inputs)) / len(inputs),
    "Min": _variadic(np.minimum),
    "Mish": _unary(lambda x: x * np.tanh(np.logaddexp(0.0, x))),
    "Mul": _binary(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "PRelu": _binary(lambda x, slope: np.where(x < 0, slope * x, x)),
    "Pow": _binary(np.power),
    "QuickGelu": _quick_gelu,
    "Reciprocal": _unary(np.reciprocal),
    "ReduceL1": _reduce(lambda x, **how: np.abs(x).sum(**how)),
    "ReduceL2": _reduce(lambda x, **how: np.sqrt((x * x).sum(**how))),
    "ReduceLogSum": _reduce(lambda x, **how: np.log(x.sum(**how))),
    "ReduceLogSumExp": _reduce(_log_sum_exp),
    "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(np.min),
    "ReduceSum": _reduce(np.sum),
    "ReduceSumSquare": _reduce(lambda x, **how: (x * x).sum(**how)),
    "Relu": _unary(lambda x: np.maximum(x, 0)),
    "Round": _unary(np.rint),
    "Selu": _with(
        lambda x, a, g: g * np.where(x <= 0, a * np.expm1(np.minimum(x, 0)), x),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Sigmoid": _unary(sigmoid),
    "Sign": _unary(np.sign),
    "Sin": _unary(np.sin),
    "Softmax": _softmax,
    "Softplus": _unary(lambda x: np.logaddexp(0.0, x)),
    "Softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "Sqrt": _unary(np.sqrt),
    "Sub": _binary(np.subtract),
    "Sum": _variadic(np.add),
    "Swish": _quick_gelu,
    "Tanh": _unary(np.tanh),
    "ThresholdedRelu": _with(lambda x, a: np.where(x > a, x, 0.0), alpha=1.0),
    "Where": _where,
    "Xor": _binary(np.logical_xor),
}

"""Ops that numpy evaluates as ONNX Runtime does, bit for bit: moves, integers, exact rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.operators import where

Array = np.ndarray
#: numpy's own number types: those of ml_dtypes have kind "f" too, but neither saturate nor
#: round as ONNX says.
PLAIN = frozenset(
    np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
                 "uint64", "float16", "float32", "float64")
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A node with its inputs: None where an input is absent."""

    node: ir.Node
    inputs: Sequence[Array | None]
    opset: int

    def input(self, index: int) -> Array:
        """Return a required input.

        Raises:
            ValueError: It is absent.
        """
        array = self.inputs[index] if index < len(self.inputs) else None
        if array is None:
            raise ValueError("a required input is absent")
        return array

    def optional(self, index: int) -> Array | None:
        """Return an input, None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_int()

    def axes(self) -> tuple[int, ...] | None:
        """Return the axes, from the second input or the attribute."""
        if (given := self.optional(1)) is not None:
            return tuple(int(axis) for axis in given.reshape(-1))
        found = self.node.attributes.get("axes")
        return None if found is None else tuple(found.as_ints())


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Call], Array | None]:
    def run(call: Call) -> Array | None:
        a, b = call.input(0), call.input(1)
        if call.opset < 7 or a.dtype != b.dtype:
            return None
        return np.asarray(function(a, b))

    return run


def _unary(function: Callable[[Array], Array]) -> Callable[[Call], Array | None]:
    def run(call: Call) -> Array | None:
        x = call.input(0)
        result = np.asarray(function(x))
        return result if result.dtype == x.dtype or result.dtype == np.bool_ else None

    return run


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if (b == 0).any():
        raise ValueError("integer division by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray((quotient * np.sign(a) * np.sign(b)).astype(a.dtype))


def _cast(call: Call) -> Array | None:
    x = call.input(0)
    to = ir.DataType(call.integer("to", 0))
    try:
        dtype = to.numpy()
    except TypeError:
        return None
    if dtype not in PLAIN or (x.dtype.kind == "f" and dtype.kind in "iu"):
        return None
    # ONNX Runtime rounds twice on the way to float16, by way of float32.
    if dtype == np.float16 and x.dtype not in (np.bool_, np.float16, np.float32):
        return None
    return x.astype(dtype)


def _reshape(call: Call) -> Array | None:
    if call.opset < 5:
        return None
    x, target = call.input(0), [int(size) for size in call.input(1).reshape(-1)]
    if not call.integer("allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    return x.reshape(target)


def _transpose(call: Call) -> Array | None:
    perm = call.node.attributes.get("perm")
    return np.transpose(call.input(0), None if perm is None else tuple(perm.as_ints()))


def _unsqueeze(call: Call) -> Array | None:
    axes = call.axes()
    return None if axes is None else np.expand_dims(call.input(0), axes)


def _squeeze(call: Call) -> Array | None:
    axes = call.axes()
    # An empty list of axes means all of them to ONNX Runtime.
    return None if axes == () else np.squeeze(call.input(0), axes)


def _concat(call: Call) -> Array | None:
    return np.concatenate(
        [call.input(i) for i in range(len(call.inputs))], call.integer("axis", 1)
    )


def _gather(call: Call) -> Array | None:
    return np.take(call.input(0), call.input(1), axis=call.integer("axis", 0))


def _shape(call: Call) -> Array | None:
    shape = np.array(call.input(0).shape, np.int64)
    end = call.node.attributes.get("end")
    return shape[call.integer("start", 0) : None if end is None else end.as_int()]


def _constant_of_shape(call: Call) -> Array | None:
    value = call.node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    return np.full(tuple(int(size) for size in call.input(0)), fill.reshape(-1)[0], fill.dtype)


def _expand(call: Call) -> Array | None:
    x, target = call.input(0), tuple(int(size) for size in call.input(1))
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, target))


def _slice(call: Call) -> Array | None:
    if call.opset < 10:
        return None
    x = call.input(0)
    starts, ends = call.input(1).tolist(), call.input(2).tolist()
    given, by = call.optional(3), call.optional(4)
    axes = range(len(starts)) if given is None else given.tolist()
    steps = [1] * len(starts) if by is None else by.tolist()
    index: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and end < -x.shape[axis]:
            end = None
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _where(call: Call) -> Array | None:
    return np.where(call.input(0), call.input(1), call.input(2))


def _range(call: Call) -> Array | None:
    start, limit, delta = (call.input(i).reshape(-1)[0] for i in range(3))
    if start.dtype.kind != "i" or delta == 0:
        return None
    return np.arange(int(start), int(limit), int(delta), dtype=start.dtype)


EXACT: Mapping[str, Callable[[Call], Array | None]] = {
    "Abs": _unary(np.abs),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Cast": _cast,
    "Ceil": _unary(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _binary(_divide),
    "Equal": _binary(np.equal),
    "Expand": _expand,
    "Floor": _unary(np.floor),
    "Gather": _gather,
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Identity": _unary(lambda x: x),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Mul": _binary(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "Range": _range,
    "Reciprocal": _unary(lambda x: np.ones((), x.dtype) / x),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _unary(lambda x: np.array(x.size, np.int64)),
    "Slice": _slice,
    "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}

#: Those that only move elements, whatever type these have.
MOVES = (where(moves_only=True) & EXACT.keys()) | {"Shape", "Where"}

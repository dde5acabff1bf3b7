"""Operators that make tensors from nothing, from shapes, or from a few numbers."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import tensor_of_constant_node
from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import (
    INTEGERS,
    WIDE_FLOATS,
    Call,
    Element,
    Rule,
    UnknownError,
    count,
    is_small,
)
from ortkit.graph.shapes.rules.constant import constant_fact
from ortkit.graph.symbolic.dims import Dim, Size, add, ceil_divide, is_at_least, maximum, product

INT64 = ir.DataType.INT64


def _constant(call: Call) -> None:
    attribute = call.node.attributes.get("value")
    tensor: ir.TensorProtocol | None
    if attribute is not None and not attribute.is_ref():
        # Not `as_tensor`: it checks a Protocol, which takes longer than all the rest here.
        tensor = attribute.value
    else:
        tensor = tensor_of_constant_node(call.node)
    if tensor is not None:
        call.put(0, constant_fact(tensor))


def _shape(call: Call) -> None:
    call.out(dtype=INT64)
    shape = call.fact(0).shape
    if shape is None:
        call.out(shape=(call.fresh(),))
        return
    start = call.integer("start", 0)
    attribute = call.attribute("end")
    end = len(shape) if attribute is None else attribute.as_int()
    part = shape[slice(start, end)]
    call.out(shape=(len(part),), elements=part)


def _size(call: Call) -> None:
    call.out(dtype=INT64, shape=())
    call.out(elements=(product(call.shape(0)),))


def _constant_of_shape(call: Call) -> None:
    attribute = call.attribute("value")
    tensor = None if attribute is None else attribute.as_tensor()
    value = None if tensor is None else constant_fact(tensor)
    call.out(dtype=ir.DataType.FLOAT if value is None else value.dtype)
    target = call.fact(0)
    if target.elements is None:
        length = target.shape[0] if target.shape else None
        if isinstance(length, int) and length < 64:
            call.out(shape=tuple(call.fresh() for _ in range(length)))
        return
    shape = call.sizes(0)
    call.out(shape=shape)
    total = count(shape)
    if total is None or not is_small(shape):
        return
    if value is None:
        call.out(elements=(0.0,) * total)
    elif value.elements:
        call.out(elements=value.elements[:1] * total)


def _range(call: Call) -> None:
    dtype = call.dtype(0)
    call.out(dtype=dtype, shape=(call.fresh(),))
    start, limit, delta = (call.elements(index)[0] for index in range(3))
    if dtype in WIDE_FLOATS:
        call.out(shape=(_float_steps(start, limit, delta),))
        return
    sizes = [n for n in (start, limit, delta) if isinstance(n, int | Dim)]
    if len(sizes) != 3 or dtype not in INTEGERS:
        raise UnknownError
    first, last, step = sizes
    length = _steps(first, last, step)
    call.out(shape=(length,))
    if isinstance(length, int) and isinstance(step, int) and length <= 64:
        call.out(elements=tuple(add(first, step * index) for index in range(length)))


def _steps(start: Size, limit: Size, delta: Size) -> Size:
    if not isinstance(delta, int) or delta == 0:
        raise UnknownError
    way = add(limit, -start) if delta > 0 else add(start, -limit)
    return maximum(ceil_divide(way, abs(delta)), 0)


def _float_steps(start: Element, limit: Element, delta: Element) -> Size:
    if isinstance(start, float) and isinstance(limit, float) and isinstance(delta, float):
        # Runtimes differ in where they round to float32: only a count that all find is known.
        way = float(np.float32(limit) - np.float32(start))
        counts = {(limit - start) / delta, way / delta, float(np.float32(way / delta))}
        number, *others = {max(math.ceil(count), 0) for count in counts}
        if others:
            raise UnknownError
        return number
    steps = el.ceil(el.divided_as_floats(el.subtracted(limit, start), delta))
    if isinstance(steps, float):
        return max(int(steps), 0)
    if not isinstance(steps, Dim):
        raise UnknownError
    return maximum(steps, 0)


def _like(call: Call) -> None:
    dtype = call.type_attribute("dtype")
    call.out(dtype=call.dtype(0) if dtype is None else dtype, shape=call.fact(0).shape)


def _random(call: Call) -> None:
    shape = call.integers("shape")
    call.out(dtype=call.type_attribute("dtype") or ir.DataType.FLOAT, shape=shape)


def _window(call: Call) -> None:
    """HannWindow and its like: as many numbers as input 0 says."""
    call.out(dtype=call.type_attribute("output_datatype") or ir.DataType.FLOAT)
    size = call.sizes(0)[0]
    if not is_at_least(size, 0):
        size = call.fresh()
    call.out(shape=(size,))


def _stft(call: Call) -> None:
    # The onnx package counts too many frequencies where `onesided` is left at its default
    # (seen with onnx 1.23.2), so it is not asked.
    call.out(dtype=call.dtype(0))
    call.out(shape=(call.shape(0)[0], call.fresh(), call.fresh(), 2))


RULES: dict[str, Rule] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _like,
    "RandomNormalLike": _like,
    "RandomUniformLike": _like,
    "Bernoulli": _like,
    "RandomNormal": _random,
    "RandomUniform": _random,
    "STFT": _stft,
    "HannWindow": _window,
    "HammingWindow": _window,
    "BlackmanWindow": _window,
}

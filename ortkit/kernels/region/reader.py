"""Reads a region's body, an ONNX function, as a `Program`; or says why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import onnx
import onnx.numpy_helper

from ortkit.kernels.region import macros
from ortkit.kernels.region.body_node import BodyNode, BodyReader, Reads, axis_of
from ortkit.kernels.region.norms import NORMS
from ortkit.kernels.region.ops import DTYPES, POINTWISE_OPS
from ortkit.kernels.region.program import Builder, Input, Program, text
from ortkit.kernels.region.views import VIEWS
from ortkit.kernels.signature import RegionSignature, canonical_function
from ortkit.kernels.sizes import extent_of
from ortkit.refusal import Refused, RefusedError, refusals

#: Softmax flattens to two dims before.
_FIRST_OPSET = 13


def read_program(signature: RegionSignature) -> Program | Refused:
    """Return the region's program, or why it has none."""
    return _read(signature)


@lru_cache(maxsize=512)
@refusals
def _read(signature: RegionSignature) -> Program:
    function = canonical_function(signature.function())
    opset = next((o.version for o in function.opset_import if o.domain == ""), 0)
    reader = BodyReader(Builder())
    for index, (name, spec) in enumerate(zip(function.input, signature.inputs, strict=True)):
        if spec.dtype not in DTYPES:
            raise RefusedError(f"input {spec.name!r} of type {spec.dtype}")
        shape = tuple(extent_of(dim) for dim in spec.shape)
        reader.names[name] = reader.b.add(Input(index), spec.dtype, shape)
    for node in function.node:
        _read_node(reader, node, opset)
    outputs = []
    for name, spec in zip(function.output, signature.outputs, strict=True):
        value = reader.value(name)
        shape = tuple(extent_of(dim) for dim in spec.shape)
        found = (reader.b.dtype(value), reader.b.shape(value))
        if found != (spec.dtype, shape):
            raise RefusedError(
                f"output {spec.name!r} is {found[0]}{text(found[1])}, not "
                f"{spec.dtype}{text(shape)}"
            )
        outputs.append(value)
    return Program(tuple(reader.b.values), len(signature.inputs), tuple(outputs))


def _read_node(reader: BodyReader, proto: onnx.NodeProto, opset: int) -> None:
    op_type = proto.op_type
    if proto.domain not in ("", "ai.onnx"):
        raise RefusedError(f"operator {proto.domain}::{op_type}")
    attributes: dict[str, object] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            raise RefusedError(f"{op_type} with an attribute of the function")
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    if op_type == "Constant":
        reader.constants[proto.output[0]] = _constant(attributes)
        return
    node = BodyNode(reader, proto, attributes)
    if op_type in _SPECIAL:
        if opset < _FIRST_OPSET:
            raise RefusedError(f"{op_type} of opset {opset}")
        results = _SPECIAL[op_type](node)
    elif op_type in macros.REDUCTIONS:
        results = [_reduction(node)]
    elif op_type in POINTWISE_OPS:
        results = [_pointwise(node)]
    else:
        raise RefusedError(f"operator {op_type}")
    for name, result in zip(proto.output, results, strict=False):
        if name:
            reader.names[name] = result
    if len([name for name in proto.output if name]) > len(results):
        raise RefusedError(f"{op_type} with {len(proto.output)} outputs")


def _constant(attributes: dict[str, object]) -> np.ndarray:
    (name, value), *_ = attributes.items()
    if name == "value" and isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    kinds = {"value_float": np.float32, "value_int": np.int64}
    kinds |= {"value_floats": np.float32, "value_ints": np.int64}
    if name not in kinds:
        raise RefusedError(f"a constant given as {name!r}")
    return np.asarray(value, dtype=kinds[name])


def _pointwise(node: BodyNode) -> int:
    op = POINTWISE_OPS[node.op_type]
    plain: dict[str, float | int | str] = {}
    for name, value in node.attributes.items():
        if name not in op.attributes or not isinstance(value, float | int | str):
            raise RefusedError(f"{node.op_type} with attribute {name!r}")
        plain[name] = value
    operands = [node.value(at) if name else None for at, name in enumerate(node.proto.input)]
    if node.op_type == "Clip":
        operands = _bounded(node, operands)
    elif None in operands:
        raise RefusedError(f"{node.op_type} without one of its inputs")
    return node.b.point(node.op_type, *operands, attributes=plain)


def _bounded(node: BodyNode, operands: list[int | None]) -> list[int | None]:
    """Give a Clip of float16 the bounds that are left out: the type's limits.

    Only infinities are beyond them, and ONNX Runtime makes these finite. The kernel computes in
    float32, whose limits are others. (A Clip of bfloat16 lets infinities be.)
    """
    x, low, high = (*operands, None, None)[:3]
    assert x is not None
    if node.b.dtype(x) == "float16":
        low = node.b.constant(-FLOAT16_MAX, "float16") if low is None else low
        high = node.b.constant(FLOAT16_MAX, "float16") if high is None else high
    return [x, low, high]


FLOAT16_MAX = 65504.0
#: By exponent: what a constant power is written as, each step of the base or with it.
POWERS: Mapping[float, tuple[str, ...]] = {
    -1: ("Reciprocal",), 0.5: ("Sqrt",), 1: ("Identity",), 2: ("Mul",), 3: ("Mul", "Mul"),
}  # fmt: skip


def _power(node: BodyNode) -> list[int]:
    """Write powers with a small constant exponent as products and roots."""
    b, base, exponent = node.b, node.value(0), node.value(1)
    array = node.constant(1)
    if array is None or array.ndim > len(b.shape(base)) or b.dtype(base) not in macros.FLOATS:
        return [b.point("Pow", base, exponent)]
    written = POWERS.get(array.item())
    if written is None:
        return [b.point("Pow", base, exponent)]
    if array.item() == 0.5:
        # The root of minus infinity is NaN, its power infinite, as C has it.
        lowest, highest = (b.constant(value, b.dtype(base)) for value in (-np.inf, np.inf))
        is_lowest = b.point("Equal", base, lowest)
        return [b.point("Where", is_lowest, highest, b.point("Sqrt", base))]
    value = base
    for name in written:
        value = b.point(name, base, value) if name == "Mul" else b.point(name, base)
    return [value]


def _reduction(node: BodyNode) -> int:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    axes = node.attributes.get("axes", node.integers(1))
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    dims = (
        [axis_of(axis, rank) for axis in axes] if isinstance(axes, list) and axes else range(rank)
    )
    result = macros.REDUCTIONS[node.op_type](b, x, dims)
    if node.attributes.get("keepdims", 1):
        return result
    return b.reshape(result, [size for i, size in enumerate(b.shape(result)) if i not in dims])


_SPECIAL: Mapping[str, Reads] = {"Pow": _power, **VIEWS, **NORMS}

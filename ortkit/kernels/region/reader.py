"""Reads a region's body, an ONNX function, as a `Program`; or says why it is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper

from ortkit.kernels.backend import Refused
from ortkit.kernels.region import macros
from ortkit.kernels.region.ops import DTYPES, POINTWISE_OPS
from ortkit.kernels.region.program import Builder, Input, Program, RefusedError, text
from ortkit.kernels.signature import RegionSignature, canonical_function
from ortkit.kernels.sizes import ONE, Extent, Shape, extent_of, product

Attributes: TypeAlias = dict[str, object]
#: Softmax flattens to two dims before.
_FIRST_OPSET = 13


@dataclass
class _Reader:
    b: Builder
    names: dict[str, int] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def value(self, name: str) -> int:
        """Return the value called `name`, a constant of one element made a value now."""
        if name in self.names:
            return self.names[name]
        array = self.constants.get(name)
        if array is None:
            raise RefusedError("an input that is not there")
        if array.size != 1 or array.dtype.name not in DTYPES:
            raise RefusedError(
                f"a constant of type {array.dtype.name} and shape {list(array.shape)}"
            )
        self.names[name] = self.b.constant(array.item(), array.dtype.name, array.ndim)
        return self.names[name]

    def integers(self, names: Sequence[str], at: int) -> list[int] | None:
        """Return the constant integers of input `at`, None if it is not there."""
        if len(names) <= at or not names[at]:
            return None
        array = self.constants.get(names[at])
        if array is None:
            raise RefusedError("a shape, axes or bounds that are no constant")
        return [int(number) for number in array.reshape(-1)]


def read_program(signature: RegionSignature) -> Program | Refused:
    """Return the region's program, or why it has none."""
    return _read(signature)


@lru_cache(maxsize=512)
def _read(signature: RegionSignature) -> Program | Refused:
    try:
        return _program(signature)
    except RefusedError as refusal:
        return Refused(refusal.reason)


def _program(signature: RegionSignature) -> Program:
    function = canonical_function(signature.function())
    opset = next((o.version for o in function.opset_import if o.domain == ""), 0)
    reader = _Reader(Builder())
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


def _read_node(reader: _Reader, node: onnx.NodeProto, opset: int) -> None:
    if node.domain not in ("", "ai.onnx"):
        raise RefusedError(f"operator {node.domain}::{node.op_type}")
    attributes: Attributes = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise RefusedError(f"{node.op_type} with an attribute of the function")
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    if node.op_type == "Constant":
        reader.constants[node.output[0]] = _constant(attributes)
        return
    names = list(node.input)
    special = _SPECIAL.get(node.op_type)
    if special is not None:
        if opset < _FIRST_OPSET:
            raise RefusedError(f"{node.op_type} of opset {opset}")
        results = special(reader, names, attributes, node)
    elif node.op_type in macros.REDUCTIONS:
        results = [_reduction(reader, node.op_type, names, attributes)]
    elif node.op_type in POINTWISE_OPS:
        results = [_pointwise(reader, node.op_type, names, attributes)]
    else:
        raise RefusedError(f"operator {node.op_type}")
    for name, result in zip(node.output, results, strict=False):
        if name:
            reader.names[name] = result
    if len([name for name in node.output if name]) > len(results):
        raise RefusedError(f"{node.op_type} with {len(node.output)} outputs")


def _constant(attributes: Attributes) -> np.ndarray:
    (name, value), *_ = attributes.items()
    if name == "value" and isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    kinds = {"value_float": np.float32, "value_int": np.int64}
    kinds |= {"value_floats": np.float32, "value_ints": np.int64}
    if name not in kinds:
        raise RefusedError(f"a constant given as {name!r}")
    return np.asarray(value, dtype=kinds[name])


def _pointwise(reader: _Reader, op_type: str, names: list[str], attributes: Attributes) -> int:
    op = POINTWISE_OPS[op_type]
    plain: dict[str, float | int | str] = {}
    for name, value in attributes.items():
        if name not in op.attributes or not isinstance(value, float | int | str):
            raise RefusedError(f"{op_type} with attribute {name!r}")
        plain[name] = value
    operands = [reader.value(name) if name else None for name in names]
    if op_type == "Clip":
        operands += [None] * (3 - len(operands))
    elif None in operands:
        raise RefusedError(f"{op_type} without one of its inputs")
    return reader.b.point(op_type, *operands, attributes=plain)


def _power(
    reader: _Reader, names: list[str], _attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    """Write powers with a small constant exponent as products and roots."""
    b, base, exponent = reader.b, reader.value(names[0]), reader.value(names[1])
    array = reader.constants.get(names[1])
    if array is None or array.ndim > len(b.shape(base)) or b.dtype(base) not in macros.FLOATS:
        return [b.point("Pow", base, exponent)]
    number = array.item()
    if number in (2, 3):
        square = b.point("Mul", base, base)
        return [square if number == 2 else b.point("Mul", base, square)]
    simple = {0.5: "Sqrt", 1: "Identity", -1: "Reciprocal"}
    if number in simple:
        return [b.point(simple[number], base)]
    return [b.point("Pow", base, exponent)]


def _axis(axis: object, rank: int) -> int:
    if not isinstance(axis, int) or not -rank <= axis < max(rank, 1):
        raise RefusedError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def _reduction(reader: _Reader, op_type: str, names: list[str], attributes: Attributes) -> int:
    b, x = reader.b, reader.value(names[0])
    rank = len(b.shape(x))
    axes = attributes.get("axes", reader.integers(names, 1))
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return x
    dims = [_axis(axis, rank) for axis in axes] if isinstance(axes, list) and axes else range(rank)
    result = macros.REDUCTIONS[op_type](b, x, dims)
    if attributes.get("keepdims", 1):
        return result
    return b.reshape(result, [size for i, size in enumerate(b.shape(result)) if i not in dims])


# ---- views


def _transpose(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    perm = attributes.get("perm", list(reversed(range(len(reader.b.shape(x))))))
    assert isinstance(perm, list)
    return [reader.b.transpose(x, perm)]


def _reshape(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    before, wanted = reader.b.shape(x), reader.integers(names, 1) or []
    shape: list[Extent | None] = []
    for position, size in enumerate(wanted):
        if size == 0 and not attributes.get("allowzero", 0):
            if position >= len(before):
                raise RefusedError("Reshape that copies a size that is not there")
            shape.append(before[position])
        else:
            shape.append(None if size == -1 else Extent(size))
    known = product(size for size in shape if size is not None)
    if None in shape:
        rest = product(before).divided_by(known)
        if rest is None:
            raise RefusedError(f"Reshape of {text(before)} to {wanted}")
        shape = [rest if size is None else size for size in shape]
    return [reader.b.reshape(x, [size for size in shape if size is not None])]


def _flatten(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    shape, axis = reader.b.shape(x), attributes.get("axis", 1)
    assert isinstance(axis, int)
    axis = axis + len(shape) if axis < 0 else axis
    return [reader.b.reshape(x, [product(shape[:axis]), product(shape[axis:])])]


def _squeeze(
    reader: _Reader, names: list[str], _attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    shape = reader.b.shape(x)
    axes = reader.integers(names, 1)
    dims = (
        [i for i, size in enumerate(shape) if size == ONE]
        if axes is None
        else [_axis(axis, len(shape)) for axis in axes]
    )
    return [reader.b.reshape(x, [size for i, size in enumerate(shape) if i not in dims])]


def _unsqueeze(
    reader: _Reader, names: list[str], _attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    axes = reader.integers(names, 1) or []
    rank = len(reader.b.shape(x)) + len(axes)
    dims = {_axis(axis, rank) for axis in axes}
    old = iter(reader.b.shape(x))
    return [reader.b.reshape(x, [ONE if i in dims else next(old) for i in range(rank)])]


def _expand(
    reader: _Reader, names: list[str], _attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    shape = [Extent(size) for size in reader.integers(names, 1) or []]
    return [reader.b.broadcast(reader.value(names[0]), shape)]


def _slice(
    reader: _Reader, names: list[str], _attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    starts, stops = reader.integers(names, 1) or [], reader.integers(names, 2) or []
    axes = reader.integers(names, 3) or list(range(len(starts)))
    steps = reader.integers(names, 4) or [1] * len(starts)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        dim = _axis(axis, len(b.shape(x)))
        size = b.shape(x)[dim].static
        if size is None or step < 1:
            raise RefusedError("Slice backwards" if step < 1 else "Slice of a size that may vary")
        first, end, _ = slice(start, stop, step).indices(size)
        x = b.slice(x, dim, first, max(first, end), step)
    return [x]


def _concat(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    parts = [reader.value(name) for name in names]
    return [reader.b.concat(parts, _axis(attributes["axis"], len(reader.b.shape(parts[0]))))]


def _split(
    reader: _Reader, names: list[str], attributes: Attributes, node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    dim = _axis(attributes.get("axis", 0), len(b.shape(x)))
    size, sizes = b.shape(x)[dim].static, reader.integers(names, 1)
    if size is None:
        raise RefusedError("Split of a size that may vary")
    if sizes is None:
        each = -(-size // len(node.output))
        sizes = [min(each, size - each * i) for i in range(len(node.output))]
    results, start = [], 0
    for one in sizes:
        results.append(b.slice(x, dim, start, start + one))
        start += one
    return results


def _gather(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    dim = _axis(attributes.get("axis", 0), len(b.shape(x)))
    index, size = reader.constants.get(names[1]), b.shape(x)[dim].static
    if index is None or index.size != 1 or index.ndim > 1 or size is None:
        raise RefusedError("Gather with other than one constant index")
    at = int(index.item()) % size if size else 0
    one = b.slice(x, dim, at, at + 1)
    if index.ndim:
        return [one]
    return [b.reshape(one, [s for i, s in enumerate(b.shape(one)) if i != dim])]


def _pad(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    pads = reader.integers(names, 1) or []
    axes = reader.integers(names, 3) or list(range(len(b.shape(x))))
    if attributes.get("mode", "constant") != "constant" or min(pads, default=0) < 0:
        raise RefusedError("Pad that reflects, repeats or crops")
    fill = reader.value(names[2]) if len(names) > 2 and names[2] else b.constant(0, b.dtype(x))
    fill = b.reshape(fill, ())
    for position, axis in enumerate(axes):
        dim = _axis(axis, len(b.shape(x)))
        shape: Shape = b.shape(x)
        for size, is_before in ((pads[position], True), (pads[position + len(axes)], False)):
            if size:
                edge = b.broadcast(fill, [*shape[:dim], Extent(size), *shape[dim + 1 :]])
                x = b.concat([edge, x] if is_before else [x, edge], dim)
    return [x]


# ---- norms and the like


def _number(attributes: Mapping[str, object], name: str, default: float) -> float:
    value = attributes.get(name, default)
    assert isinstance(value, float | int)
    return value


def _softmax(
    reader: _Reader, names: list[str], attributes: Attributes, node: onnx.NodeProto
) -> list[int]:
    x = reader.value(names[0])
    dim = _axis(attributes.get("axis", -1), len(reader.b.shape(x)))
    function = macros.softmax if node.op_type == "Softmax" else macros.log_softmax
    return [function(reader.b, x, dim)]


def _layer_norm(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    rank = len(b.shape(x))
    dims = range(_axis(attributes.get("axis", -1), rank), rank)
    result, average, factor = macros.normalized(b, x, dims, _number(attributes, "epsilon", 1e-5))
    result = b.point("Mul", result, reader.value(names[1]))
    if len(names) > 2 and names[2]:
        result = b.point("Add", result, reader.value(names[2]))
    return [result, average, factor]


def _rms_norm(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    rank = len(b.shape(x))
    dims = range(_axis(attributes.get("axis", -1), rank), rank)
    result = macros.rms_normalized(b, x, dims, _number(attributes, "epsilon", 1e-5))
    return [b.point("Mul", result, reader.value(names[1]))]


def _instance_norm(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x, scale, bias = (reader.value(name) for name in names)
    epsilon = _number(attributes, "epsilon", 1e-5)
    return [macros.instance_norm(reader.b, x, scale, bias, epsilon)]


def _group_norm(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    x, scale, bias = (reader.value(name) for name in names)
    groups = attributes["num_groups"]
    assert isinstance(groups, int)
    epsilon = _number(attributes, "epsilon", 1e-5)
    return [macros.group_norm(reader.b, x, scale, bias, groups, epsilon)]


def _rotary(
    reader: _Reader, names: list[str], attributes: Attributes, _node: onnx.NodeProto
) -> list[int]:
    if len(names) > 3 and names[3]:
        raise RefusedError("RotaryEmbedding with position_ids")
    x, cos, sin = (reader.value(name) for name in names[:3])
    return [
        macros.rotary(
            reader.b, x, cos, sin,
            interleaved=bool(attributes.get("interleaved", 0)),
            rotary_dim=int(_number(attributes, "rotary_embedding_dim", 0)),
            heads=int(_number(attributes, "num_heads", 0)),
        )
    ]  # fmt: skip


def _arg(
    reader: _Reader, names: list[str], attributes: Attributes, node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    dim = _axis(attributes.get("axis", 0), len(b.shape(x)))
    last = bool(attributes.get("select_last_index", 0))
    result = macros.position_of(b, x, dim, largest=node.op_type == "ArgMax", last=last)
    if attributes.get("keepdims", 1):
        return [result]
    return [b.reshape(result, [s for i, s in enumerate(b.shape(result)) if i != dim])]


def _global_pool(
    reader: _Reader, names: list[str], _attributes: Attributes, node: onnx.NodeProto
) -> list[int]:
    b, x = reader.b, reader.value(names[0])
    dims = range(2, len(b.shape(x)))
    if node.op_type == "GlobalMaxPool":
        return [macros.extreme(b, "max", x, dims)]
    return [macros.mean(b, x, dims)]


_Special: TypeAlias = Callable[[_Reader, list[str], Attributes, onnx.NodeProto], list[int]]
_SPECIAL: dict[str, _Special] = {
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "Pad": _pad,
    "Pow": _power,
    "RMSNormalization": _rms_norm,
    "Reshape": _reshape,
    "RotaryEmbedding": _rotary,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

OPERATORS = frozenset(_SPECIAL) | frozenset(macros.REDUCTIONS) | frozenset(POINTWISE_OPS)

"""Reads a region's body, an ONNX function, as a `Program`; or says why it is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import onnx
import onnx.numpy_helper

from ortkit.kernels.backend import Refused
from ortkit.kernels.region import macros
from ortkit.kernels.region.ops import DTYPES, POINTWISE_OPS
from ortkit.kernels.region.program import Builder, Input, Program, RefusedError, text
from ortkit.kernels.signature import RegionSignature, canonical_function
from ortkit.kernels.sizes import ONE, Extent, Shape, extent_of, product

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


@dataclass(frozen=True)
class _Node:
    """A node whose inputs were read before it."""

    reader: _Reader
    proto: onnx.NodeProto
    attributes: dict[str, object]

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    @property
    def b(self) -> Builder:
        return self.reader.b

    def has(self, at: int) -> bool:
        """Say whether there is an input `at`."""
        return len(self.proto.input) > at and self.proto.input[at] != ""

    def value(self, at: int) -> int:
        return self.reader.value(self.proto.input[at])

    def values(self) -> list[int]:
        return [self.reader.value(name) for name in self.proto.input]

    def constant(self, at: int) -> np.ndarray | None:
        return self.reader.constants.get(self.proto.input[at])

    def integers(self, at: int) -> list[int] | None:
        """Return the constant integers of input `at`, None if it is not there."""
        if not self.has(at):
            return None
        array = self.constant(at)
        if array is None:
            raise RefusedError("a shape, axes or bounds that are no constant")
        return [int(number) for number in array.reshape(-1)]

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        assert isinstance(value, float | int)
        return value

    def axis(self, default: int | None = None) -> int:
        """Return which axis of the first input the attribute `axis` means."""
        return _axis(self.attributes.get("axis", default), len(self.b.shape(self.value(0))))


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


def _read_node(reader: _Reader, proto: onnx.NodeProto, opset: int) -> None:
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
    node = _Node(reader, proto, attributes)
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


def _pointwise(node: _Node) -> int:
    op = POINTWISE_OPS[node.op_type]
    plain: dict[str, float | int | str] = {}
    for name, value in node.attributes.items():
        if name not in op.attributes or not isinstance(value, float | int | str):
            raise RefusedError(f"{node.op_type} with attribute {name!r}")
        plain[name] = value
    operands = [node.value(at) if name else None for at, name in enumerate(node.proto.input)]
    if node.op_type == "Clip":
        operands += [None] * (3 - len(operands))
    elif None in operands:
        raise RefusedError(f"{node.op_type} without one of its inputs")
    return node.b.point(node.op_type, *operands, attributes=plain)


def _power(node: _Node) -> list[int]:
    """Write powers with a small constant exponent as products and roots."""
    b, base, exponent = node.b, node.value(0), node.value(1)
    array = node.constant(1)
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


def _reduction(node: _Node) -> int:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    axes = node.attributes.get("axes", node.integers(1))
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    dims = [_axis(axis, rank) for axis in axes] if isinstance(axes, list) and axes else range(rank)
    result = macros.REDUCTIONS[node.op_type](b, x, dims)
    if node.attributes.get("keepdims", 1):
        return result
    return b.reshape(result, [size for i, size in enumerate(b.shape(result)) if i not in dims])


# ---- views


def _transpose(node: _Node) -> list[int]:
    x = node.value(0)
    perm = node.attributes.get("perm", list(reversed(range(len(node.b.shape(x))))))
    assert isinstance(perm, list)
    return [node.b.transpose(x, perm)]


def _reshape(node: _Node) -> list[int]:
    x = node.value(0)
    before, wanted = node.b.shape(x), node.integers(1) or []
    shape: list[Extent | None] = []
    for position, size in enumerate(wanted):
        if size == 0 and not node.attributes.get("allowzero", 0):
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
    return [node.b.reshape(x, [size for size in shape if size is not None])]


def _flatten(node: _Node) -> list[int]:
    x = node.value(0)
    shape, axis = node.b.shape(x), node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    axis = axis + len(shape) if axis < 0 else axis
    return [node.b.reshape(x, [product(shape[:axis]), product(shape[axis:])])]


def _squeeze(node: _Node) -> list[int]:
    x = node.value(0)
    shape = node.b.shape(x)
    axes = node.integers(1)
    dims = (
        [i for i, size in enumerate(shape) if size == ONE]
        if axes is None
        else [_axis(axis, len(shape)) for axis in axes]
    )
    return [node.b.reshape(x, [size for i, size in enumerate(shape) if i not in dims])]


def _unsqueeze(node: _Node) -> list[int]:
    x = node.value(0)
    axes = node.integers(1) or []
    rank = len(node.b.shape(x)) + len(axes)
    dims = {_axis(axis, rank) for axis in axes}
    old = iter(node.b.shape(x))
    return [node.b.reshape(x, [ONE if i in dims else next(old) for i in range(rank)])]


def _expand(node: _Node) -> list[int]:
    shape = [Extent(size) for size in node.integers(1) or []]
    return [node.b.broadcast(node.value(0), shape)]


def _slice(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    starts, stops = node.integers(1) or [], node.integers(2) or []
    axes = node.integers(3) or list(range(len(starts)))
    steps = node.integers(4) or [1] * len(starts)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        dim = _axis(axis, len(b.shape(x)))
        size = b.shape(x)[dim].static
        if size is None or step < 1:
            raise RefusedError("Slice backwards" if step < 1 else "Slice of a size that may vary")
        first, end, _ = slice(start, stop, step).indices(size)
        x = b.slice(x, dim, first, max(first, end), step)
    return [x]


def _concat(node: _Node) -> list[int]:
    parts = node.values()
    return [node.b.concat(parts, node.axis())]


def _split(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    size, sizes = b.shape(x)[dim].static, node.integers(1)
    if size is None:
        raise RefusedError("Split of a size that may vary")
    if sizes is None:
        each = -(-size // len(node.proto.output))
        sizes = [min(each, size - each * i) for i in range(len(node.proto.output))]
    results, start = [], 0
    for one in sizes:
        results.append(b.slice(x, dim, start, start + one))
        start += one
    return results


def _gather(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    index, size = node.constant(1), b.shape(x)[dim].static
    if index is None or index.size != 1 or index.ndim > 1 or size is None:
        raise RefusedError("Gather with other than one constant index")
    at = int(index.item()) % size if size else 0
    one = b.slice(x, dim, at, at + 1)
    if index.ndim:
        return [one]
    return [b.reshape(one, [s for i, s in enumerate(b.shape(one)) if i != dim])]


def _pad(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    pads = node.integers(1) or []
    axes = node.integers(3) or list(range(len(b.shape(x))))
    if node.attributes.get("mode", "constant") != "constant" or min(pads, default=0) < 0:
        raise RefusedError("Pad that reflects, repeats or crops")
    fill = node.value(2) if node.has(2) else b.constant(0, b.dtype(x))
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


def _softmax(node: _Node) -> list[int]:
    x = node.value(0)
    dim = node.axis(-1)
    function = macros.softmax if node.op_type == "Softmax" else macros.log_softmax
    return [function(node.b, x, dim)]


def _layer_norm(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    dims = range(node.axis(-1), rank)
    result, average, factor = macros.normalized(b, x, dims, node.number("epsilon", 1e-5))
    result = b.point("Mul", result, node.value(1))
    if node.has(2):
        result = b.point("Add", result, node.value(2))
    return [result, average, factor]


def _rms_norm(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    dims = range(node.axis(-1), rank)
    result = macros.rms_normalized(b, x, dims, node.number("epsilon", 1e-5))
    return [b.point("Mul", result, node.value(1))]


def _instance_norm(node: _Node) -> list[int]:
    x, scale, bias = node.values()
    epsilon = node.number("epsilon", 1e-5)
    return [macros.instance_norm(node.b, x, scale, bias, epsilon)]


def _group_norm(node: _Node) -> list[int]:
    x, scale, bias = node.values()
    groups = node.attributes["num_groups"]
    assert isinstance(groups, int)
    epsilon = node.number("epsilon", 1e-5)
    return [macros.group_norm(node.b, x, scale, bias, groups, epsilon)]


def _rotary(node: _Node) -> list[int]:
    if node.has(3):
        raise RefusedError("RotaryEmbedding with position_ids")
    x, cos, sin = node.values()[:3]
    return [
        macros.rotary(
            node.b, x, cos, sin,
            interleaved=bool(node.attributes.get("interleaved", 0)),
            rotary_dim=int(node.number("rotary_embedding_dim", 0)),
            heads=int(node.number("num_heads", 0)),
        )
    ]  # fmt: skip


def _arg(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    last = bool(node.attributes.get("select_last_index", 0))
    result = macros.position_of(b, x, dim, largest=node.op_type == "ArgMax", last=last)
    if node.attributes.get("keepdims", 1):
        return [result]
    return [b.reshape(result, [s for i, s in enumerate(b.shape(result)) if i != dim])]


def _global_pool(node: _Node) -> list[int]:
    b, x = node.b, node.value(0)
    dims = range(2, len(b.shape(x)))
    if node.op_type == "GlobalMaxPool":
        return [macros.extreme(b, "max", x, dims)]
    return [macros.mean(b, x, dims)]


_SPECIAL: dict[str, Callable[[_Node], list[int]]] = {
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

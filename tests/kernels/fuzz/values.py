"""A region under construction: values with symbolic sizes, nodes, and the signature they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import helper

from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text

FLOATS = ("float32", "float16", "bfloat16", "float64")
NUMPY = {"bfloat16": np.dtype(bfloat16)}


def numpy_dtype(dtype: str) -> np.dtype:
    """Return numpy's dtype, bfloat16 included."""
    return NUMPY.get(dtype) or np.dtype(dtype)


def element(dtype: str) -> int:
    """Return the number of an element type in ONNX."""
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


@dataclass(frozen=True)
class Size:
    """A factor times named sizes, each name as often as it counts."""

    factor: int
    names: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:
        return Size(self.factor * other.factor, tuple(sorted(self.names + other.names)))

    @property
    def is_static(self) -> bool:
        return not self.names

    @property
    def is_one(self) -> bool:
        return self == ONE

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the number for given sizes."""
        return self.factor * math.prod(sizes[name] for name in self.names)

    def written(self) -> int | str:
        """Return it as a signature has it."""
        if self.is_static:
            return self.factor
        return "*".join([str(self.factor)] * (self.factor != 1) + list(self.names))


ONE = Size(1)
Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Value:
    """A tensor, and what is known of its elements when inputs are ordinary numbers."""

    name: str
    dtype: str
    shape: Shape
    bound: float
    """No element's magnitude is much larger."""
    is_positive: bool = False
    """Every element is well above zero."""

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Region:
    """A finished region."""

    seed: str
    opset: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[onnx.NodeProto, ...]
    values: Mapping[str, Value]
    """Every value by name, constants too."""

    def function(self) -> onnx.FunctionProto:
        """Return the body."""
        return helper.make_function(
            "fuzz",
            "f",
            [value.name for value in self.inputs],
            [value.name for value in self.outputs],
            list(self.nodes),
            [helper.make_opsetid("", self.opset)],
        )

    def signature(self) -> RegionSignature:
        """Return what a backend is told."""
        return RegionSignature(
            "fuzz", body_text(self.function()), _specs(self.inputs), _specs(self.outputs)
        )

    def names(self) -> list[str]:
        """Return the named sizes."""
        values = (*self.inputs, *self.outputs)
        return sorted({n for value in values for size in value.shape for n in size.names})

    def text(self) -> str:
        """Return it as a person reads it."""
        lines = [f"seed {self.seed}", body_text(self.function())]
        for title, values in (("input", self.inputs), ("output", self.outputs)):
            for value in values:
                dims = ", ".join(str(size.written()) for size in value.shape)
                lines.append(f"{title} {value.name}: {value.dtype}[{dims}]")
        return "\n".join(lines)


def needed(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> tuple[tuple[onnx.NodeProto, ...], set[str]]:
    """Return the nodes that outputs need, in order, and every name that they read or write."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(name for name in (*node.input, *node.output) if name)
    return tuple(reversed(kept)), wanted


def _specs(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v.name, v.dtype, tuple(size.written() for size in v.shape)) for v in values
    )

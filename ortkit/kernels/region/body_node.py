"""What a node of a region's body is read from: its inputs, constants and attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx

from ortkit.kernels.region.ops import DTYPES
from ortkit.kernels.region.program import Builder
from ortkit.refusal import RefusedError


@dataclass
class BodyReader:
    """What has been read so far."""

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
class BodyNode:
    """A node whose inputs were read before it."""

    reader: BodyReader
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
        return axis_of(self.attributes.get("axis", default), len(self.b.shape(self.value(0))))


def axis_of(axis: object, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        RefusedError: A tensor of this rank has no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < max(rank, 1):
        raise RefusedError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


Reads: TypeAlias = Callable[[BodyNode], list[int]]
"""Returns the values that a node makes."""

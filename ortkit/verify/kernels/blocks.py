"""Tensors with guards around them, in the memory of this process or of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ortkit.verify.kernels.inputs import is_floating

#: Bytes around a tensor. What a kernel writes there is seen: a result and the bytes around it
#: hold no usual number of any type before. Floats that are read around an input are NaN.
_GUARD, _POISON, _NAN = 64, 0xA5, 0xFF

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a tensor."""


class OutsideError(Exception):
    """A kernel wrote outside of its results."""


class Block(Protocol):
    """A tensor in memory with guards around it."""

    @property
    def spec(self) -> Spec: ...
    @property
    def address(self) -> int: ...
    @property
    def start(self) -> int:
        """Bytes of the guard before the tensor."""
        ...

    def content(self) -> np.ndarray:
        """Return all bytes, the guards included."""
        ...


class BlockFactory(Protocol):
    """Makes a block of a tensor's bytes with guards around them, in some memory."""

    def __call__(self, spec: Spec, fill: int, array: np.ndarray | None, skew: int) -> Block:
        """Return the block.

        Args:
            spec: Shape and type.
            fill: What all other bytes hold.
            array: The values, None for a result.
            skew: Bytes from a multiple of 64 to the tensor.
        """
        ...


class HostBlock:
    """A tensor in the memory of this process."""

    def __init__(self, spec: Spec, fill: int, array: np.ndarray | None, skew: int) -> None:
        shape, dtype = self.spec = spec
        size = prod(shape) * dtype.itemsize
        self.memory = np.full(size + 3 * _GUARD, fill, np.uint8)
        self.start = _GUARD + -self.memory.ctypes.data % _GUARD + skew
        self.address = self.memory.ctypes.data + self.start
        if array is not None:
            self.memory[self.start : self.start + size].view(dtype).reshape(shape)[...] = array

    def content(self) -> np.ndarray:
        """Return all bytes."""
        return self.memory


class DeviceBlock:
    """A tensor in the memory of a GPU, which ONNX Runtime allocates at multiples of 256 bytes."""

    def __init__(
        self, ort: ModuleType, spec: Spec, fill: int, array: np.ndarray | None, skew: int
    ) -> None:
        shape, dtype = self.spec = spec
        size = prod(shape) * dtype.itemsize
        self.start = _GUARD + skew
        memory = np.full(size + 3 * _GUARD, fill, np.uint8)
        if array is not None:
            memory[self.start : self.start + size].view(dtype).reshape(shape)[...] = array
        self._value: Any = ort.OrtValue.ortvalue_from_numpy(memory, "cuda", 0)
        self.address = int(self._value.data_ptr()) + self.start

    def content(self) -> np.ndarray:
        """Return a copy of all bytes."""
        return np.array(self._value.numpy())


class Operand:
    """An input of a kernel: its values, and copies of it where a run wants them."""

    def __init__(self, array: np.ndarray, *, is_constant: bool = False) -> None:
        self.array = array
        self.is_constant = is_constant
        self._copies: dict[bool, Block] = {}

    @cached_property
    def wide(self) -> np.ndarray:
        """The values, floats in float64."""
        return self.array.astype(np.float64) if is_floating(self.array.dtype) else self.array

    def placed(self, factory: BlockFactory, *, is_aligned: bool) -> Block:
        """Return a copy that begins at a multiple of 64 bytes, or one element behind that.

        A kernel is run in one place only, so that the copy can be used again.
        """
        if is_aligned not in self._copies:
            x = self.array
            skew = 0 if is_aligned else x.dtype.itemsize
            self._copies[is_aligned] = factory((x.shape, x.dtype), _NAN, x, skew)
        return self._copies[is_aligned]


def guarded(
    run: Callable[[Sequence[Block], Sequence[Block]], None],
    factory: BlockFactory,
    operands: Sequence[Operand],
    specs: Sequence[Spec],
    *,
    is_aligned: bool,
) -> list[np.ndarray]:
    """Run a kernel on copies of its inputs, into memory with guards around it.

    Args:
        run: Runs it on its inputs and outputs.
        factory: Allocates them.
        operands: Its inputs.
        specs: Shape and type of each result.
        is_aligned: Where tensors begin; see `Operand.placed`.

    Raises:
        OutsideError: It wrote outside of its results, or into its inputs.
        Exception: What `run` raises.
    """
    inputs = [operand.placed(factory, is_aligned=is_aligned) for operand in operands]
    outputs = [
        factory(spec, _POISON, None, 0 if is_aligned else spec[1].itemsize) for spec in specs
    ]
    run(inputs, outputs)
    results = []
    for index, block in enumerate(outputs):
        before, result, behind = _parts(block)
        if (before != _POISON).any() or (behind != _POISON).any():
            raise OutsideError(f"it writes outside of output {index}")
        results.append(result)
    for index, (block, operand) in enumerate(zip(inputs, operands, strict=True)):
        if not operand.is_constant and not same_bytes(_parts(block)[1], operand.array):
            raise OutsideError(f"it writes into input {index}")
    return results


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether two arrays of one shape and type hold the same bits."""
    return np.array_equal(_bytes(left), _bytes(right))


def _parts(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the guard before a tensor, the tensor, and the guard behind it."""
    memory, start, (shape, dtype) = block.content(), block.start, block.spec
    end = start + prod(shape) * dtype.itemsize
    return memory[:start], memory[start:end].view(dtype).reshape(shape), memory[end:]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

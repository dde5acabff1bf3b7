"""Constant factors of bytes, and how kernels read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.fusion.int8.grids import Array
from ortkit.graph.io.file_tensors import read_once
from ortkit.kernels.layouts.int8_panels import NARROW, layout
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.prepack import Prepack

Sizes: TypeAlias = tuple[object, ...]


@dataclass(frozen=True)
class Weights(ABC):
    """A constant factor of bytes; what is said here of axes and sizes holds for matrices.

    Args:
        value: The constant.
        middle: What stands for 0: 0 of int8, 128 of uint8.
    """

    value: ir.Value
    middle: int

    @property
    @abstractmethod
    def columns(self) -> int:
        """Numbers of a row of the result."""

    @property
    @abstractmethod
    def layout(self) -> Prepack:
        """How kernels read it."""

    @abstractmethod
    def sums(self, writer: NodeWriter, x: str, weights: str, zero: str) -> str:
        """Write the int32 product of x with what is unpacked, and return its name.

        Without a `zero` x is multiplied as it is.
        """

    @abstractmethod
    def fits(self, given: Sizes, made: Sizes) -> bool:
        """Say whether a result of some sizes may be the product of what has some."""

    def is_row(self, array: Array) -> bool:
        """Say whether a constant beside a result has one number for each column."""
        axis, count = self.result_axis, self.columns
        return array.size == count and array.ndim >= -axis and array.shape[axis] == count

    def lie(self, sizes: Sizes, *, is_x: bool = False) -> Sizes:
        """Return the sizes of a value as kernels see it.

        Args:
            sizes: In the graph.
            is_x: Whether it is the product's first operand.
        """
        del is_x
        return sizes

    @property
    def column_axis(self) -> int:
        """The axis of columns in the sizes that `layout` packs."""
        return 1

    @property
    def result_axis(self) -> int:
        """The axis of columns in a result, from the last one back."""
        return -1

    @property
    def has_zeros_around(self) -> bool:
        """Whether products read numbers that stand for 0 where there is no operand."""
        return False

    @abstractmethod
    def _unpacked(self, array: Array) -> Array:
        """Return the constant in the sizes that `layout` packs."""

    def tensor(self) -> ir.TensorProtocol:
        """Return the panels of int8, once they are read."""
        shape = ir.Shape(self.layout.shape)
        return ir.LazyTensor(self._packed, dtype=ir.DataType.INT8, shape=shape)

    def offsets(self, zero: int | Array, added: Array | None) -> ir.TensorProtocol:
        """Return int32 [N]: what sums begin with that are then added up from x as it is.

        Args:
            zero: What stands for 0 in x, or in what each column is made of.
            added: int32 [N], added to the sums; None for 0.
        """

        def read() -> ir.TensorProtocol:
            first = np.zeros(self.columns, np.int32) if added is None else added
            with np.errstate(over="ignore"):
                return ir.tensor(first - np.asarray(zero, np.int32) * self._column_sums())

        return ir.LazyTensor(read, dtype=ir.DataType.INT32, shape=ir.Shape([self.columns]))

    def column_sums(self) -> ir.TensorProtocol:
        """Return int32 [N], the sums of columns, once they are read."""
        return ir.LazyTensor(
            lambda: ir.tensor(self._column_sums()), dtype=ir.DataType.INT32,
            shape=ir.Shape([self.columns]),
        )  # fmt: skip

    @property
    def can_be_narrow(self) -> bool:
        """Whether kernels multiply weights of 7 bits otherwise than others."""
        return True

    def is_narrow(self) -> bool:
        """Say whether all numbers are within -64 .. 64, once they are read."""
        whole = self._whole()
        return bool(whole.min() >= -NARROW and whole.max() <= NARROW)

    def _column_sums(self) -> Array:
        array = self._whole()
        others = tuple(axis for axis in range(array.ndim) if axis != self.column_axis)
        return np.asarray(array.sum(others, np.int32))

    def _whole(self) -> Array:
        """Return the numbers, int8, in the sizes that `layout` packs."""
        tensor = self.value.const_value
        assert tensor is not None
        array = self._unpacked(read_once(tensor))
        return (array.astype(np.int16) - self.middle).astype(np.int8)

    def _packed(self) -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(self.layout.pack(self._whole())))


@dataclass(frozen=True)
class Matrix(Weights):
    """A matrix.

    Args:
        is_transposed: Whether it is stored as [N, K].
    """

    is_transposed: bool

    @property
    def columns(self) -> int:
        """See `Weights`."""
        return self.sizes[1]

    @property
    def layout(self) -> Prepack:
        """See `Weights`."""
        return layout(*self.sizes)

    def sums(self, writer: NodeWriter, x: str, weights: str, zero: str) -> str:
        """See `Weights`."""
        return writer.op("MatMulInteger", x, weights, *filter(None, [zero]))

    def fits(self, given: Sizes, made: Sizes) -> bool:
        """See `Weights`."""
        if len(given) < 2 or given[-1] != self.sizes[0]:
            return False
        return made == (*given[:-1], self.sizes[1])

    def _unpacked(self, array: Array) -> Array:
        return array.T if self.is_transposed else array

    @property
    def sizes(self) -> tuple[int, int]:
        """K and N."""
        tensor = self.value.const_value
        assert tensor is not None
        rows, columns = tensor.shape.numpy()
        return (columns, rows) if self.is_transposed else (rows, columns)

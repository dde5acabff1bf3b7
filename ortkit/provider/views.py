"""Arrays over the tensors that a kernel is called with, and results put where they belong."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_char, c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider.bridge import View
from ortkit.provider.slots import Slots
from ortkit.provider.tensors import PACKED, element_type, tensor_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of one input or output at one call."""

    dtype: ir.DataType
    shape: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether numpy can look at its memory as it is."""
        return self.dtype != ir.DataType.STRING and self.dtype not in PACKED

    @property
    def nbytes(self) -> int:
        """Size of its memory, if it is plain."""
        return math.prod(self.shape) * self.dtype.numpy().itemsize


def spec_of(view: View) -> TensorSpec | None:
    """Return what an input is; None if it is optional and absent.

    Raises:
        UserError: It is of a type that numpy cannot hold.
    """
    if not view.element_type:
        return None
    dtype = element_type(view.element_type)
    if dtype == ir.DataType.UNDEFINED:
        raise UserError(f"an input has an element type that numpy has none for ({dtype})")
    tensor = view.tensor
    return TensorSpec(dtype, tuple(tensor.dims[: tensor.rank]) if tensor.rank > 0 else ())


@cache
def _bytes(count: int) -> type[ctypes.Array[c_char]]:
    return c_char * count


def array_at(address: int, spec: TensorSpec) -> Array:
    """Return an array over memory, for as long as that lasts."""
    if not spec.nbytes:
        return np.empty(spec.shape, spec.dtype.numpy())
    if not address:
        raise UserError(f"there is no memory for a tensor of shape {list(spec.shape)}")
    return memory_array(address, spec.dtype.numpy(), spec.shape)


def memory_array(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array over memory that holds at least one byte."""
    buffer: Any = _bytes(math.prod(shape) * dtype.itemsize).from_address(address)
    return np.ndarray(shape, dtype, buffer)


def read_only(array: Array) -> Array:
    """Return `array`, which may not be written to any more: other nodes read the memory too."""
    array.flags.writeable = False
    return array


def read_value(api: int, view: View, index: int) -> Array:
    """Return a copy of an input that is not plain: text, or elements smaller than a byte."""
    return tensor_of(Slots(api), view.value, f"input {index}", None).numpy()


def as_arrays(results: object) -> tuple[Array, ...]:
    """Return what a kernel returned as arrays; tensors of other libraries by DLPack."""
    if isinstance(results, np.ndarray):
        return (results,)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    return tuple(_as_array(result) for result in results)


def _as_array(result: object) -> Array:
    if isinstance(result, np.ndarray):
        return result
    if result is None:
        raise UserError("it returned None", fix="return an array, or a tuple of arrays")
    if hasattr(result, "__dlpack__") and not isinstance(result, np.generic):
        return np.from_dlpack(result)
    return np.asarray(result)


def write_value(api: int, view: View, spec: TensorSpec, array: Array) -> None:
    """Write a result that is not plain into an output."""
    if spec.dtype == ir.DataType.STRING:
        _write_strings(Slots(api), view.value, array)
        return
    packed = pack(array, spec.dtype.bitwidth)
    if packed.nbytes:
        ctypes.memmove(view.tensor.data, packed.ctypes.data, packed.nbytes)


def pack(array: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Return elements of 2 or 4 bits as ONNX packs them: the first in the lowest bits."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    each = 8 // bits
    padded = np.zeros(-(-flat.size // each) * each, np.uint8)
    padded[: flat.size] = flat
    columns = padded.reshape(-1, each)
    packed = np.zeros(len(columns), np.uint8)
    for position in range(each):
        packed |= columns[:, position] << (bits * position)
    return packed


def _write_strings(slots: Slots, value: int, array: Array) -> None:
    texts = [_encoded(item) for item in array.reshape(-1).tolist()]
    buffer = (c_char_p * len(texts))(*texts)
    slots.check(slots.FillStringTensor(value, ctypes.cast(buffer, c_void_p), c_size_t(len(texts))))


def _encoded(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def signature(shapes: Sequence[tuple[int, ...]]) -> ctypes.Array[ctypes.c_int64]:
    """Return shapes as kernel.h has them: the rank of each, then its dims."""
    words = [word for shape in shapes for word in (len(shape), *shape)]
    return (ctypes.c_int64 * len(words))(*words)

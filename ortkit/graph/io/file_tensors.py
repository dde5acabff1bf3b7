"""Tensors whose bytes lie in a file until somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortkit.graph.io.data_file import Bytes, Span


class MappedTensor(ir.ExternalTensor):
    """External data, mapped: pages are read when used and are never private to the process.

    Unlike its base class, all tensors of one file share one map. A data file that was
    replaced after the model was opened is an error instead of other numbers.
    """

    __slots__ = ("_values", "span")

    def __init__(self, span: Span, declared: ir.ExternalTensor, folder: Path) -> None:
        """Take name, type, shape and location in `folder` from `declared`, bytes from `span`."""
        super().__init__(
            declared.location,
            span.offset,
            span.length,
            declared.dtype,
            shape=ir.Shape(declared.shape),
            name=declared.name,
            doc_string=declared.doc_string,
            metadata_props=dict(declared.metadata_props),
            base_dir=folder,
        )
        self.span = span
        self._values: npt.NDArray[np.generic] | None = None

    def numpy(self) -> npt.NDArray[np.generic]:
        if self._values is None:
            self._values = decode(self.span.map(), self.dtype, self.shape)
        return self._values

    def __array__(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.generic]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tobytes(self) -> bytes:
        return self.span.map().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        file.write(self.span.map().data)

    def release(self) -> None:
        """Forget the array; the map stays as long as the file is used."""
        self._values = None


@dataclass(frozen=True)
class TensorFacts:
    """What a tensor is, without its bytes."""

    name: str
    dtype: ir.DataType
    shape: ir.Shape
    doc_string: str
    metadata_props: dict[str, str]


class InFileTensor(ir.LazyTensor):
    """An initializer of a single-file model, left in the file until it is used.

    Its bytes are read, not mapped: people overwrite model files in place, and a map of a file
    that shrinks kills the process.
    """

    __slots__ = ("span",)

    def __init__(self, span: Span, facts: TensorFacts) -> None:
        """Describe the tensor whose `raw_data` is `span`."""
        super().__init__(
            lambda: in_memory(span.read(), facts),
            dtype=facts.dtype,
            shape=facts.shape,
            name=facts.name,
            doc_string=facts.doc_string or None,
            metadata_props=facts.metadata_props,
            cache=True,
        )
        self.span = span


def first_bytes(tensor: ir.TensorProtocol, count: int) -> bytes:
    """Return the first `count` bytes of a tensor's data, without reading the rest of a file."""
    if isinstance(tensor, InFileTensor):
        span = tensor.span
        return span.file.read(span.offset, min(count, span.length)).tobytes()
    if isinstance(tensor, MappedTensor):
        return tensor.span.map()[:count].tobytes()
    array = tensor.numpy()
    if not array.flags.c_contiguous:
        return tensor.tobytes()[:count]
    return array.reshape(-1).view(np.uint8)[:count].tobytes()


def read_once(tensor: ir.TensorProtocol) -> np.ndarray:
    """Return a tensor's data; what is read of a file is not kept in the tensor."""
    if isinstance(tensor, InFileTensor):
        return decode(tensor.span.read(), tensor.dtype, tensor.shape)
    return tensor.numpy()


def in_memory(raw: Bytes, facts: TensorFacts) -> ir.TensorProtocol:
    """Wrap `raw` (the bytes of a `raw_data` field) without copying it."""
    if facts.dtype.bitwidth < 8:
        return ir.PackedTensor(
            raw,
            facts.dtype,
            shape=facts.shape,
            name=facts.name,
            doc_string=facts.doc_string or None,
            metadata_props=facts.metadata_props,
        )
    return ir.Tensor(
        decode(raw, facts.dtype, facts.shape),
        facts.dtype,
        shape=facts.shape,
        name=facts.name,
        doc_string=facts.doc_string or None,
        metadata_props=facts.metadata_props,
    )


def decode(raw: Bytes, dtype: ir.DataType, shape: ir.Shape) -> npt.NDArray[np.generic]:
    """Return the array that `raw` holds: a view, but for types smaller than a byte."""
    if dtype.bitwidth < 8:
        return ir.PackedTensor(raw, dtype, shape=shape).numpy()
    return raw.view(dtype.numpy().newbyteorder("<")).reshape(shape.numpy())

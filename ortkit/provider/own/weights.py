"""Weights that a session holds for its programs: had again with a plan that is remembered.

A matrix is packed again from the constant of the graph that it was. What is no such constant, as
the weights of convolutions in a layout of their own, is kept in a file if that is not too large.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.kernels.layouts.fp32_panels import panels
from ortkit.kernels.prepack import Array

#: Weights begin where a vector may be loaded as a whole.
ALIGNMENT = 64
#: Plans that would keep more bytes are made again each time.
MOST_KEPT_BYTES = 64 << 20


@dataclass(frozen=True)
class Origin:
    """The constant of a graph that a packed matrix was.

    Args:
        name: The constant's.
        is_transposed: True if the tensor is stored as [N, K].
        width: Columns of a panel.
        tensor: The constant's, while the graph is there.
    """

    name: str
    is_transposed: bool
    width: int
    tensor: ir.TensorProtocol | None = None


@dataclass(frozen=True)
class Piece:
    """A weight that is kept in a file, from `start` on."""

    start: int
    dtype: str
    shape: tuple[int, ...]


Source: TypeAlias = Origin | Piece


def aligned(array: Array) -> Array:
    """Return a compact copy that begins at a multiple of `ALIGNMENT`."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def sources_of(
    weights: Sequence[tuple[Sequence[Array], Sequence[Origin | None]]],
    constants: Mapping[str, ir.Value],
) -> tuple[tuple[tuple[Source, ...], ...], bytes] | None:
    """Return how weights are had again, and the content of their file.

    Args:
        weights: Of each claim the weights, and where they are from if they are packed matrices.
        constants: Of the graph, by name.

    Returns:
        For each claim its sources; None if the file would be too large.
    """
    content: list[bytes] = []
    found: list[tuple[Source, ...]] = []
    size = 0
    for arrays, origins in weights:
        sources: list[Source] = []
        for array, origin in zip(arrays, origins, strict=True):
            if origin is not None and _is_constant(origin, constants):
                sources.append(origin)
                continue
            sources.append(Piece(size, array.dtype.name, array.shape))
            gap = -array.nbytes % ALIGNMENT
            size += array.nbytes + gap
            if size > MOST_KEPT_BYTES:
                return None
            content.append(array.tobytes() + bytes(gap))
        found.append(tuple(sources))
    return tuple(found), b"".join(content)


def _is_constant(origin: Origin, constants: Mapping[str, ir.Value]) -> bool:
    """Say whether the graph has the constant: a rewrite may have made another of its name."""
    value = constants.get(origin.name)
    return value is not None and value.const_value is origin.tensor


def weights_from(
    sources: Sequence[Sequence[Source]], content: bytes, constants: Mapping[str, ir.Value]
) -> list[tuple[Array, ...]]:
    """Return the weights of each claim.

    Raises:
        KeyError: The graph has no constant of that name.
        ValueError: A piece lies beyond the end of the file.
    """

    def one(source: Source) -> Array:
        if isinstance(source, Piece):
            count = int(np.prod(source.shape, dtype=np.int64))
            flat = np.frombuffer(content, np.dtype(source.dtype), count, source.start)
            return aligned(flat.reshape(source.shape))
        tensor = constants[source.name].const_value
        if tensor is None:
            raise KeyError(source.name)
        array = tensor.numpy()
        return aligned(panels(array.T if source.is_transposed else array, source.width))

    # numpy copies without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(one, [source for each in sources for source in each])
        return [tuple(next(made) for _ in each) for each in sources]


def to_json(source: Source) -> dict[str, object]:
    """Return a source as JSON types."""
    if isinstance(source, Piece):
        return {"start": source.start, "dtype": source.dtype, "shape": list(source.shape)}
    return {"name": source.name, "is_turned": source.is_transposed, "width": source.width}


def from_json(entry: Mapping[str, Any]) -> Source:
    """Return a source that `to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    if "name" in entry:
        return Origin(str(entry["name"]), bool(entry["is_turned"]), int(entry["width"]))
    return Piece(int(entry["start"]), str(entry["dtype"]), tuple(map(int, entry["shape"])))

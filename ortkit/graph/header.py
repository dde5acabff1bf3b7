"""What a model file says about itself outside of its graph, without reading the graph."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ortkit.graph.framing import Buffer, parse_without_graph


@dataclass(frozen=True)
class Header:
    """A model's metadata and what its nodes may refer to."""

    metadata: Mapping[str, str]
    opsets: Mapping[str, int]
    """Domain to version; the default domain is the empty text."""
    functions: frozenset[tuple[str, str]]
    """(domain, name) of each model-local function."""
    ir_version: int


def read_header(source: str | os.PathLike[str] | bytes) -> Header | None:
    """Read the header of a model file or of its bytes, in time that does not grow with weights.

    Returns:
        None if this is no serialized model, or not framed the plain way.

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(source, bytes):
        return _header(source)
    with Path(source).open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as buffer:
            return _header(buffer)


def header_of(proto: onnx.ModelProto) -> Header:
    """Return the header of a model in memory."""
    return Header(
        {entry.key: entry.value for entry in proto.metadata_props},
        {entry.domain: entry.version for entry in proto.opset_import},
        frozenset((function.domain, function.name) for function in proto.functions),
        proto.ir_version,
    )


def _header(buffer: Buffer) -> Header | None:
    try:
        proto = parse_without_graph(buffer)
    except DecodeError:
        return None
    return None if proto is None else header_of(proto)

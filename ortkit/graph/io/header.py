"""What a model file says about itself outside of its graph, and whether it may be loaded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ortkit.graph.check.calls import check_calls
from ortkit.graph.check.graph_facts import facts_of_proto
from ortkit.graph.check.ranks import check_ranks
from ortkit.graph.io.external import ExternalFolder, check_locations
from ortkit.graph.io.framing import Buffer, parse_without_large_tensors
from ortkit.private_folder import open_regular


@dataclass(frozen=True)
class Header:
    """A model's metadata and what its nodes may refer to."""

    metadata: Mapping[str, str]
    opsets: Mapping[str, int]
    """Domain to version; the default domain is the empty text."""
    functions: frozenset[tuple[str, str]]
    """(domain, name) of each model-local function."""
    ir_version: int


def read_header(source: Path | bytes, where: str) -> Header | None:
    """Read the header of a model file or of its bytes, in time that does not grow with weights.

    Returns:
        None if this is no serialized model, or not framed the plain way.

    Raises:
        OSError: The file cannot be read.
        ModelError: As `checked_header`.
    """
    if isinstance(source, bytes):
        return _header(source, where, None)
    with open_regular(source) as file:
        found = os.fstat(file.fileno())
        if found.st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as buffer:
            return _header(buffer, where, source)


def checked_header(proto: onnx.ModelProto, where: str, path: Path | None = None) -> Header:
    """Return the header of a model that ONNX Runtime may load without hanging.

    Args:
        proto: The model; its large tensors may be left out.
        where: The model, for messages.
        path: Its file, beside which its external data lies; None: it is in memory.

    Raises:
        ModelError: Inlining its functions would not end (see `graph/check/calls.py`), or its
            external data is no file beside it, or it declares more sizes than a tensor has axes.
    """
    if proto.functions:
        check_calls(facts_of_proto(proto), where)
    check_ranks(proto, where)
    if path is not None:
        check_locations(proto, ExternalFolder(path.parent, path, where))
    return Header(
        {entry.key: entry.value for entry in proto.metadata_props},
        {entry.domain: entry.version for entry in proto.opset_import},
        frozenset((function.domain, function.name) for function in proto.functions),
        proto.ir_version,
    )


def _header(buffer: Buffer, where: str, path: Path | None) -> Header | None:
    try:
        framed = parse_without_large_tensors(buffer)
    except (DecodeError, UnicodeDecodeError):  # the latter by protobuf written in Python
        return None
    return None if framed is None else checked_header(framed.proto, where, path)

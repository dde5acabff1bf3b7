"""What was claimed of a graph, kept on disk: a session of the same graph is not planned again.

A graph is the same if its nodes, names, types, sizes and constants are, down to the last bit of a
weight. Also ortkit, its toolchain and what was measured on the machine are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.kernels.build.library import toolchain
from ortkit.kernels.cache_files import (
    DAMAGED,
    keep_cached,
    read_cached,
    trim_oldest,
    write_private,
)
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.private_folder import read_private
from ortkit.provider.graph_view import GraphView
from ortkit.provider.own.options import OwnOptions
from ortkit.provider.own.weights import Piece, Source, from_json, to_json, weights_from
from ortkit.version import __version__

#: Records beyond these, used longest ago, are removed.
KEPT = 256
#: As are those that have more bytes than this together, with their files of weights.
LIMIT_BYTES = 256 << 20
_PACKAGE = Path(__file__).parents[2]
_NUMBERS = frozenset(
    {ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS,
     ir.AttributeType.STRING, ir.AttributeType.STRINGS}
)  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """One claim, as far as a session needs it.

    Args:
        at: The name that reports give it.
        name: What its program is called.
        symbol: The function in the library.
        nodes: The places of its nodes in the graph.
        inputs: For each input of the program the name of the value.
        outputs: Likewise.
        weights: Where what the session holds for the program is from.
    """

    at: str
    name: str
    symbol: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[Source, ...] = ()


@dataclass(frozen=True)
class CachedPlan:
    """What was claimed of a graph, and the library of it; None if nothing was."""

    claims: tuple[Kept, ...]
    library: Path | None
    content: bytes = b""
    """Of the file of weights."""


def key_of(graph: GraphView, options: OwnOptions) -> str | None:
    """Return what the record of a graph is called; None if its like is not kept.

    Args:
        graph: As ONNX Runtime hands it over.
        options: Of the session.
    """
    asked = (options.level, options.kernels, options.measure, options.cpu)
    parts: list[object] = [_surroundings(options.kernels), asked]
    parts.append(sorted(graph.opset_imports.items()))
    parts += [_described(value) for value in (*graph.inputs, *graph.outer_values)]
    parts.append([value.name for value in graph.outputs])
    nodes = _nodes(graph)
    if nodes is None:
        return None
    parts += nodes
    constants = constants_of(graph)
    digest = hashlib.sha256(repr(parts).encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, content in zip(constants, pool.map(_content, constants.values()), strict=True):
            digest.update(f"{name}={content};".encode())
    return digest.hexdigest()[:32]


def constants_of(graph: GraphView) -> dict[str, ir.Value]:
    """Return what a graph always reads, by name."""
    outer = {v.name: v for v in graph.outer_values if v.name and v.const_value is not None}
    return {**graph.initializers, **outer}


def _nodes(nodes: Iterable[ir.Node]) -> list[object] | None:
    """Return all that nodes are, None if there is no telling."""
    parts: list[object] = []
    for node in nodes:
        attributes = [
            (name, _attribute(attribute)) for name, attribute in sorted(node.attributes.items())
        ]
        if any(told is None for _, told in attributes):
            return None
        read = [None if value is None else value.name for value in node.inputs]
        parts.append((node.domain, node.op_type, node.overload, attributes, read))
        parts.append([_described(value) for value in node.outputs])
    return parts


def _attribute(attribute: ir.Attr) -> object | None:
    if attribute.type in _NUMBERS:
        return str(attribute.value)
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor(attribute.as_tensor())
    if attribute.type != ir.AttributeType.GRAPH:
        return None
    graph = attribute.as_graph()
    inside = _nodes(graph)
    if inside is None:
        return None
    constants = [(name, _content(value)) for name, value in graph.initializers.items()]
    given = [_described(value) for value in graph.inputs]
    return (given, constants, inside, [value.name for value in graph.outputs])


def recall(folder: Path, key: str) -> CachedPlan | None:
    """Return what was claimed of a graph; None if that is not known, or its library is gone."""
    path = _record(folder, key)

    def remembered(record: Any) -> CachedPlan | None:
        claims = tuple(_kept(each) for each in record["claims"])
        if record["library"] is None:
            return None if claims else CachedPlan((), None)
        library = folder / Path(record["library"]).name
        if hashlib.sha256(read_private(library)).hexdigest() != record["sha256"]:
            return None
        content = b""
        if any(isinstance(source, Piece) for claim in claims for source in claim.weights):
            content = read_private(_beside(path))
            if hashlib.sha256(content).hexdigest() != record["weights"]:
                return None
        os.utime(path)
        os.utime(library)
        return CachedPlan(claims, library, content)

    return read_cached(path, _sealed_key(key), remembered)


def had_again(known: CachedPlan, graph: GraphView) -> list[tuple[np.ndarray, ...]] | None:
    """Return the weights of each claim; None if the record names what is not there."""
    sources = [claim.weights for claim in known.claims]
    try:
        return weights_from(sources, known.content, constants_of(graph))
    except DAMAGED:
        return None


def remember(
    folder: Path, key: str, claims: Sequence[Kept], library: Path | None, content: bytes = b""
) -> None:
    """Keep what was claimed of a graph; a folder that cannot be written keeps nothing.

    Args:
        folder: The provider's.
        key: The graph's.
        claims: Of the graph.
        library: Of the claims; None if there are none.
        content: What the pieces among their weights lie in.
    """
    path = _record(folder, key)
    with suppress(OSError):
        digest = "" if library is None else hashlib.sha256(read_private(library)).hexdigest()
        record = {
            "claims": [_entry(claim) for claim in claims],
            "weights": hashlib.sha256(content).hexdigest(),
            "library": None if library is None else library.name,
            "sha256": digest,
        }
        if content:
            write_private(_beside(path), content)
        keep_cached(path, _sealed_key(key), json.dumps(record))
        records = path.parent.glob("*.json")
        trim_oldest(((item, _beside(item)) for item in records), LIMIT_BYTES, KEPT)


def _sealed_key(key: str) -> str:
    return f"plan {key}"


def _record(folder: Path, key: str) -> Path:
    return folder / "plans" / f"{key}.json"


def _beside(record: Path) -> Path:
    return record.with_suffix(".weights")


def _entry(kept: Kept) -> dict[str, object]:
    plain = asdict(replace(kept, weights=()))
    return {**plain, "weights": [to_json(source) for source in kept.weights]}


def _kept(entry: Mapping[str, object]) -> Kept:
    nodes, inputs, outputs = entry["nodes"], entry["inputs"], entry["outputs"]
    if not (isinstance(nodes, list) and isinstance(inputs, list) and isinstance(outputs, list)):
        raise TypeError
    return Kept(
        str(entry["at"]), str(entry["name"]), str(entry["symbol"]), tuple(map(int, nodes)),
        tuple(map(str, inputs)), tuple(map(str, outputs)),
        tuple(map(from_json, entry["weights"])),  # type: ignore[call-overload]
    )  # fmt: skip


def _described(value: ir.Value) -> tuple[str | None, str, str]:
    return (value.name, str(value.type), str(value.shape))


def _content(value: ir.Value) -> str:
    return "" if value.const_value is None else _tensor(value.const_value)


def _tensor(tensor: ir.TensorProtocol) -> str:
    if tensor.dtype == ir.DataType.STRING:
        return repr(tensor.numpy().tolist())
    array = np.ascontiguousarray(tensor.numpy())
    content = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    return f"{tensor.dtype}{array.shape}{content}"


@cache
def _code() -> str:
    """Name the code that plans, by its files as they were when the process began to plan."""
    files = sorted(_PACKAGE.rglob("*.py"))
    return repr([(str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in files])


def _surroundings(kernels: str) -> str:
    return f"{__version__} {_code()} {toolchain(kernels)} {load_calibration()}"

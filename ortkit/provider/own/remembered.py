"""What was claimed of a graph, kept on disk: a session of the same graph is not planned again.

A graph is the same if its nodes, names, types, sizes and constants are, down to the last bit of a
weight; and if ortkit, its toolchain and what was measured on the machine are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit import __version__
from ortkit.kernels.build import toolchain
from ortkit.kernels.calibration import load_calibration
from ortkit.provider.graph_view import GraphView
from ortkit.provider.own.options import OwnOptions

#: Records beyond these, used longest ago, are removed.
KEPT = 256
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
    """

    at: str
    name: str
    symbol: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Remembered:
    """What was claimed of a graph, and the library of it; None if nothing was."""

    claims: tuple[Kept, ...]
    library: Path | None


def key_of(graph: GraphView, options: OwnOptions) -> str | None:
    """Return what the record of a graph is called; None if its like is not kept.

    Args:
        graph: As ONNX Runtime hands it over; one with graphs in it is not kept.
        options: Of the session.
    """
    parts: list[object] = [_surroundings(options.kernels), options.level, options.kernels,
                           options.cpu, sorted(graph.opset_imports.items())]  # fmt: skip
    parts += [_described(value) for value in (*graph.inputs, *graph.outer_values)]
    parts.append([value.name for value in graph.outputs])
    for node in graph:
        if any(each.type not in _NUMBERS for each in node.attributes.values()):
            return None
        attributes = sorted((name, str(each.value)) for name, each in node.attributes.items())
        read = [None if value is None else value.name for value in node.inputs]
        parts.append((node.domain, node.op_type, node.overload, attributes, read))
        parts.append([_described(value) for value in node.outputs])
    constants = dict(graph.initializers)
    constants |= {v.name: v for v in graph.outer_values if v.name and v.const_value is not None}
    digest = hashlib.sha256(repr(parts).encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, content in zip(constants, pool.map(_content, constants.values()), strict=True):
            digest.update(f"{name}={content};".encode())
    return digest.hexdigest()[:32]


def recall(folder: Path, key: str) -> Remembered | None:
    """Return what was claimed of a graph; None if that is not known, or its library is gone."""
    path = _record(folder, key)
    try:
        record = json.loads(path.read_text("utf-8"))
        claims = tuple(_kept(each) for each in record["claims"])
        if record["library"] is None:
            return None if claims else Remembered((), None)
        library = folder / str(record["library"])
        if hashlib.sha256(library.read_bytes()).hexdigest() != record["sha256"]:
            return None
        os.utime(path)
        os.utime(library)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Remembered(claims, library)


def remember(folder: Path, key: str, claims: Sequence[Kept], library: Path | None) -> None:
    """Keep what was claimed of a graph; a folder that cannot be written keeps nothing."""
    path = _record(folder, key)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        digest = "" if library is None else hashlib.sha256(library.read_bytes()).hexdigest()
        record = {
            "claims": [asdict(one) for one in claims],
            "library": None if library is None else library.name,
            "sha256": digest,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(record), "utf-8")
        draft.replace(path)
        _trim(path.parent)


def _record(folder: Path, key: str) -> Path:
    return folder / "plans" / f"{key}.json"


def _kept(entry: Mapping[str, object]) -> Kept:
    nodes, inputs, outputs = entry["nodes"], entry["inputs"], entry["outputs"]
    if not (isinstance(nodes, list) and isinstance(inputs, list) and isinstance(outputs, list)):
        raise TypeError
    return Kept(
        str(entry["at"]), str(entry["name"]), str(entry["symbol"]), tuple(map(int, nodes)),
        tuple(map(str, inputs)), tuple(map(str, outputs)),
    )  # fmt: skip


def _described(value: ir.Value) -> tuple[str | None, str, str]:
    return (value.name, str(value.type), str(value.shape))


def _content(value: ir.Value) -> str:
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return "" if tensor is None else repr(tensor.numpy().tolist())
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


def _trim(folder: Path) -> None:
    def used(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # another process has removed it
            return 0.0

    records: Iterable[Path] = sorted(folder.glob("*.json"), key=used, reverse=True)
    for path in list(records)[KEPT:]:
        with suppress(OSError):
            path.unlink()

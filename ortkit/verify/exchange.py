"""Tensors on disk, between this process and the one that runs the sessions."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.runtime.tensor_files import (
    PLAIN_TYPES,
    STRING_TYPE,
    Entry,
    Item,
    plain_item,
    read_manifest,
    write_manifest,
)
from ortkit.verify.inputs.feeds import Feeds, Value

#: Bytes. Mapping a smaller file costs several times what reading it does.
_LEAST_MAPPED = 1 << 16


def write_feeds(folder: Path, feeds: Feeds) -> None:
    """Write an input set into a new folder."""
    folder.mkdir(parents=True)
    entries = [_entry(folder, i, name, value) for i, (name, value) in enumerate(feeds.items())]
    write_manifest(folder, entries)


def read_values(folder: Path, names: Collection[str] | None = None) -> dict[str, Value]:
    """Read the values in a folder; large tensors stay mapped and are read as they are used.

    Args:
        folder: What `write_feeds`, or a session, wrote.
        names: Those that are wanted; None for all.
    """
    entries = read_manifest(folder)
    return {
        entry["name"]: _value(folder, entry)
        for entry in entries
        if names is None or entry["name"] in names
    }


def _entry(folder: Path, index: int, name: str, value: Value) -> Entry:
    if value is None:
        return {"name": name, "kind": "none", "items": []}
    parts = value if isinstance(value, list) else [value]
    items = [_item(part, folder, f"{index}_{i}.bin") for i, part in enumerate(parts)]
    return {
        "name": name,
        "kind": "sequence" if isinstance(value, list) else "tensor",
        "items": items,
    }


def _item(array: np.ndarray, folder: Path, file: str) -> Item:
    if array.dtype.kind in "OUS" or array.dtype.name in PLAIN_TYPES.values():
        return plain_item(array, folder, file)
    dtype = ir.DataType.from_numpy(array.dtype)
    # ir.Tensor packs types of less than a byte, as ONNX Runtime holds them.
    (folder / file).write_bytes(ir.Tensor(array, dtype=dtype).tobytes())
    return {"type": dtype.value, "shape": list(array.shape), "file": file, "strings": []}


def _value(folder: Path, entry: Entry) -> Value:
    if entry["kind"] == "none":
        return None
    arrays = [_array(folder, item) for item in entry["items"]]
    return arrays if entry["kind"] == "sequence" else arrays[0]


def _array(folder: Path, item: Item) -> np.ndarray:
    shape = tuple(item["shape"])
    if item["type"] == STRING_TYPE:
        return np.array(item["strings"], dtype=object).reshape(shape)
    dtype = ir.DataType(item["type"])
    if dtype.bitwidth < 8:
        data = (folder / item["file"]).read_bytes()
        proto = onnx.TensorProto(data_type=dtype.value, dims=shape, raw_data=data)
        return ir.serde.TensorProtoTensor(proto).numpy()
    file = folder / item["file"]
    whole = math.prod(shape) * dtype.bitwidth // 8
    array: np.ndarray = (
        np.frombuffer(file.read_bytes(), np.uint8)
        if whole < _LEAST_MAPPED
        else np.memmap(str(file), np.uint8, mode="r")  # a path it would resolve, link by link
    )
    return array.view(dtype.numpy()).reshape(shape)

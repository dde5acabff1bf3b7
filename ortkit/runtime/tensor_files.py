"""Tensors on disk, between a process and the children that run its sessions.

Raw bytes and a manifest: one form for every element type, also for those that numpy lacks.
Imports numpy and the standard library only, so that a child process stays as small as one that
runs nothing but ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import numpy as np

_HOST = "cpu"  # of the devices, as ONNX Runtime calls them


class Item(TypedDict):
    """One tensor on disk: its ONNX element type, its shape, and its data."""

    type: int
    shape: list[int]
    file: str
    strings: list[str]


class Entry(TypedDict):
    """One input or output: a tensor, a sequence of tensors, or the absence of a value."""

    name: str
    kind: str  # "tensor", "sequence" or "none"
    items: list[Item]


#: ONNX TensorProto.DataType to numpy, for the types that both have.
PLAIN_TYPES: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128",
}  # fmt: skip
STRING_TYPE = 8
MANIFEST = "manifest.json"


def write_manifest(folder: Path, entries: Sequence[Entry]) -> None:
    """Write what a folder of tensors holds, whole or not at all: a run may be killed any time."""
    part = folder / f"{MANIFEST}.part"
    part.write_text(json.dumps(list(entries)), encoding="utf-8")
    part.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> list[Entry]:
    """Read what a folder of tensors holds."""
    entries: list[Entry] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return entries


def ort_value(ort: ModuleType, folder: Path, item: Item) -> Any:
    """Read a tensor of any type but string into ONNX Runtime's own memory.

    Raises:
        ValueError: The file does not hold what the manifest says.
    """
    data = (folder / item["file"]).read_bytes()
    value = ort.OrtValue.ortvalue_from_shape_and_type(item["shape"], item["type"])
    if value.tensor_size_in_bytes() != len(data):
        raise ValueError(f"{item['file']} holds {len(data)} bytes")
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def of_ort_value(name: str, index: int, value: Any, folder: Path) -> Entry:
    """Write a tensor of any type but string."""
    file = f"{index}.bin"
    if value.device_name() != _HOST:  # its address means nothing here
        return {"name": name, "kind": "tensor", "items": [plain_item(value.numpy(), folder, file)]}
    size = value.tensor_size_in_bytes()
    if size:
        view = (ctypes.c_char * size).from_address(value.data_ptr())
        (folder / file).write_bytes(memoryview(view))
    else:
        (folder / file).write_bytes(b"")
    item: Item = {
        "type": value.element_type(),
        "shape": list(value.shape()),
        "file": file,
        "strings": [],
    }
    return {"name": name, "kind": "tensor", "items": [item]}


def plain_array(folder: Path, item: Item) -> np.ndarray:
    """Read a tensor of a type that numpy has; strings come as an array of objects."""
    if item["type"] == STRING_TYPE:
        return np.array(item["strings"], dtype=object).reshape(item["shape"])
    data = np.fromfile(folder / item["file"], dtype=PLAIN_TYPES[item["type"]])
    return data.reshape(item["shape"])


def plain_item(array: np.ndarray, folder: Path, file: str) -> Item:
    """Write a tensor of a type that numpy has.

    Raises:
        KeyError: Its type is none of those.
    """
    shape = list(array.shape)
    if array.dtype.kind in "OUS":
        strings = [str(text) for text in array.reshape(-1).tolist()]
        return {"type": STRING_TYPE, "shape": shape, "file": "", "strings": strings}
    codes = {np.dtype(name): code for code, name in PLAIN_TYPES.items()}
    code = codes[array.dtype]
    # Not `tofile`, which does not say why it cannot.
    (folder / file).write_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"type": code, "shape": shape, "file": file, "strings": []}


def plain_value(folder: Path, entry: Entry) -> np.ndarray | list[np.ndarray] | None:
    """Read a value whose types numpy has."""
    if entry["kind"] == "none":
        return None
    arrays = [plain_array(folder, item) for item in entry["items"]]
    return arrays if entry["kind"] == "sequence" else arrays[0]


def of_plain(name: str, index: int, value: Any, folder: Path) -> Entry:
    """Write what `InferenceSession.run` gives: an array, or sequences and maps of them."""
    if value is None:
        return {"name": name, "kind": "none", "items": []}
    is_many = isinstance(value, list | dict)
    arrays = list(_arrays(value)) if is_many else [np.asarray(value)]
    items = [plain_item(a, folder, f"{index}_{i}.bin") for i, a in enumerate(arrays)]
    return {"name": name, "kind": "sequence" if is_many else "tensor", "items": items}


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Flatten sequences and maps; a map becomes its sorted keys, then their values."""
    if isinstance(value, dict):
        keys = sorted(value)
        yield np.asarray(keys)
        yield np.asarray([value[key] for key in keys], dtype=np.float32)
    elif isinstance(value, list):
        for each in value:
            yield from _arrays(each)
    else:
        yield np.asarray(value)

"""The process that runs the sessions: `python child.py JOB.json`, started by `sessions.py`.

A crash of ONNX Runtime or of a kernel ends this process and not the caller's. It imports
numpy and onnxruntime and nothing of ortkit, so that it starts fast and finds no other
module by accident. Tensors travel as raw bytes in files: one form for every element type,
also for those that numpy lacks.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import numpy as np


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


class Run(TypedDict):
    """One session: a model under one setting."""

    model: str
    weights_folder: str  # where external data lies when `model` was moved; else ""
    optimize: bool
    libraries: list[str]
    providers: list[str]
    results: str


class Job(TypedDict):
    """Sessions to run one after the other, each on the same input sets."""

    runs: list[Run]
    feeds: list[str]
    wanted: int  # stop when so many input sets ran in the first session; the rest follow it
    status: str


#: ONNX TensorProto.DataType to numpy, for the types that both have.
PLAIN_TYPES: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128",
}  # fmt: skip
STRING_TYPE = 8
MANIFEST = "manifest.json"


def write_manifest(folder: Path, entries: Sequence[Entry]) -> None:
    """Write what a folder of tensors holds."""
    (folder / MANIFEST).write_text(json.dumps(list(entries)), encoding="utf-8")


def read_manifest(folder: Path) -> list[Entry]:
    """Read what a folder of tensors holds."""
    entries: list[Entry] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return entries


class Outcome(TypedDict, total=False):
    """One line of the status file; `at` is what was being done, for when nothing follows."""

    run: int
    at: str  # "load", "loaded", "run", "done" or "failed"
    feeds: str
    seconds: float
    inputs: list[str]
    outputs: list[str]
    message: str


def main(job_file: str) -> None:
    """Run a job; every step is noted before and after, so that a crash shows where it was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import onnxruntime

    feeds = job["feeds"]
    with Path(job["status"]).open("a", encoding="utf-8") as status:
        for index, run in enumerate(job["runs"]):
            done: list[str] = []
            for outcome in _outcomes(onnxruntime, run, feeds, job["wanted"]):
                outcome["run"] = index
                status.write(json.dumps(outcome) + "\n")
                status.flush()
                if outcome["at"] == "done":
                    done.append(outcome["feeds"])
            if index == 0:
                feeds = done


def _outcomes(ort: ModuleType, run: Run, feeds: Sequence[str], wanted: int) -> Iterator[Outcome]:
    """Load one model and run it on the input sets, until `wanted` of them ran."""
    yield {"at": "load"}
    started = time.perf_counter()
    try:
        session = _session(ort, run)
    except Exception as error:  # noqa: BLE001  whatever stops a session is the verdict
        yield {"at": "failed", "message": _line(error)}
        return
    yield {
        "at": "loaded",
        "seconds": time.perf_counter() - started,
        "inputs": [value.name for value in session.get_inputs()],
        "outputs": [value.name for value in session.get_outputs()],
    }
    count = 0
    for folder in feeds:
        if count == wanted:
            return
        yield {"at": "run", "feeds": folder}
        started = time.perf_counter()
        try:
            _run_once(ort, session, Path(folder), Path(run["results"]) / Path(folder).name)
        except Exception as error:  # noqa: BLE001  as above
            yield {"at": "failed", "feeds": folder, "message": _line(error)}
            continue
        count += 1
        yield {"at": "done", "feeds": folder, "seconds": time.perf_counter() - started}


def _session(ort: ModuleType, run: Run) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_ALL if run["optimize"] else level.ORT_DISABLE_ALL
    )
    for library in run["libraries"]:
        options.register_custom_ops_library(library)
    model: str | bytes = run["model"]
    if run["weights_folder"]:
        # A model that lies elsewhere than its weights must be given as bytes: only then
        # does ONNX Runtime (1.31.1) take the folder from this option.
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", run["weights_folder"]
        )
        model = Path(run["model"]).read_bytes()
    return ort.InferenceSession(model, options, providers=run["providers"])


def _run_once(ort: ModuleType, session: Any, feeds: Path, results: Path) -> None:
    results.mkdir(parents=True)
    declared = {value.name: value.type for value in session.get_inputs()}
    entries = [entry for entry in read_manifest(feeds) if entry["name"] in declared]
    types = [*declared.values(), *(value.type for value in session.get_outputs())]
    names = [value.name for value in session.get_outputs()]
    outputs: list[Entry] = []
    if all(kind.startswith("tensor(") and kind != "tensor(string)" for kind in types):
        made = {entry["name"]: _ort_value(ort, feeds, entry["items"][0]) for entry in entries}
        values = session.run_with_ort_values(names, made)
        for name, value in zip(names, values, strict=True):
            outputs.append(_of_ort_value(name, len(outputs), value, results))
    else:
        arrays = {entry["name"]: _plain_value(feeds, entry) for entry in entries}
        values = session.run(names, arrays)
        for name, value in zip(names, values, strict=True):
            outputs.append(_of_plain(name, len(outputs), value, results))
    write_manifest(results, outputs)


def _ort_value(ort: ModuleType, folder: Path, item: Item) -> Any:
    data = (folder / item["file"]).read_bytes()
    value = ort.OrtValue.ortvalue_from_shape_and_type(item["shape"], item["type"])
    if value.tensor_size_in_bytes() != len(data):
        raise ValueError(f"{item['file']} holds {len(data)} bytes")
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _of_ort_value(name: str, index: int, value: Any, folder: Path) -> Entry:
    file = f"{index}.bin"
    if value.device_name() != "cpu":  # its address means nothing here
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
    np.ascontiguousarray(array).tofile(folder / file)
    return {"type": code, "shape": shape, "file": file, "strings": []}


def _plain_value(folder: Path, entry: Entry) -> np.ndarray | list[np.ndarray] | None:
    if entry["kind"] == "none":
        return None
    arrays = [plain_array(folder, item) for item in entry["items"]]
    return arrays if entry["kind"] == "sequence" else arrays[0]


def _of_plain(name: str, index: int, value: Any, folder: Path) -> Entry:
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1])

"""A folder of Triton Inference Server's model repository, with the model's kernels.

Source: model_config.proto and docs/user_guide/model_configuration.md of Triton, and the options
that its ONNX Runtime backend reads (onnxruntime_backend, src/onnxruntime.cc).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx_ir as ir

from ortkit.comparison.batches import BatchAxis
from ortkit.comparison.feeding import first_that_runs
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.integrations.batching import batch_of, mixed_rows
from ortkit.integrations.model_files import MODEL_FILE, copy_model, trusted_library
from ortkit.integrations.proto_text import Enum, Field, Message, proto_text
from ortkit.kernels.metadata import LIBRARY_TARGET_KEY, library_path
from ortkit.measure.inputs import usual_feeds
from ortkit.refusal import Refused
from ortkit.runtime.libraries import extensions_library
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.source import header_at
from ortkit.targets.catalog import KINDS, traits_of
from ortkit.temporary import TemporaryFolder
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.sizes import free_inputs

#: What a kernel library asks ONNX Runtime for: `kApiVersion` of custom_ops/native/ort_abi.h.
LEAST_ONNXRUNTIME = "1.24"
_DEFAULT_BATCH = 8
_TIMEOUT_SECONDS = 300.0
_WARMUP_RUNS = 3
_TYPES: Mapping[ir.DataType, str] = {
    ir.DataType.BOOL: "BOOL", ir.DataType.UINT8: "UINT8", ir.DataType.UINT16: "UINT16",
    ir.DataType.UINT32: "UINT32", ir.DataType.UINT64: "UINT64", ir.DataType.INT8: "INT8",
    ir.DataType.INT16: "INT16", ir.DataType.INT32: "INT32", ir.DataType.INT64: "INT64",
    ir.DataType.FLOAT16: "FP16", ir.DataType.BFLOAT16: "BF16", ir.DataType.FLOAT: "FP32",
    ir.DataType.DOUBLE: "FP64", ir.DataType.STRING: "STRING",
}  # fmt: skip
_KINDS: Mapping[str, str] = {
    "CPUExecutionProvider": "KIND_CPU",
    "CUDAExecutionProvider": "KIND_GPU",
}


@dataclass(frozen=True)
class TritonOptions:
    """How a model is served."""

    name: str = ""
    """Name of the model on the server; by default that of its file."""
    mount: PurePosixPath | None = None
    """Where the server sees the repository; by default where it is written."""
    instances: int = 1
    """Sessions of the model at the same time."""
    threads: int = 0
    """Threads of one run; 0: ONNX Runtime takes one for each core."""
    max_batch: int | None = None
    """Rows of a batch that requests are batched in, 0 for none; None: 8 if the model is proven to
    compute each row on its own, else none."""
    delay_us: int = 100
    """How long a request waits for others."""
    kernels: bool = True
    trust: bool = False


@dataclass(frozen=True)
class TritonBundle:
    """What was written."""

    folder: Path
    config: str
    """The content of `config.pbtxt`."""
    files: tuple[Path, ...]
    max_batch: int
    library: str
    """The library of the kernels as the server loads it, empty without one."""
    warmup: Mapping[str, tuple[int, ...]]
    """Shapes of the inputs that warm the model up."""
    notes: tuple[str, ...]

    @property
    def least_onnxruntime(self) -> str:
        """The version that the server needs, empty if the model has no kernels."""
        return LEAST_ONNXRUNTIME if self.library else ""

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "folder": str(self.folder),
            "files": [str(path.relative_to(self.folder)) for path in self.files],
            "max_batch": self.max_batch,
            "library": self.library,
            "least_onnxruntime": self.least_onnxruntime,
            "warmup": {name: list(shape) for name, shape in self.warmup.items()},
            "notes": list(self.notes),
        }


def bundle(
    model: Path,
    repository: Path,
    options: TritonOptions | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> TritonBundle:
    """Write `repository/NAME` for Triton, whole or not at all.

    The model is run once on the inputs that warm it up. Triton resolves no path of a library, so
    the configuration has the absolute one.

    Args:
        model: An ONNX file; its kernel library must be trusted.
        repository: The folder of the server's models.
        options: How it is served.
        sizes: Numbers for named sizes of the inputs that warm the model up.
        progress: Called with what is being done.

    Raises:
        ModelError: It is no valid model.
        UserError: Triton cannot serve it like this, or the folder is there already.
        RunError: The model does not run.
    """
    options = options or TritonOptions()
    name = options.name or model.name.split(".")[0]
    target = repository / name
    _check(options, name, target)
    mount = options.mount or PurePosixPath(repository.absolute())
    opened = open_model(model)
    for value in (*free_inputs(opened), *opened.graph.outputs):
        _check_type(value)
    library = _library(model, options)
    axis = batch_of(opened)
    if isinstance(axis, Refused) and options.max_batch:
        raise UserError(
            axis.reason, where=f"--max-batch {options.max_batch}",
            fix="leave it out: requests of this model cannot be batched",
        )  # fmt: skip
    one_row = dict.fromkeys(() if isinstance(axis, Refused) else axis.names, 1)
    progress("find inputs that it runs on")
    provider = _provider(model)
    repository.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder("bundle", inside=repository) as work:
        plan = SessionPlan(model, () if library is None else (library,))
        feeds, _ = first_that_runs(
            usual_feeds(opened, {**one_row, **(sizes or {})}), plan, work, _TIMEOUT_SECONDS
        )
        progress("look whether rows are independent")
        max_batch, notes = _batching(model, axis, feeds, options)
        progress("write")
        new = work / name
        server = mount / name / "1" / library_path(Path(MODEL_FILE)).name
        copy_model(model, new / "1", library)
        warmup = _warmup(opened, feeds, new / "warmup", is_batched=bool(max_batch))
        loaded = "" if library is None else str(server)
        config = _config(opened, name, options, max_batch, loaded, _KINDS[provider], warmup)
        (new / "config.pbtxt").write_text(config, encoding="utf-8")
        files = sorted(path.relative_to(new) for path in new.rglob("*") if path.is_file())
        new.rename(target)
    shapes = {key: np.shape(value) for key, value in feeds.items()}  # type: ignore[arg-type]
    return TritonBundle(
        target, config, tuple(target / each for each in files), max_batch, loaded, shapes,
        tuple(notes),
    )  # fmt: skip


def _check(options: TritonOptions, name: str, target: Path) -> None:
    if not name or PurePosixPath(name).name != name or name.startswith("."):
        raise UserError(f"{name!r} is no name of a folder", where="--name", fix="give another")
    if options.mount is not None and not options.mount.is_absolute():
        raise UserError(
            "Triton resolves no path of a library", where=f"--mount {options.mount}",
            fix="give the absolute path of the repository on the server",
        )  # fmt: skip
    if options.max_batch is not None and options.max_batch < 0:
        raise UserError("is no number of rows", where=f"--max-batch {options.max_batch}")
    if options.instances < 1:
        raise UserError("there must be one at least", where=f"--instances {options.instances}")
    for flag, given in {"--threads": options.threads, "--delay": options.delay_us}.items():
        if given < 0:
            raise UserError("cannot be negative", where=f"{flag} {given}", fix="give 0 or more")
    if target.exists():
        raise UserError(
            "is there already", where=str(target), fix="remove it, or give another --name"
        )


def _library(model: Path, options: TritonOptions) -> Path | None:
    """Return the file to copy: it holds the bytes that were hashed."""
    header = header_at(model)
    if extensions_library(header) is not None:
        raise UserError(
            "has ops of onnxruntime-extensions, whose Python package has no library for Triton",
            where=str(model), fix="build that library, and write the configuration by hand",
        )  # fmt: skip
    return trusted_library(model, trust=options.trust) if options.kernels else None


def _provider(model: Path) -> str:
    kind = header_at(model).metadata.get(LIBRARY_TARGET_KEY, KINDS[0])
    if kind not in KINDS:
        raise UserError(f"has kernels for an unknown target {kind!r}", where=str(model))
    return traits_of(kind).provider


def _batching(
    model: Path, axis: BatchAxis | Refused, feeds: Feeds, options: TritonOptions
) -> tuple[int, list[str]]:
    """Return how many rows requests are batched in, and what is to be said of it."""
    if options.max_batch == 0:
        return 0, []
    refused = axis if isinstance(axis, Refused) else mixed_rows(open_model(model), axis, feeds)
    if refused is None:
        return options.max_batch or _DEFAULT_BATCH, []
    if options.max_batch is None:
        return 0, [f"requests are not batched: {refused.reason}"]
    reason = f"without a proof that rows are independent: {refused.reason}"
    return options.max_batch, [f"requests are batched, as --max-batch asks, {reason}"]


def _warmup(opened: ir.Model, feeds: Feeds, folder: Path, *, is_batched: bool) -> dict[str, Field]:
    """Write one request's data, a file for each input, and return its `inputs`."""
    folder.mkdir()
    inputs: list[Field] = []
    for number, value in enumerate(free_inputs(opened)):
        array = feeds[value.name or ""]
        assert isinstance(array, np.ndarray)  # other types are refused
        (folder / f"input{number}").write_bytes(_raw(array))
        dims = array.shape[1:] if is_batched else array.shape
        content: Message = {
            "data_type": Enum(f"TYPE_{_type(value)}"),
            "dims": list(dims) or [1],
            "input_data_file": f"input{number}",
        }
        inputs.append({"key": value.name or "", "value": content})
    return {"name": "usual sizes", "batch_size": 1, "count": _WARMUP_RUNS, "inputs": inputs}


def _raw(array: np.ndarray) -> bytes:
    """Return a tensor's elements as Triton takes them: strings with their length before them."""
    if array.dtype.kind not in "OUS":
        return np.ascontiguousarray(array).tobytes()
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _config(
    opened: ir.Model,
    name: str,
    options: TritonOptions,
    max_batch: int,
    library: str,
    kind: str,
    warmup: Message,
) -> str:
    message: dict[str, Field] = {
        "name": name,
        "backend": "onnxruntime",
        "default_model_filename": MODEL_FILE,
        "max_batch_size": max_batch,
        "input": [_tensor(value, max_batch) for value in free_inputs(opened)],
        "output": [_tensor(value, max_batch) for value in opened.graph.outputs],
        "instance_group": [{"count": options.instances, "kind": Enum(kind)}],
    }
    if max_batch:
        message["dynamic_batching"] = {"max_queue_delay_microseconds": options.delay_us}
    if options.threads:
        count: Message = {"string_value": str(options.threads)}
        message["parameters"] = [{"key": "intra_op_thread_count", "value": count}]
    if library:
        message["model_operations"] = {"op_library_filename": [library]}
    message["model_warmup"] = [warmup]
    head = "# Written by ortkit.\n"
    if library:
        head += f"# The library of its kernels needs ONNX Runtime {LEAST_ONNXRUNTIME} or later.\n"
    return head + proto_text(message)


def _tensor(value: ir.Value, max_batch: int) -> Message:
    sizes = [size if isinstance(size, int) else -1 for size in value.shape or ()]
    dims = sizes[bool(max_batch) :]
    message: dict[str, Field] = {
        "name": value.name or "",
        "data_type": Enum(f"TYPE_{_type(value)}"),
        "dims": dims or [1],
    }
    if not dims:  # Triton has no scalars
        message["reshape"] = {}
    return message


def _check_type(value: ir.Value) -> None:
    if not isinstance(value.type, ir.TensorType) or value.dtype not in _TYPES:
        raise UserError(f"is {value.type}", where=repr(value.name), fix="Triton serves tensors")
    if value.shape is None:
        raise UserError("has no rank", where=repr(value.name), fix="give the model shapes")


def _type(value: ir.Value) -> str:
    return "" if value.dtype is None else _TYPES[value.dtype]

"""The node cases of the onnx package, and values as ONNX Runtime takes and gives them."""

from __future__ import annotations

import ctypes
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.env import cache_dir
from ortkit.kernels.cache_files import keep_cached, read_sealed
from ortkit.temporary import TemporaryFolder

Value = np.ndarray | list[Any] | dict[Any, Any] | None

#: The newest IR version that ONNX Runtime 1.24 to 1.31 reads; onnx 1.23 writes one more.
NEWEST_IR_VERSION = 13
#: This many cases are a sample: enough to meet most operators.
SAMPLE = 150
#: The file of the cache that holds all cases, and how it begins.
_CACHED, _HEAD = "onnx-node-cases", b'{"holds": "pickle"}'


@dataclass(frozen=True)
class Case:
    """A model with what it is run on and what must come out.

    Args:
        name: As onnx has it, such as "test_add_bcast".
        model: In an IR version that ONNX Runtime reads.
        feeds: By the names of inputs.
        expected: In the order of the outputs.
        rtol: The largest error, relative to the expected value.
        atol: And what is added to that.
    """

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Value]
    expected: tuple[Value, ...]
    rtol: float
    atol: float


def node_cases() -> list[Case]:
    """Return the cases that onnx makes in memory, most of them of one node, by name."""
    return sorted(map(_case, node_tests()), key=lambda case: case.name)


def node_tests() -> list[Any]:
    """Return onnx's `TestCase` objects of its node cases.

    Computing them takes 5 s; they are kept in the cache for each version of onnx and numpy.
    """
    path, key = cache_dir() / _CACHED, f"{_CACHED} onnx {onnx.__version__} numpy {np.__version__}"
    if (kept := read_sealed(path, key)) is not None:
        found: list[Any] = pickle.loads(kept.removeprefix(_HEAD))
        return found
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):  # some overflow on purpose
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    keep_cached(path, key, _HEAD + pickle.dumps(found))
    return found


@dataclass(frozen=True)
class CaseFolder:
    """All cases in files of their own, for other processes of ours."""

    folder: TemporaryFolder
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Where they lie, as long as this process lives."""
        return self.folder.path


@cache
def case_folder() -> CaseFolder:
    """Write all cases, once in a process; see `node_cases`."""
    folder = TemporaryFolder("cases")
    found = node_cases()
    for case in found:
        serialized = case.model.SerializeToString()
        content = (serialized, case.feeds, case.expected, case.rtol, case.atol)
        (folder.path / case.name).write_bytes(pickle.dumps(content))
    return CaseFolder(folder, tuple(case.name for case in found))


def load_case(folder: Path, name: str) -> Case:
    """Read what `case_folder` of this process's parent has written."""
    serialized, feeds, expected, rtol, atol = pickle.loads((folder / name).read_bytes())
    model = onnx.ModelProto.FromString(serialized)
    return Case(name, model, feeds, expected, rtol, atol)


def chosen(names: Sequence[str], pattern: str, sample: int | None) -> list[str]:
    """Return which cases are run: those that match, or of these every n-th.

    Args:
        names: Of all cases, sorted.
        pattern: As a shell has it; "" for all.
        sample: About how many; None for all. The same ones each time.
    """
    matching = [name for name in names if not pattern or fnmatch(name, pattern)]
    if sample is None or len(matching) <= sample:
        return matching
    return [matching[index * len(matching) // sample] for index in range(sample)]


def _case(found: Any) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    model.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    inputs, outputs = found.data_sets[0]
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    if len(names) < len(inputs):  # the case feeds initializers too
        names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, map(value_of, inputs), strict=False))
    expected = tuple(map(value_of, outputs))
    return Case(found.name, model, feeds, expected, found.rtol, found.atol)


def value_of(value: Any) -> Value:
    """Return a value of a case as numpy has it; odd types are those of ml_dtypes."""
    if isinstance(value, onnx.TensorProto):
        if value.data_type == onnx.TensorProto.STRING:
            return onnx.numpy_helper.to_array(value)
        return ir.serde.TensorProtoTensor(value).numpy()
    if isinstance(value, list):
        return [value_of(part) for part in value]
    if isinstance(value, dict):
        return value
    return None if value is None else np.asarray(value)


def run_session(session: Any, feeds: dict[str, Value]) -> list[Value]:
    """Run a session; tensors of types that numpy has not come as those of ml_dtypes.

    Raises:
        Exception: Whatever ONNX Runtime raises; its classes have no other base.
    """
    declared = {value.name: value.type for value in session.get_inputs()}
    declared |= {value.name: value.type for value in session.get_overridable_initializers()}
    kinds = [*declared.values(), *(value.type for value in session.get_outputs())]
    given = {name: value for name, value in feeds.items() if name in declared}
    if any(not kind.startswith("tensor(") or kind == "tensor(string)" for kind in kinds):
        return list(session.run(None, given))
    names = [value.name for value in session.get_outputs()]
    values = {name: _to_runtime(np.asarray(value)) for name, value in given.items()}
    return [_from_runtime(value) for value in session.run_with_ort_values(names, values)]


def _to_runtime(array: np.ndarray) -> Any:
    from ortkit.runtime.ort import import_onnxruntime

    ort: Any = import_onnxruntime()
    dtype = ir.DataType.from_numpy(array.dtype)
    # onnx-ir packs what has less than a byte.
    data = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype).tobytes()
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype.value)
    if value.tensor_size_in_bytes() != len(data):
        raise RuntimeError(f"{array.dtype} takes {value.tensor_size_in_bytes()} bytes")
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_runtime(value: Any) -> np.ndarray:
    size = value.tensor_size_in_bytes()
    data = bytes((ctypes.c_char * size).from_address(value.data_ptr())) if size else b""
    proto = onnx.TensorProto(
        data_type=value.element_type(), dims=list(value.shape()), raw_data=data
    )
    return ir.serde.TensorProtoTensor(proto).numpy()


def difference(got: Value, want: Value, rtol: float, atol: float) -> str:
    """Say how two values differ; empty if they agree within the bounds.

    NaN equals NaN, and infinities are equal or not.
    """
    if isinstance(want, list) or isinstance(got, list):
        if not isinstance(want, list) or not isinstance(got, list) or len(want) != len(got):
            return "not a sequence of the same length"
        found = (difference(one, other, rtol, atol) for one, other in zip(got, want, strict=True))
        return next((text for text in found if text), "")
    if isinstance(want, dict) or want is None or isinstance(got, dict) or got is None:
        return "" if got == want else f"{got!r}, not {want!r}"
    left, right = np.asarray(got), np.asarray(want)
    if left.shape != right.shape:
        return f"shape {left.shape}, not {right.shape}"
    if right.dtype.kind in "OUS" or left.dtype.kind in "OUS":
        return "" if left.astype(str).tolist() == right.astype(str).tolist() else "other texts"
    if left.dtype != right.dtype:
        return f"{left.dtype}, not {right.dtype}"
    return _numbers(left, right, rtol, atol)


def _numbers(left: np.ndarray, right: np.ndarray, rtol: float, atol: float) -> str:
    is_complex = right.dtype.kind == "c"
    wide = np.complex128 if is_complex else np.float64
    if right.dtype.kind in "biu":  # float64 has not all 64-bit integers
        close = left == right
    else:
        one, other = left.astype(wide), right.astype(wide)
        with np.errstate(all="ignore"):
            close = (one == other) | (np.isnan(one) & np.isnan(other))
            near = np.abs(one - other) <= atol + rtol * np.abs(other)
            close |= near & np.isfinite(one) & np.isfinite(other)
    if close.all():
        return ""
    found_at = (
        tuple(int(index) for index in np.argwhere(~np.asarray(close))[0]) if left.ndim else ()
    )
    count = int(np.size(close) - np.count_nonzero(close))
    return f"{count} of {left.size} differ, at {found_at}: {left[found_at]}, not {right[found_at]}"

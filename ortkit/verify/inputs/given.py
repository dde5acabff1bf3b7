"""Input sets of the user: npz and npy files, and folders of them or of serialized tensors."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.verify.inputs.feeds import Feeds, Value
from ortkit.verify.inputs.serialized import data_sets, read_data_set
from ortkit.verify.inputs.sizes import free_inputs

#: Types that numpy's file format lacks are read from arrays of as many bytes.
_STAND_INS = {"bfloat16": "uint16", "int4": "int8", "uint4": "uint8"}
#: What numpy.load raises for other files (numpy 2.4), and what a plain .npy array lacks.
_NOT_AN_NPZ = (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Given:
    """One input set of the user."""

    feeds: Feeds
    where: str
    """The file or the folder."""
    expected: Mapping[str, Value] = field(default_factory=dict)
    """Outputs that came with it, by name."""
    ignored: tuple[str, ...] = ()
    """Arrays that no input and no output is called like."""

    @property
    def note(self) -> str:
        """Say what was ignored; empty if nothing was."""
        if not self.ignored:
            return ""
        return f"{self.where}: no input is called {', '.join(self.ignored)}; ignored"


def load_given(path: Path, model: ir.Model) -> tuple[Given, ...]:
    """Read the user's input sets for a model.

    An npz file is a set whose arrays are named like the inputs, and an npy file one for a model
    with a single input. A folder holds npz files, a set each; npy files named like the inputs,
    one set; or `input_0.pb`, ... as ONNX's test data, itself or in folders `test_data_set_0`, ...

    Raises:
        UserError: There is none, or one lacks an input or has one of another type or shape.
    """
    if not path.is_dir():
        return (_of_arrays(_arrays_of(path, model), model, str(path)),)
    if folders := data_sets(path):
        return tuple(_of_data(folder, model) for folder in folders)
    if files := sorted(path.glob("*.npz")):
        return tuple(_of_arrays(load_arrays(file), model, str(file)) for file in files)
    if files := sorted(path.glob("*.npy")):
        return (_of_arrays({file.stem: _load_array(file) for file in files}, model, str(path)),)
    raise UserError(
        "the folder holds no inputs",
        where=str(path),
        fix="put npz files, npy files named like the inputs, or input_0.pb, ... there",
    )


def load_feeds(path: Path, model: ir.Model) -> Feeds:
    """Read the first input set of the user, for callers that can show no note.

    Types that numpy lacks are read from arrays of their bits: bfloat16 from uint16, float8
    from uint8, 4-bit integers from int8 or uint8 with one number each.

    Raises:
        UserError: As `load_given`; an array belongs to no input and no output.
    """
    given = load_given(path, model)[0]
    if given.ignored:
        inputs = [value.name or "" for value in free_inputs(model)]
        raise _unknown(given.ignored[0], inputs, given.where)
    return given.feeds


def checked_feeds(arrays: Mapping[str, np.ndarray], model: ir.Model, where: str) -> Feeds:
    """Return arrays as one input set of a model; see `load_feeds`.

    Raises:
        UserError: An input is missing, or one is of another type or shape; `where` says of what.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    for name in arrays:
        if name not in inputs:
            raise _unknown(name, inputs, where)
    return _checked(arrays, inputs, where)


def _of_arrays(arrays: Mapping[str, np.ndarray], model: ir.Model, where: str) -> Given:
    """Take arrays apart into inputs, expected outputs, and what is neither.

    Raises:
        UserError: As `load_given`.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    outputs = {value.name or "": value for value in model.graph.outputs}
    missing = [name for name in inputs if name not in arrays]
    extra = [name for name in arrays if name not in inputs and name not in outputs]
    if missing and extra:
        near = [name for name in extra if difflib.get_close_matches(name, missing, n=1)]
        raise _unknown((near or extra)[0], missing if near else inputs, where)
    feeds = _checked({n: each for n, each in arrays.items() if n in inputs}, inputs, where)
    expected = {
        name: _as_type(arrays[name], value, where, "output")
        for name, value in outputs.items()
        if name in arrays and name not in inputs and isinstance(value.type, ir.TensorType)
    }
    return Given(feeds, where, expected, tuple(extra))


def _of_data(folder: Path, model: ir.Model) -> Given:
    """Read a folder of serialized inputs and outputs."""
    found = read_data_set(folder, free_inputs(model), model.graph.outputs)
    seen: dict[str, tuple[int, str]] = {}
    for value in free_inputs(model):
        array = found.inputs[value.name or ""]
        if isinstance(array, np.ndarray):
            _as_type(array, value, str(folder))
            _check_shape(array, value, str(folder), seen)
    return Given(found.inputs, str(folder), found.outputs)


def _checked(
    arrays: Mapping[str, np.ndarray], inputs: Mapping[str, ir.Value], where: str
) -> Feeds:
    seen: dict[str, tuple[int, str]] = {}
    feeds: dict[str, Value] = {}
    for name, value in inputs.items():
        if name not in arrays:
            raise UserError(f"input {name!r} is missing", where=where, fix="add an array so named")
        if not isinstance(value.type, ir.TensorType):
            fix = "give a folder of input_0.pb, ..., or leave --inputs out"
            raise UserError(f"input {name!r} is no tensor", where=where, fix=fix)
        feeds[name] = _as_type(arrays[name], value, where)
        _check_shape(arrays[name], value, where, seen)
    return feeds


def _unknown(name: str, inputs: Iterable[str], where: str) -> UserError:
    known = list(inputs)
    near = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean {near[0]!r}" if near else f"the inputs are {', '.join(known)}"
    return UserError(f"the model has no input {name!r}", where=where, fix=fix)


def _arrays_of(path: Path, model: ir.Model) -> dict[str, np.ndarray]:
    """Read a file by what it holds: an array without a name is the model's only input."""
    if not _is_npy(path):
        return load_arrays(path)
    inputs = free_inputs(model)
    if len(inputs) != 1:
        raise UserError(
            f"holds one array, and the model has {len(inputs)} inputs",
            where=str(path),
            fix="give an npz file with an array for each, written with numpy.savez",
        )
    return {inputs[0].name or "": _load_array(path)}


def _is_npy(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def _load_array(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except _NOT_AN_NPZ as error:
        raise UserError(
            "not an npy file", where=str(path), fix="write it with numpy.save"
        ) from error


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an npz file as it is.

    Raises:
        UserError: There is none, or it is something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise UserError("no such file", where=str(path)) from error
    except _NOT_AN_NPZ as error:
        raise UserError(
            "not an npz file", where=str(path), fix="write it with numpy.savez"
        ) from error


def _as_type(array: np.ndarray, value: ir.Value, where: str, kind: str = "input") -> np.ndarray:
    if value.dtype == ir.DataType.STRING and array.dtype.kind in "US":
        return array.astype(str).astype(object)
    dtype = (value.dtype or ir.DataType.FLOAT).numpy()
    if array.dtype == dtype:
        return array
    wanted = _STAND_INS.get(dtype.name, "uint8" if dtype.name.startswith("float8") else dtype.name)
    if array.dtype.name != wanted:
        raise UserError(
            f"{kind} {value.name!r} is {array.dtype.name}, the model wants {dtype.name}",
            where=where,
            fix=f"save it as {wanted}",
        )
    return array.astype(dtype) if dtype.name.endswith("int4") else array.view(dtype)


def _check_shape(
    array: np.ndarray, value: ir.Value, where: str, seen: dict[str, tuple[int, str]]
) -> None:
    """Compare a shape with the declared one; `seen` holds the named sizes met so far."""
    if value.shape is None:
        return
    declared = f"[{', '.join(str(dim) for dim in value.shape)}]"
    problem = f"input {value.name!r} has shape {list(array.shape)}, the model wants {declared}"
    if array.ndim != len(value.shape):
        raise UserError(problem, where=where)
    for dim, size in zip(value.shape, array.shape, strict=True):
        if isinstance(dim, int) and dim != size:
            raise UserError(problem, where=where)
        if isinstance(dim, int) or not dim.value:
            continue
        first, other = seen.setdefault(dim.value, (size, value.name or ""))
        if first != size:
            raise UserError(
                f"size {dim.value!r} is {first} in {other!r} and {size} in {value.name!r}",
                where=where,
            )

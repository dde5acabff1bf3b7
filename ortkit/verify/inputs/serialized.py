"""ONNX's test data: folders of `input_0.pb`, ..., `output_0.pb`, ... with serialized tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ortkit.errors import UserError
from ortkit.verify.inputs.feeds import Feeds, Value

_FIX = "write it as ONNX's test data, with SerializeToString"


@dataclass(frozen=True)
class DataSet:
    """What one folder holds."""

    inputs: Feeds
    outputs: Feeds


def data_sets(folder: Path) -> tuple[Path, ...]:
    """Return the folders of test data: `folder`, or those in it called `test_data_set_N`."""
    if _files(folder, "input"):
        return (folder,)
    found = [each for each in folder.glob("test_data_set_*") if _files(each, "input")]
    return tuple(sorted(found, key=lambda each: (_number(each.name), each.name)))


def read_data_set(
    folder: Path, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> DataSet:
    """Read the inputs and the expected outputs in a folder.

    A tensor belongs to the value that it is named like, else to the one of its number.

    Raises:
        UserError: A file cannot be read, inputs are missing, or there are more than there are.
    """
    found = dict(_read(folder, "input", inputs))
    missing = [value.name for value in inputs if value.name not in found]
    if missing:
        raise UserError(
            f"input {missing[0]!r} is missing: there are {len(found)} of {len(inputs)} inputs",
            where=str(folder),
            fix=f"add input_{len(found)}.pb",
        )
    return DataSet(found, dict(_read(folder, "output", outputs)))


def _files(folder: Path, kind: str) -> list[Path]:
    names = re.compile(rf"{kind}_\d+\.pb")
    found = [each for each in folder.glob(f"{kind}_*.pb") if names.fullmatch(each.name)]
    return sorted(found, key=lambda each: _number(each.stem))


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1


def _read(folder: Path, kind: str, values: Sequence[ir.Value]) -> Iterator[tuple[str, Value]]:
    names = [value.name or "" for value in values]
    for path in _files(folder, kind):
        number = _number(path.stem)
        if number >= len(values):
            raise UserError(
                f"the model has {len(values)} {kind}s", where=str(path), fix="leave it out"
            )
        content = path.read_bytes()
        value = values[number]
        try:
            name, read = _parse(content, value)
            if name in names and name != value.name:
                value = values[names.index(name)]
                name, read = _parse(content, value)
        except (DecodeError, ValueError, TypeError, KeyError) as error:
            what = f"{kind} {value.name!r} cannot be read from it"
            raise UserError(what, where=str(path), fix=_FIX) from error
        yield value.name or "", read


def _parse(content: bytes, value: ir.Value) -> tuple[str, Value]:
    """Return the name and the value in a file, of the kind that the model declares."""
    if isinstance(value.type, ir.OptionalType):
        optional = onnx.OptionalProto.FromString(content)
        if optional.elem_type == onnx.OptionalProto.UNDEFINED:
            return optional.name, None
        if isinstance(value.type.elem_type, ir.SequenceType):
            return optional.name, _parts(optional.sequence_value)
        return optional.name, _array(optional.tensor_value)
    if isinstance(value.type, ir.SequenceType):
        sequence = onnx.SequenceProto.FromString(content)
        return sequence.name, _parts(sequence)
    tensor = onnx.TensorProto.FromString(content)
    return tensor.name, _array(tensor)


def _parts(sequence: onnx.SequenceProto) -> list[np.ndarray]:
    return [_array(tensor) for tensor in sequence.tensor_values]


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    """Return a tensor's elements.

    Raises:
        ValueError: They lie in another file, or are none.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its elements lie in another file")
    array = np.asarray(numpy_helper.to_array(tensor))
    if tensor.data_type == onnx.TensorProto.STRING:
        texts = [t.decode() if isinstance(t, bytes) else t for t in array.ravel()]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array

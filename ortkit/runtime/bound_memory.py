"""The memory of a binding: what the caller gave, or what is reserved in its place."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.runtime.feeds import shape_of
from ortkit.runtime.memory_devices import HOST, SessionDevices
from ortkit.runtime.options import explained
from ortkit.runtime.sharing import device_of, shared
from ortkit.runtime.specs import TensorSpec

Value: TypeAlias = Any
"""A numpy array for memory on the CPU, else an `OrtValue`, which torch takes by DLPack."""


def input_memory(ort: ModuleType, name: str, value: Any, devices: SessionDevices) -> Value:
    """Return an input's memory: as it is given, or a copy where it is read on another device.

    Raises:
        UserError: It cannot be shared, or the device has no room for it.
    """
    if not isinstance(value, np.ndarray):
        return value
    if devices.wants(name) != HOST and value.dtype.kind not in "OUST":
        try:
            return ort.OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(value), devices.device, devices.number
            )
        except RuntimeError as error:
            raise explained(error, f"input {name!r}") from error
    if not value.flags.c_contiguous:
        raise UserError(
            "is not contiguous and cannot be shared",
            where=f"input {name!r}",
            fix="use numpy.ascontiguousarray",
        )
    return value


def as_ortvalue(ort: ModuleType, value: Value) -> Any:
    """Return an OrtValue over the same memory.

    Raises:
        UserError: ONNX Runtime shares no memory of this kind.
    """
    if isinstance(value, ort.OrtValue):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUST":
        kind = "sequences" if isinstance(value, list) else "strings"
        raise UserError(
            f"ONNX Runtime binds no {kind} of Python's",
            fix="use run, of a model without bfloat16 and float8",
        )
    return ort.OrtValue.ortvalue_from_numpy(value)


def as_shape(value: object) -> tuple[int, ...] | None:
    """Return a shape that stands in the place of an array, None for anything else."""
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return value
    return None


def reserved_memory(
    ort: ModuleType,
    spec: TensorSpec,
    shape: tuple[int, ...],
    devices: SessionDevices,
    name: str = "",
) -> Value:
    """Reserve memory where the session wants it.

    Raises:
        UserError: There is no type for it in numpy, or no room.
    """
    if spec.dtype is None or spec.dtype.kind == "O":
        raise UserError(f"no memory can be reserved for {spec}", fix="give an array")
    if any(size < 0 for size in shape):
        raise UserError(f"{list(shape)} is no shape", fix=f"the model has {spec}")
    is_host = devices.wants(name) == HOST
    if is_host and spec.onnx_code is None:
        try:
            return np.zeros(shape, spec.dtype)
        except (MemoryError, ValueError) as error:
            raise UserError(
                f"no room for {list(shape)}: {error}", where=str(spec), fix="use smaller shapes"
            ) from error
    element = spec.dtype if spec.onnx_code is None else spec.onnx_code
    device, number = (HOST, 0) if is_host else (devices.device, devices.number)
    try:
        return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, device, number)
    except RuntimeError as error:
        raise explained(error, str(spec)) from error


def named_sizes(specs: Mapping[str, TensorSpec], given: Mapping[str, object]) -> dict[str, int]:
    """Return what the named sizes of the inputs are."""
    return {
        size: number
        for name, value in given.items()
        for size, number in zip(specs[name].shape or (), shape_of(value) or (), strict=False)
        if isinstance(size, str)
    }


def output_memory(
    ort: ModuleType, spec: TensorSpec, sizes: Mapping[str, int], devices: SessionDevices
) -> Value | None:
    """Reserve memory for an output, None where its shape or type is left to ONNX Runtime."""
    if spec.dtype is None or spec.dtype.kind == "O":
        return None
    shape = _known_shape(spec, sizes)
    return None if shape is None else reserved_memory(ort, spec, shape, devices)


def _known_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    if spec.shape is None:
        return None
    shape = [size if isinstance(size, int) else sizes.get(size or "", -1) for size in spec.shape]
    return None if min(shape) < 0 else tuple(shape)


def check_output(spec: TensorSpec, value: Value, sizes: Mapping[str, int]) -> None:
    """Compare memory for an output with the shape that follows from the inputs.

    Raises:
        UserError: It has another.
    """
    wanted = _known_shape(spec, sizes)
    if wanted is not None and shape_of(value) != wanted:
        raise UserError(
            f"has shape {list(shape_of(value) or ())}, the model writes {list(wanted)}",
            where=f"output {spec.name!r}",
        )


def given_output(
    ort: ModuleType, spec: TensorSpec, target: object, devices: SessionDevices
) -> Value:
    """Return the caller's memory for an output.

    Raises:
        UserError: The session cannot write into it.
    """
    where = f"output {spec.name!r}"
    if not isinstance(target, np.ndarray):
        value = _adopted(ort, target, where)
        if device_of(value) not in (HOST, devices.computes):
            raise UserError(f"is on {device_of(value)}, the session is not", where=where)
        if value.data_type() != spec.type:
            raise UserError(f"is {value.data_type()}, the model writes {spec}", where=where)
        return value
    if target.dtype != spec.dtype:
        raise UserError(f"is {target.dtype.name}, the model writes {spec}", where=where)
    if not (target.flags.c_contiguous and target.flags.writeable):
        raise UserError("must be contiguous and writeable", where=where)
    return target


def _adopted(ort: ModuleType, target: object, where: str) -> Any:
    if isinstance(target, ort.OrtValue):
        return target
    if not hasattr(target, "__dlpack__"):
        raise UserError(f"{type(target).__name__} is no memory", where=where)
    try:
        return shared(ort, target)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"cannot be taken over: {error}", where=where) from error

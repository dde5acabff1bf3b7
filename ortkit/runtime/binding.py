"""Memory bound to a session's inputs and outputs once, for runs that copy and check nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.runtime.feeds import FeedReader, shape_of
from ortkit.runtime.options import explained
from ortkit.runtime.specs import TensorSpec

Value: TypeAlias = Any
"""A numpy array for memory on the CPU, else an `OrtValue`, which torch takes by DLPack."""


class Binding:
    """A session with memory in place; `run` may not be called from two threads at once.

    Attributes:
        inputs: What the session reads: write into it, or use `update`.
    """

    def __init__(
        self,
        session: Any,
        io: Any,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        names: Sequence[str],
        device: str,
    ) -> None:
        """Take what `Session.bind` has made; outputs that are missing change with each run."""
        self.inputs = dict(inputs)
        self._session = session
        self._io = io
        self._outputs = {name: outputs.get(name) for name in names}
        self._open = [name for name in names if name not in outputs]
        self._device = device

    def run(self, options: Any = None) -> Mapping[str, Value]:
        """Run on what the inputs hold now; returns the outputs, as `outputs` does.

        Args:
            options: An `onnxruntime.RunOptions`.

        Raises:
            RunError: ONNX Runtime failed.
        """
        # What ONNX Runtime reserved in the last run would be taken for the caller's memory.
        for name in self._open:
            self._io.bind_output(name, self._device, 0)
        try:
            self._session.run_with_iobinding(self._io, options)
        except Exception as error:
            raise explained(error) from error
        return self.outputs if self._open else self._outputs

    @property
    def outputs(self) -> Mapping[str, Value]:
        """What the last run wrote, by name: the same memory in each run where sizes are known."""
        if self._open:
            values = dict(zip(self._outputs, self._io.get_outputs(), strict=True))
            self._outputs.update({name: _shown(values[name]) for name in self._open})
        return self._outputs

    def update(self, **arrays: object) -> None:
        """Copy arrays into the inputs of these names.

        Raises:
            UserError: There is no such input, or the shape or type is another.
        """
        for name, given in arrays.items():
            if name not in self.inputs:
                raise UserError(
                    f"there is no input {name!r}", fix=f"the inputs are {', '.join(self.inputs)}"
                )
            target = self.inputs[name]
            array = np.asarray(given)
            if isinstance(target, np.ndarray) and array.dtype != target.dtype:
                raise UserError(
                    f"is {array.dtype.name}, bound is {target.dtype.name}", where=f"input {name!r}"
                )
            if array.shape != shape_of(target):
                raise UserError(
                    f"has shape {list(array.shape)}, bound is {list(shape_of(target) or ())}",
                    where=f"input {name!r}",
                    fix="bind anew for another shape",
                )
            if isinstance(target, np.ndarray):
                target[...] = array
            else:
                target.update_inplace(np.ascontiguousarray(array))


def bind(
    ort: ModuleType,
    session: Any,
    reader: FeedReader,
    specs: Sequence[TensorSpec],
    inputs: Mapping[str, object],
    outputs: Mapping[str, object] | Sequence[str] | None,
    device: str,
) -> Binding:
    """Make a binding; the arguments are those of `Session.bind`."""
    by_name = {spec.name: spec for spec in (*reader.inputs, *reader.optional)}
    reserved = {
        name: _reserved(ort, by_name[name], shape, device)
        for name, value in inputs.items()
        if name in by_name and (shape := _as_shape(value)) is not None
    }
    given = reader.read({**inputs, **reserved})
    io = session.io_binding()
    held: dict[str, Value] = {}
    for name, value in given.items():
        if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
            raise UserError(
                "is not contiguous and cannot be shared",
                where=f"input {name!r}",
                fix="use numpy.ascontiguousarray",
            )
        if isinstance(value, np.ndarray) and device != "cpu":
            value = ort.OrtValue.ortvalue_from_numpy(value, device, 0)
        io.bind_ortvalue_input(name, _as_ortvalue(ort, value))
        held[name] = value
    sizes = _named_sizes(by_name, given)
    known = {spec.name: spec for spec in specs}
    for name in outputs or ():
        if name not in known:
            raise UserError(
                f"there is no output {name!r}", fix=f"the outputs are {', '.join(known)}"
            )
    places = outputs if isinstance(outputs, Mapping) else {}
    names = list(known if outputs is None or isinstance(outputs, Mapping) else outputs)
    fixed: dict[str, Value] = {}
    for name in names:
        if name in places:
            value = _given_output(ort, known[name], places[name])
            _check_output(known[name], value, sizes)
        else:
            value = _output_of(ort, known[name], sizes, device)
        if value is None:
            io.bind_output(name, device, 0)
            continue
        io.bind_ortvalue_output(name, _as_ortvalue(ort, value))
        fixed[name] = value
    return Binding(session, io, held, fixed, names, device)


def run_on_values(
    ort: ModuleType,
    session: Any,
    feeds: Mapping[str, Any],
    names: Sequence[str],
    specs: Iterable[TensorSpec],
) -> dict[str, Any]:
    """Run where an element type is one that ONNX Runtime's `run` does not give back."""
    io = session.io_binding()
    for name, value in feeds.items():
        io.bind_ortvalue_input(name, _as_ortvalue(ort, value))
    for name in names:
        io.bind_output(name, "cpu", 0)
    session.run_with_iobinding(io)
    by_name = {spec.name: spec for spec in specs}
    return {
        name: _copied(value, by_name[name])
        for name, value in zip(names, io.get_outputs(), strict=True)
    }


def _shown(value: Any) -> Value:
    """Return numpy's view of an OrtValue on the CPU, and others as they are."""
    if value.device_name().lower() != "cpu":
        return value
    try:
        return value.numpy()
    except RuntimeError:  # a type that ONNX Runtime has no array for
        return value


def _copied(value: Any, spec: TensorSpec) -> Any:
    if spec.onnx_code is None or spec.dtype is None:
        return value.numpy()
    array = np.empty(tuple(value.shape()), spec.dtype)
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def _as_ortvalue(ort: ModuleType, value: Value) -> Any:
    """Return an OrtValue over the same memory."""
    return ort.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value


def _as_shape(value: object) -> tuple[int, ...] | None:
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return value
    return None


def _reserved(ort: ModuleType, spec: TensorSpec, shape: tuple[int, ...], device: str) -> Value:
    if spec.dtype is None or spec.dtype.kind == "O":
        raise UserError(f"no memory can be reserved for {spec}", fix="give an array")
    if device == "cpu" and spec.onnx_code is None:
        return np.zeros(shape, spec.dtype)
    element = spec.dtype if spec.onnx_code is None else spec.onnx_code
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, device, 0)


def _named_sizes(specs: Mapping[str, TensorSpec], given: Mapping[str, object]) -> dict[str, int]:
    return {
        size: number
        for name, value in given.items()
        for size, number in zip(specs[name].shape or (), shape_of(value) or (), strict=False)
        if isinstance(size, str)
    }


def _output_of(
    ort: ModuleType, spec: TensorSpec, sizes: Mapping[str, int], device: str
) -> Value | None:
    """Reserve memory for an output, None where its shape or type is left to ONNX Runtime."""
    if spec.dtype is None or spec.dtype.kind == "O":
        return None
    shape = _known_shape(spec, sizes)
    return None if shape is None else _reserved(ort, spec, shape, device)


def _known_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    if spec.shape is None:
        return None
    shape = [size if isinstance(size, int) else sizes.get(size or "", -1) for size in spec.shape]
    return None if min(shape) < 0 else tuple(shape)


def _check_output(spec: TensorSpec, value: Value, sizes: Mapping[str, int]) -> None:
    wanted = _known_shape(spec, sizes)
    if wanted is not None and shape_of(value) != wanted:
        raise UserError(
            f"has shape {list(shape_of(value) or ())}, the model writes {list(wanted)}",
            where=f"output {spec.name!r}",
        )


def _given_output(ort: ModuleType, spec: TensorSpec, place: object) -> Value:
    where = f"output {spec.name!r}"
    if isinstance(place, ort.OrtValue):
        return place
    if not isinstance(place, np.ndarray):
        if not hasattr(place, "__dlpack__"):
            raise UserError(f"{type(place).__name__} is no memory", where=where)
        try:
            return ort.OrtValue.from_dlpack(place)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"cannot be taken over: {error}", where=where) from error
    if place.dtype != spec.dtype:
        raise UserError(f"is {place.dtype.name}, the model writes {spec}", where=where)
    if not (place.flags.c_contiguous and place.flags.writeable):
        raise UserError("must be contiguous and writeable", where=where)
    return place

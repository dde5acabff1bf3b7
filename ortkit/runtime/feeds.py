"""Turning what people have into what a session takes, checked against its signature."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.runtime.memory_devices import GPU, HOST
from ortkit.runtime.sharing import device_of, is_on_host, shared, wait_for_writers
from ortkit.runtime.specs import TensorSpec, signature

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Given: TypeAlias = object
"""A mapping by name, a sequence in the model's order, a dataclass, or the only input itself."""


@dataclass(frozen=True)
class FeedReader:
    """Checks feeds for one session; build it with its inputs."""

    inputs: tuple[TensorSpec, ...]
    optional: tuple[TensorSpec, ...]
    """Inputs with a default, which may be left out."""
    ort: ModuleType
    check_finite: bool = False
    device: str = HOST
    """Where the session computes; memory of other devices is refused."""
    number: int = 0
    """Of the GPU."""

    def read(self, given: Given, *, cast: bool = False) -> dict[str, object]:
        """Return feeds as `InferenceSession.run` takes them: arrays, lists and OrtValues.

        Args:
            given: What the caller has; numpy arrays, numbers and lists of them, torch tensors
                and everything with DLPack, which is shared and not copied where ONNX Runtime can.
            cast: Whether arrays of another type are converted (safely between kinds: integers
                to floats, floats to narrower floats; never floats to integers).

        Raises:
            UserError: A name, type, rank or size does not fit; the message says what the
                model takes.
        """
        by_name = self.named(given)
        self._check_names(by_name)
        known = {spec.name: spec for spec in (*self.inputs, *self.optional)}
        sizes: dict[str, tuple[int, str]] = {}
        feeds = {}
        for name, value in by_name.items():
            if value is None and known[name].is_optional:
                continue
            feeds[name] = self._value(known[name], value, cast)
            self._check_shape(known[name], feeds[name], sizes)
        return feeds

    def named(self, given: Given) -> Mapping[str, object]:
        """Return feeds by input name, unchecked."""
        if isinstance(given, Mapping):
            return given
        if dataclasses.is_dataclass(given) and not isinstance(given, type):
            return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
        if given is None:
            return {}
        if len(self.inputs) == 1 and _is_value(self.inputs[0], given):
            return {self.inputs[0].name: given}
        if isinstance(given, Sequence) and not isinstance(given, str):
            if len(given) > len(self.inputs):
                raise self._error(f"{len(given)} inputs are given")
            return {spec.name: value for spec, value in zip(self.inputs, given, strict=False)}
        raise self._error(f"a {type(given).__name__} says not which input it is for")

    def _check_names(self, by_name: Mapping[str, object]) -> None:
        known = [spec.name for spec in (*self.inputs, *self.optional)]
        for name in by_name:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise self._error(f"there is no input {name!r}{hint}")
        missing = [
            spec.name
            for spec in self.inputs
            if not spec.is_optional and by_name.get(spec.name) is None
        ]
        if missing:
            names = ", ".join(repr(name) for name in missing)
            raise self._error(f"{'inputs' if len(missing) > 1 else 'input'} {names} missing")

    def _value(self, spec: TensorSpec, value: object, cast: bool) -> object:
        if isinstance(value, np.ma.MaskedArray):
            raise UserError(
                "is masked, which no model knows of",
                where=f"input {spec.name!r}",
                fix="use its filled() values",
            )
        if not spec.is_tensor:
            return self._elements(spec, value, cast)
        if isinstance(value, self.ort.OrtValue):
            if value.data_type() != spec.type:
                raise self._error(f"input {spec.name!r} is {value.data_type()}")
            self._check_device(spec, value)
            return value
        array = value if isinstance(value, np.ndarray) else self._converted(spec, value)
        if not isinstance(array, np.ndarray):
            return array
        if spec.dtype is None:
            raise UserError(
                f"ONNX Runtime's Python binding takes no arrays of {spec.type}",
                where=f"input {spec.name!r}",
                fix="cast it in the model, from a type that numpy has",
            )
        if array.dtype != spec.dtype:
            array = self._as_type(spec, array, cast)
        if self.check_finite and array.dtype.kind in "fc":
            bad = array.size - int(np.count_nonzero(np.isfinite(array)))
            if bad:
                raise UserError(
                    f"{bad} of {array.size} values are NaN or infinite",
                    where=f"input {spec.name!r}",
                )
        code = spec.onnx_code
        if code is not None:
            return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(array), code
            )
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def _elements(self, spec: TensorSpec, value: object, cast: bool) -> object:
        """Check the tensors of a sequence, or that of an optional; the rest is passed on."""
        element = spec.element
        if element is None or isinstance(value, self.ort.OrtValue):
            return value
        if not spec.is_sequence:
            return self._value(element, value, cast)
        if not isinstance(value, list | tuple):
            raise self._error(f"input {spec.name!r} is {type(value).__name__}, no list")
        return [
            self._value(dataclasses.replace(element, name=f"{spec.name}[{index}]"), item, cast)
            for index, item in enumerate(value)
        ]

    def _converted(self, spec: TensorSpec, value: object) -> object:
        """Return an array over foreign memory, or an OrtValue where numpy cannot hold it."""
        if isinstance(value, np.generic | bool | int | float | str | bytes | list | tuple):
            return _from_numbers(spec, value)
        if not hasattr(value, "__dlpack__"):
            try:
                return np.asarray(value)
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"{type(value).__name__} is no array: {error}", where=f"input {spec.name!r}"
                ) from error
        value = value.detach() if hasattr(value, "detach") else value
        self._check_device(spec, value)
        if not is_on_host(value):
            wait_for_writers(self.number)
        value = value.contiguous() if hasattr(value, "contiguous") else value
        if is_on_host(value):
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError):  # bfloat16 and the like
                pass
        try:
            array = shared(self.ort, value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"cannot be taken over: {_first_line(error)}", where=f"input {spec.name!r}"
            ) from error
        if array.data_type() != spec.type:
            raise self._error(f"input {spec.name!r} is {array.data_type()}")
        return array

    def _check_device(self, spec: TensorSpec, value: object) -> None:
        # ONNX Runtime 1.31 reads such an address as one of the host's, and the process ends.
        device = device_of(value)
        if device not in (HOST, self.device):
            raise UserError(
                f"is on {device}, the session computes on {self.device}",
                where=f"input {spec.name!r}",
                fix=f"move it, or make the session with target={device!r}"
                if device == GPU
                else "move it",
            )

    def _as_type(self, spec: TensorSpec, array: Array, cast: bool) -> Array:
        wanted = spec.dtype
        assert wanted is not None
        if wanted.kind == "O" and array.dtype.kind in "UST":
            return array
        if array.dtype.newbyteorder("=") == wanted:
            return array
        if cast and wanted.kind != "O" and _may_cast(array.dtype, wanted):
            converted = array.astype(wanted)
            if wanted.kind in "iu" and not np.array_equal(converted, array):
                raise self._error(f"input {spec.name!r} has values beyond {wanted.name}")
            return converted
        fix = "; cast=True converts it" if _may_cast(array.dtype, wanted) else ""
        raise self._error(f"input {spec.name!r} is {array.dtype.name}{fix}")

    def _check_shape(
        self, spec: TensorSpec, value: object, sizes: dict[str, tuple[int, str]]
    ) -> None:
        """Compare a shape with the declared one; `sizes` holds the named sizes met so far."""
        if spec.shape is None or not spec.is_tensor:
            return
        shape = shape_of(value)
        if shape is None:
            return
        if len(shape) != len(spec.shape) or any(
            isinstance(size, int) and size >= 0 and size != given
            for size, given in zip(spec.shape, shape, strict=True)
        ):
            raise self._error(f"input {spec.name!r} has shape {list(shape)}")
        for size, given in zip(spec.shape, shape, strict=True):
            if not isinstance(size, str):
                continue
            first, other = sizes.setdefault(size, (given, spec.name))
            if first != given:
                raise self._error(
                    f"size {size!r} is {first} in {other!r} and {given} in {spec.name!r}"
                )

    def _error(self, problem: str) -> UserError:
        return UserError(problem, fix=f"the model takes {signature(self.inputs)}")


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return the shape of an array or OrtValue, None for anything else."""
    shape = getattr(value, "shape", None)
    if callable(shape):
        shape = shape()
    return None if shape is None else tuple(int(size) for size in shape)


def finite_problems(feeds: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    """Return a line for each array with values that are NaN or infinite."""
    lines = []
    for name, value in feeds:
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            bad = value.size - int(np.count_nonzero(np.isfinite(value)))
            if bad:
                lines.append(f"input {name!r}: {bad} of {value.size} values are NaN or infinite")
    return tuple(lines)


def _from_numbers(spec: TensorSpec, value: Any) -> Array:
    """Return an array of Python numbers in the model's type; numpy's own keep theirs."""
    try:
        array = np.asarray(value)
        if isinstance(value, np.generic) or spec.dtype is None or array.dtype == spec.dtype:
            return array
        if spec.dtype.kind != "O" and not _may_cast(array.dtype, spec.dtype):
            return array
        return np.asarray(value, spec.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(str(error), where=f"input {spec.name!r}") from error


def _may_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Say whether a conversion loses precision or range at most, and never the kind."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}
    if given.kind not in order or wanted.kind not in order:
        return False
    return order[given.kind] <= order[wanted.kind]


def _is_value(spec: TensorSpec, given: object) -> bool:
    """Say whether the only input is given itself, not as a list of one."""
    if not spec.is_sequence:
        return not _is_list_of_arrays(given)
    return not (isinstance(given, list | tuple) and len(given) == 1 and _is_list(given[0]))


def _is_list(given: object) -> bool:
    return isinstance(given, list | tuple) and (not given or _is_list_of_arrays(given))


def _is_list_of_arrays(given: object) -> bool:
    return isinstance(given, list | tuple) and any(
        hasattr(item, "__dlpack__") or hasattr(item, "__array__") for item in given
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

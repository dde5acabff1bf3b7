"""Input sets: made from what a model says about its inputs, or read from the user's file."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError, UserError
from ortkit.graph.dims import Size
from ortkit.verify.demands import demanded_sizes
from ortkit.verify.sizes import (
    MAX_ELEMENTS,
    check_overrides,
    concrete,
    elements_of,
    free_inputs,
    size_plans,
    sizes_of,
)
from ortkit.verify.uses import InputUse, input_use
from ortkit.verify.values import Plan, make_value

Value: TypeAlias = np.ndarray | list[np.ndarray] | None
"""A tensor, a sequence of tensors, or an optional that is absent."""
Feeds: TypeAlias = Mapping[str, Value]

#: Types that numpy's file format lacks are read from arrays of as many bytes.
_STAND_INS = {"bfloat16": "uint16", "int4": "int8", "uint4": "uint8"}
_SEQUENCE_LENGTH = 3
#: What numpy.load raises for other files (numpy 2.4), and what a plain .npy array lacks.
_NOT_AN_NPZ = (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile)


@dataclass(frozen=True)
class FeedMaker:
    """Makes input sets for one model; build it with `FeedMaker.of`."""

    inputs: tuple[ir.Value, ...]
    shapes: tuple[tuple[Size, ...], ...]
    uses: tuple[InputUse, ...]
    fixed: Mapping[str, int]

    @staticmethod
    def of(model: ir.Model, shapes: Mapping[str, int]) -> FeedMaker:
        """Read a model's inputs.

        Raises:
            UserError: `shapes` names a size that no input has.
            ModelError: An input's type or rank makes it impossible to feed.
        """
        inputs = free_inputs(model)
        for value in inputs:
            _check_type(value)
        sizes = tuple(_sizes(value) for value in inputs)
        check_overrides(sizes, shapes)
        fixed = {**demanded_sizes(model), **shapes}
        return FeedMaker(inputs, sizes, tuple(input_use(v, model) for v in inputs), fixed)

    def first(self, samples: int, seed: int) -> tuple[Feeds, ...]:
        """Make `samples` input sets over which every dynamic size takes two values."""
        plans, _ = size_plans(self.shapes, samples, self.fixed)
        return tuple(self.make(Plan(sizes, seed + i)) for i, sizes in enumerate(plans))

    def fallbacks(self, seed: int) -> Iterator[Feeds]:
        """Make more input sets, for a model that refuses the first: other sizes, tame ids."""
        _, plans = size_plans(self.shapes, 2, self.fixed)
        for bound in (10, 2, 1):
            for i, sizes in enumerate(plans):
                try:
                    yield self.make(Plan(sizes, seed + i, bound))
                except ModelError:  # too large, or a size such as `seq - 8` came out negative
                    continue

    def make(self, plan: Plan) -> Feeds:
        """Make one input set.

        Raises:
            ModelError: A size cannot be worked out, or the inputs are too large.
        """
        self._check_total(plan)
        return {
            value.name or "": self._value(value, shape, use, plan)
            for value, shape, use in zip(self.inputs, self.shapes, self.uses, strict=True)
        }

    def _check_total(self, plan: Plan) -> None:
        """Check that the inputs may be made up; a model declares their sizes at no cost."""
        total = elements_of(self.shapes, plan.sizes)
        if total <= MAX_ELEMENTS:
            return
        counts = [elements_of([shape], plan.sizes) for shape in self.shapes]
        largest = counts.index(max(counts))
        shape = _numbers(self.inputs[largest].name or "", self.shapes[largest], plan.sizes)
        name = self.inputs[largest].name
        raise ModelError(
            f"input {name!r} of shape {list(shape)} is too large to be made up:"
            f" all inputs may have {MAX_ELEMENTS:,} elements",
            fix="give --inputs FILE.npz, or --shape NAME=SIZE",
        )

    def _value(self, value: ir.Value, shape: tuple[Size, ...], use: InputUse, plan: Plan) -> Value:
        kind = value.type
        name = value.name or ""
        if isinstance(kind, ir.OptionalType):
            if plan.seed % 2:
                return None
            kind = kind.elem_type
        numbers = _numbers(name, shape, plan.sizes)
        dtype = value.dtype or ir.DataType.FLOAT
        if isinstance(kind, ir.SequenceType):
            parts = range(_SEQUENCE_LENGTH)
            return [make_value(use, dtype, numbers, plan, f"{name}{i}") for i in parts]
        return make_value(use, dtype, numbers, plan, name)


def make_feeds(
    model: ir.Model, samples: int, shapes: Mapping[str, int] | None = None, seed: int = 0
) -> tuple[Feeds, ...]:
    """Make input sets from the types, names, uses and sizes of a model's inputs.

    Args:
        model: Read, not changed.
        samples: How many sets; over two or more every dynamic size takes two values.
        shapes: Sizes that the user has set, by the size's name.
        seed: Decides the numbers.

    Raises:
        UserError: `shapes` names a size that no input has.
        ModelError: An input's type or rank makes it impossible to feed.
    """
    return FeedMaker.of(model, shapes or {}).first(samples, seed)


def _check_type(value: ir.Value) -> None:
    if isinstance(value.type, ir.SparseTensorType):
        raise ModelError(
            f"input {value.name!r} is a sparse tensor, which cannot be fed",
            fix="export the model with a dense input",
        )
    if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
        raise ModelError(
            f"the type of input {value.name!r} is not known",
            fix="export the model with the types of its inputs",
        )


def _sizes(value: ir.Value) -> tuple[Size, ...]:
    """Return an input's shape; parts of a sequence whose shape is open get one."""
    is_tensor = isinstance(value.type, ir.TensorType)
    return (3, 4) if value.shape is None and not is_tensor else sizes_of(value)


def _numbers(name: str, shape: tuple[Size, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    numbers = [concrete(size, sizes) for size in shape]
    if any(number is None for number in numbers):
        text = ", ".join(str(size) for size in shape)
        raise ModelError(
            f"input {name!r} has no possible size for [{text}]",
            fix="give --shape NAME=SIZE or --inputs FILE.npz",
        )
    return tuple(number for number in numbers if number is not None)


def load_feeds(path: Path, model: ir.Model) -> Feeds:
    """Read one input set from an npz file whose arrays are named like the model's inputs.

    Types that numpy lacks are read from arrays of their bits: bfloat16 from uint16, float8
    from uint8, 4-bit integers from int8 or uint8 with one number each.

    Raises:
        UserError: The file is no npz, lacks an input, or has one of another type or shape.
    """
    return checked_feeds(load_arrays(path), model, str(path))


def checked_feeds(arrays: Mapping[str, np.ndarray], model: ir.Model, where: str) -> Feeds:
    """Return arrays as one input set of a model; see `load_feeds`.

    Raises:
        UserError: An input is missing, or one is of another type or shape; `where` says of what.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    for name in arrays:
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, n=1)
            fix = f"did you mean {near[0]!r}" if near else f"the inputs are {', '.join(inputs)}"
            raise UserError(f"the model has no input {name!r}", where=where, fix=fix)
    seen: dict[str, tuple[int, str]] = {}
    feeds: dict[str, Value] = {}
    for name, value in inputs.items():
        if name not in arrays:
            raise UserError(f"input {name!r} is missing", where=where, fix="add an array so named")
        if not isinstance(value.type, ir.TensorType):
            raise UserError(f"input {name!r} is no tensor", where=where, fix="leave --inputs out")
        feeds[name] = _as_type(arrays[name], value, where)
        _check_shape(arrays[name], value, where, seen)
    return feeds


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


def _as_type(array: np.ndarray, value: ir.Value, where: str) -> np.ndarray:
    if value.dtype == ir.DataType.STRING and array.dtype.kind in "US":
        return array.astype(str).astype(object)
    dtype = (value.dtype or ir.DataType.FLOAT).numpy()
    if array.dtype == dtype:
        return array
    wanted = _STAND_INS.get(dtype.name, "uint8" if dtype.name.startswith("float8") else dtype.name)
    if array.dtype.name != wanted:
        raise UserError(
            f"input {value.name!r} is {array.dtype.name}, the model wants {dtype.name}",
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

"""A kernel that a user wrote in TE or TIR as one function over buffers, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias

from ortkit.errors import UserError
from ortkit.extend.declare.kernel_options import Packing, expanded
from ortkit.extend.declare.kernel_parameters import is_prim_func
from ortkit.extend.declare.kernels import words_of
from ortkit.extend.declare.size_rules import Words
from ortkit.extend.declare.variants import Form
from ortkit.extend.tvm.choices import DEFAULTS, Choices
from ortkit.extend.tvm.lowering import Parts
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, product, symbols_of

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

#: The shim's parts take at least that long: custom_ops/native/kernel.cc.
_PART_PICOSECONDS = 16_000_000
_RANGE = ("begin", "end")
_PACKED = "packed"


@dataclass
class Maker:
    """One kernel in the making."""

    form: Form
    level: str
    """Of the processor."""
    choices: Choices = DEFAULTS
    notes: list[str] = field(default_factory=list)
    """What a schedule could not do."""
    packing: Packing | None = None
    """What it packs; the packed tensor is its output."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The named sizes, where they are known; none: a run tells them."""

    def __post_init__(self) -> None:
        from tvm import tirx

        form = self.form
        assert form.declared is not None
        self.kernel = form.declared
        self.options = form.declared.options
        self.name = f"kernel {self.kernel.name}"
        signature = form.signature
        tensors = [*signature.inputs, *signature.outputs]
        self.sizes = {
            name: tirx.const(self.numbers[name], "int64") if self.numbers
            else tirx.Var(name, "int64")
            for name in symbols_of(tensors)
        }  # fmt: skip
        self.packed = {
            spec.name: form.op.packings[spec.name]
            for spec in signature.inputs
            if spec.name in self.options.packed
        }
        self.words: Words = words_of(form.op, self.kernel, form.is_present)
        if self.packing is not None:
            self.words = self.packing.words
            self.packed = {_PACKED: self.packing}
            tensors.append(TensorSpec(_PACKED, signature.inputs[0].dtype, ()))
        self.tensors = [self._laid_out(tensor) for tensor in tensors]
        self.split = self.options.split
        self.is_range = bool(self.options.units)
        if self.split:
            self._check_split()

    def _laid_out(self, tensor: TensorSpec) -> TensorSpec:
        packing = self.packed.get(tensor.name)
        return tensor if packing is None else replace(tensor, dtype=packing.dtype or tensor.dtype)

    def _check_split(self) -> None:
        if self.split not in self.sizes:
            raise self.wrong(f"split names no size {self.split!r}", ", ".join(self.sizes))
        for tensor in self.tensors:
            parameters = [
                axis for axis, dim in enumerate(tensor.shape)
                if self.split in extent_of(dim).symbols
            ]  # fmt: skip
            if parameters and tensor.name in self.packed:
                raise self.wrong(
                    f"{tensor.name} is packed, and its axis {self.split} is not split"
                )
            is_first = parameters == [0] and extent_of(tensor.shape[0]) == Extent(1, (self.split,))
            if parameters and not is_first:
                raise self.wrong(f"{self.split} is not the first axis of {tensor.name}")
            if not parameters and tensor in self.form.signature.outputs:
                raise self.wrong(f"the output {tensor.name} has no axis {self.split} to split")

    def wrong(self, problem: str, known: str = "") -> UserError:
        return UserError(f"{self.name}: {problem}", where=self.form.op.id,
                         fix=f"known: {known}" if known else "")  # fmt: skip

    def extent(self, extent: Extent) -> Expr:
        """Return a size as an expression."""
        from tvm import tirx

        result = tirx.const(extent.factor, "int64")
        for name in extent.symbols:
            result = self.sizes[name] if result_is_one(result) else result * self.sizes[name]
        return result

    def shape(self, tensor: TensorSpec) -> list[Expr]:
        """Return a tensor's sizes as the function has them."""
        from tvm import tirx

        packing = self.packed.get(tensor.name)
        if packing is None:
            return [self.extent(extent_of(dim)) for dim in tensor.shape]
        return [
            tirx.floordiv(self.extent(extent) + (divisor - 1), divisor)
            for extent, divisor in packing.shape
        ]

    # ---- what the user wrote, as one function over buffers
    def function(self) -> Expr:
        """Return a PrimFunc whose buffers are the signature's tensors, in their order."""
        found, is_ordered = self.written()
        if is_ordered:
            return found
        from ortkit.extend.tvm.schedule import scheduled

        return scheduled(found, self.options.schedule, self.split, self.choices, self.notes.append)

    def parts(self, symbol: str, function: Expr) -> Parts:
        """Return what `lowered` makes into one C function."""
        return Parts(symbol, function, self.tensors, [*map(self.shape, self.tensors)], self.sizes,
                     self.scalars(function), self.split, self.is_range,
                     bool(self.options.inplace))  # fmt: skip

    def written(self) -> tuple[Expr, bool]:
        """Return what the user wrote as a PrimFunc, and whether its loops are in order already."""
        if is_prim_func(self.kernel.function):
            return self._checked(self.kernel.function), True
        from tvm import te

        given = self._given()
        inputs = self.tensors[: len(self.form.signature.inputs)]
        placeholders = [te.placeholder(self.shape(spec), spec.dtype, spec.name) for spec in inputs]
        by_name = dict(zip((item.name for item in inputs), placeholders, strict=True))
        arguments = [None if name is None else by_name[name] for name in given]
        named = {name: by_name[name]() for name in self.form.attributes}
        found = self.kernel.function(*arguments, **named, **self._constants())
        if is_prim_func(found):
            return self._checked(found), True
        results = list(found) if isinstance(found, tuple | list) else [found]
        self._check_results(results)
        return te.create_prim_func([*placeholders, *results]), False

    def _given(self) -> list[str | None]:
        """Return the names of the node's inputs, None for those that are absent."""
        if self.packing is not None:
            return [self.packing.input]
        inputs = expanded(self.form.op.schema.inputs, self.form.is_present)
        pairs = zip(inputs, self.form.is_present, strict=True)
        return [op_input.name if flag else None for op_input, flag in pairs]

    def _constants(self) -> dict[str, Any]:
        """Return what the function takes by name in addition to attributes: constants, level,
        sizes."""
        given = {**self.sizes, "level": self.level, **self.options.constants}
        parameters = inspect.signature(self.kernel.function).parameters
        is_named = {
            name
            for name, parameter in parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        is_named = is_named - {*self.form.attributes} | {*parameters} & {"level"}
        return {
            name: value
            for name, value in given.items()
            if name in is_named or name in self.options.constants
        }

    def _check_results(self, results: Sequence[Any]) -> None:
        wanted = self.tensors[len(self.form.signature.inputs) :]
        if len(results) != len(wanted):
            raise self.wrong(f"it returns {len(results)} tensors, declared are {len(wanted)}")
        for result, spec in zip(results, wanted, strict=True):
            if not hasattr(result, "op") or not hasattr(result, "shape"):
                raise self.wrong(
                    f"it returns {type(result).__name__} for {spec.name}, and no te.Tensor"
                )
            self._check_tensor(spec, str(result.dtype), list(result.shape))

    def _check_tensor(self, spec: TensorSpec, dtype: str, shape: Sequence[Expr]) -> None:
        if dtype != spec.dtype:
            raise self.wrong(f"{spec.name} is {dtype}, declared is {spec.dtype} here")
        wanted = self.shape(spec)
        if len(shape) != len(wanted):
            raise self.wrong(
                f"{spec.name} has {len(shape)} axes, declared are {len(wanted)} "
                "(any number of axes are one)"
            )
        for axis, (dim, want) in enumerate(zip(shape, wanted, strict=True)):
            number = getattr(dim, "value", None)
            if number is not None and number != getattr(want, "value", None):
                message = (
                    getattr(want, "value", want) if spec.name in self.packed else spec.shape[axis]
                )
                raise self.wrong(
                    f"{spec.name} has size {number} along axis {axis}, declared is {message}"
                )

    def _checked(self, function: Expr) -> Expr:
        """Return a PrimFunc of the user's, whose buffers are the tensors by position."""
        from tvm import tirx

        if self.is_range and not any(tirx.is_buffer_var(item) for item in function.params):
            return function  # in the calling convention of kernels already
        buffers = [param for param in function.params if tirx.is_buffer_var(param)]
        numbers = len(self.form.attributes)
        inputs = len(self.form.signature.inputs) - numbers
        wanted = [*self.tensors[:inputs], *self.tensors[inputs + numbers :]]
        if len(buffers) != len(wanted):
            raise self.wrong(
                f"it has {len(buffers)} buffers, inputs and outputs are {len(wanted)}"
            )
        for buffer, spec in zip(buffers, wanted, strict=True):
            self._check_tensor(spec, str(buffer.ty.dtype), list(buffer.ty.shape))
        return self._specialized(function, buffers, wanted) if self.numbers else function

    def _specialized(
        self, function: Expr, buffers: Sequence[Expr], tensors: Sequence[TensorSpec]
    ) -> Expr:
        """Return a PrimFunc of the user's for known sizes."""
        from tvm import tirx

        known = {
            param: self.sizes[str(param.name)]
            for param in function.params
            if not tirx.is_buffer_var(param) and str(param.name) in self.sizes
        }
        for buffer, spec in zip(buffers, tensors, strict=True):
            known[buffer] = tirx.decl_buffer(self.shape(spec), spec.dtype, name=str(buffer.name))
        return function.specialize(known)

    def scalars(self, function: Expr) -> dict[str, str]:
        """Return what parameters that are no buffers stand for: an attribute, a size, a range.

        Raises:
            UserError: One stands for none.
        """
        from tvm import tirx

        found = {}
        for param in function.params:
            name = str(param.name)
            if tirx.is_buffer_var(param) or "Pointer" in type(param.ty).__name__:
                continue
            if name in self.form.attributes:
                found[name] = "attribute"
            elif name in self.sizes:
                found[name] = "size"
            elif self.is_range and name in _RANGE:
                found[name] = "range"
            else:
                known = [*self.form.attributes, *self.sizes, *(_RANGE if self.is_range else ())]
                raise self.wrong(f"its parameter {name} is no attribute or size", ", ".join(known))
        return found

    # ---- how it is called
    def launch(self) -> Launch:
        """Return its units and their cost."""
        outputs = [product(map(extent_of, spec.shape)) for spec in self.form.signature.outputs]
        outputs = outputs or [ONE]  # what packs an input is not cut
        largest = max(outputs, key=lambda extent: extent.at(64))
        work = self.words.size(self.options.work) if self.options.work else largest
        units = ONE
        if self.split:
            units = Extent(1, (self.split,))
        elif self.options.units:
            units = self.words.size(self.options.units)
        points, picoseconds = work.divided_by(units) or work, self.options.picoseconds
        if self.options.least:  # a part is what takes so long
            points, picoseconds = ONE, ceil(_PART_PICOSECONDS / self.options.least)
        return Launch((units,), points, picoseconds, tuple(self._pairs()))

    def _pairs(self) -> list[tuple[int, int]]:
        inputs = [spec.name for spec in self.form.signature.inputs]
        outputs = [spec.name for spec in self.form.signature.outputs]
        found = []
        for source, result in self.options.inplace:
            if source not in inputs or result not in outputs:
                raise self.wrong(
                    f"inplace names {source} and {result}", ", ".join([*inputs, *outputs])
                )
            found.append((inputs.index(source), outputs.index(result)))
        return found


def result_is_one(value: Expr) -> bool:
    """Say whether an expression is the number 1."""
    return getattr(value, "value", None) == 1

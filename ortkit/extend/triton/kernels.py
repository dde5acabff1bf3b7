"""Kernels that users write in Triton: a wrapper with the shim's parameters, compiled for GPUs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from ortkit.errors import MissingDependencyError, UserError
from ortkit.extend.declare.kernel_parameters import attributes_of, python_function
from ortkit.extend.declare.kernels import rules_of, words_of
from ortkit.extend.declare.size_rules import Words
from ortkit.extend.declare.variants import Form
from ortkit.extend.triton.source import is_gluon, name_of, text_of
from ortkit.kernels.cuda import (
    Argument,
    Condition,
    CudaKernel,
    TensorMap,
    grid_bounds,
    rename_extent,
)
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, product, symbols_of
from ortkit.kernels.triton.maps import element_bytes, map_parameter, tensor_map
from ortkit.kernels.triton.parameters import POINTERS, Parameter
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.targets.cuda import architectures_of
from ortkit.targets.target import Target

_MULTIPLE = 16
_SUFFIX = "_ptr"
#: As Triton's own launcher passes them; generated kernels read bools as bytes.
_POINTERS = {**POINTERS, "bool": "*i1"}
_NUMBERS = {"float32": "fp32", "int64": "i64"}


def compile_triton(form: Form, target: Target, folder: Path) -> CudaKernel:
    """Compile a declared kernel for all architectures of a target, into `folder`.

    Raises:
        UserError: The kernel does not fit the declaration.
        MissingDependencyError: triton is not installed.
        KernelError: Triton failed for every architecture.
    """
    if find_spec("triton") is None:
        raise MissingDependencyError(
            f"triton is not installed, which {form.op.id} is written for",
            fix="pip install triton",
        )
    from ortkit.kernels.triton.build import write_images

    target = target.resolved()
    made = write_images(sources_of_form(form), architectures_of(target.level), folder)
    return CudaKernel(
        form.signature.key, "triton", target, made.variants, made.images, 0.0, made.left_out
    )


def sources_of_form(form: Form) -> tuple[VariantSource, ...]:
    """Return the variants of a declared kernel before they are compiled: what is aligned first.

    Raises:
        UserError: The kernel does not fit the declaration.
    """
    made = _variants(form)
    return made if made[0].architectures is None else (*made, *_behind(form))


def _variants(form: Form) -> tuple[VariantSource, ...]:
    """Return those of the kernel alone."""
    assert form.declared is not None
    options = form.declared.options
    made = [_Maker(form, is_aligned=True).variant()]
    if not options.boxes:
        made.append(_Maker(form, is_aligned=False).variant())
    if not options.architectures:
        return tuple(made)
    return tuple(
        replace(variant_source, architectures=options.architectures, is_optional=True)
        for variant_source in made
    )


def _behind(form: Form) -> Iterator[VariantSource]:
    """Yield variants of the kernels after one that is not for all GPUs, until one is for all.

    Raises:
        UserError: None is.
    """
    op, one = form.op, form.declared
    assert one is not None
    for other in op.kernels[one.number + 1 :]:
        is_like = other.target == one.target and other.fits(op.schema, form.types, form.is_present)
        if not is_like or attributes_of(op, other) != form.attributes:
            continue
        rules = rules_of(op, other, form.is_present)
        yield from _variants(replace(form, declared=other, rules=rules))
        if not other.options.architectures and set(rules) <= set(form.rules):
            return
    names = ", ".join(f"sm_{number}" for number in one.options.architectures)
    raise UserError(
        f"it is for {names} alone, and no kernel behind it takes all that it takes on others",
        where=f"{op.id}: kernel {one.name}", fix="declare one behind it, without architectures",
    )  # fmt: skip


@dataclass
class _Maker:
    """One variant in the making."""

    form: Form
    is_aligned: bool
    _found: dict[str, Parameter] = field(default_factory=dict)
    _maps: list[TensorMap] = field(default_factory=list)
    _rows: list[Extent] = field(default_factory=list)
    """Bytes from a row of a map to the next."""

    def __post_init__(self) -> None:
        form = self.form
        assert form.declared is not None
        self.kernel = form.declared
        self.options = form.declared.options
        self.where = f"{form.op.id}: kernel {self.kernel.name}"
        self.words: Words = words_of(form.op, self.kernel, form.is_present)
        self.tensors: tuple[TensorSpec, ...] = (*form.signature.inputs, *form.signature.outputs)
        self.symbols = symbols_of(self.tensors)
        self.index_of = {tensor.name: index for index, tensor in enumerate(self.tensors)}

    def variant(self) -> VariantSource:
        """Return the variant: alignment that Triton may assume, the grid, the conditions."""
        call = self._call()
        grid = self._grid()
        parameters = tuple(self._found.values())
        entry = f"ortkit_{self.form.signature.key}"
        names = ", ".join(parameter.name for parameter in parameters)
        text = text_of(self.kernel.function, self.where)
        wrapper = f"@_jit\ndef {entry}({names}):\n    {name_of(self.kernel.function)}({call})\n"
        step = StepSource(
            entry, f"{text}\n\n{wrapper}", parameters, grid, self.options.warps,
            self.options.stages, fp_fusion=True, registers=self.options.registers or None,
            maps=tuple(self._maps), is_gluon=is_gluon(self.kernel.function),
            workers=self.options.workers,
        )  # fmt: skip
        conditions = [
            Condition(rule.size, rule.divisible_by, rule.at_most) for rule in self.form.rules
        ]
        conditions += grid_bounds(grid)
        conditions += [Condition(row, divisible_by=_MULTIPLE) for row in self._rows]
        return VariantSource(
            tuple(conditions), self.is_aligned, self.symbols, (step,), is_optional=self.is_aligned
        )

    def _grid(self) -> tuple[tuple[Extent, int], ...]:
        found = [self.words.blocks(item) for item in self.options.grid]
        return (*found, *[(ONE, 1)] * (3 - len(found)))

    # ---- what the function is called with
    def _call(self) -> str:
        parameters = inspect.signature(python_function(self.kernel.function)).parameters
        self._check_names(list(parameters))
        return ", ".join(
            f"{name}={passed}"
            for name, parameter in parameters.items()
            if (passed := self._passed(name, parameter)) is not None
        )

    def _check_names(self, names: Sequence[str]) -> None:
        for name in (*self.options.constants, *self.options.sizes):
            if name not in names and name not in "".join(map(str, self.options.grid)):
                raise UserError(
                    f"there is no parameter {name!r}", where=self.where,
                    fix=f"it has {', '.join(names)}",
                )  # fmt: skip
        inputs = len(self.form.signature.inputs)
        for spec in self.tensors[inputs:]:
            if spec.name not in names and f"{spec.name}{_SUFFIX}" not in names:
                raise UserError(
                    f"it has no parameter {spec.name}, and writes that output nowhere",
                    where=self.where, fix=f"it has {', '.join(names)}",
                )  # fmt: skip

    def _passed(self, name: str, parameter: inspect.Parameter) -> str | None:
        """Return an argument as the source has it, None for a default that is taken."""
        plain = name.removesuffix(_SUFFIX)
        if name in self.options.constants:
            return repr(self.options.constants[name])
        if name in self.options.sizes:
            return self._size(self.words.size(self.options.sizes[name]))
        if name in self.form.attributes:
            spec = self.tensors[self.index_of[name]]
            argument = Argument("number", self.index_of[name])
            return self._add(name, _NUMBERS[spec.dtype], False, argument)
        for text in (name, plain):
            if text in self.options.boxes:
                return self._map(name, text)
            if text in self.index_of:
                index = self.index_of[text]
                type_ = _POINTERS[self.tensors[index].dtype]
                return self._add(name, type_, self.is_aligned, Argument("tensor", index))
        if name in self.words.sizes:
            return self._size(self.words.size(name))
        if plain in {op_input.name for op_input in self.form.inputs}:
            return "None"  # an optional one that is absent
        if parameter.default is not parameter.empty:
            return None
        known = [*self.index_of, *self.words.sizes]
        raise UserError(
            f"the parameter {name!r} stands for nothing", where=self.where,
            fix=f"call it {' or '.join(known)}, or give it in constants or sizes",
        )  # fmt: skip

    def _map(self, name: str, tensor: str) -> str:
        """Return a parameter that is a map of a whole tensor, which is dense."""
        index, box = self.index_of[tensor], self.options.box(tensor)
        spec = self.tensors[index]
        dtype = _POINTERS[spec.dtype].removeprefix("*")
        dims = [extent_of(dim) for dim in spec.shape]
        strides = [product(dims[axis + 1 :]) for axis in range(len(dims) - 1)]
        row = strides[-1] * Extent(element_bytes(dtype))
        if (row.static or 0) % _MULTIPLE:
            raise UserError(
                f"rows of {tensor} have {row.static} bytes, and boxes are of multiples of "
                f"{_MULTIPLE}", where=self.where,
            )  # fmt: skip
        if row.static is None and row.factor % _MULTIPLE:
            self._rows.append(row)
        named = [rename_extent(dim, self.symbols) for dim in dims]
        steps = [rename_extent(stride, self.symbols) for stride in strides]
        self._maps.append(tensor_map(index, dtype, named, steps, box, 0))
        gluon = is_gluon(self.kernel.function)
        self._found[name] = map_parameter(name, len(self._maps) - 1, dtype, box, is_gluon=gluon)
        return name

    def _size(self, extent: Extent) -> str:
        if extent.static is not None:
            return str(extent.static)
        renamed = rename_extent(extent, self.symbols)
        name = "n_" + "_".join([str(renamed.factor), *renamed.symbols])
        # A size that the conditions make a multiple is declared as one.
        is_multiple = extent.factor % _MULTIPLE == 0 or any(
            rule.divisible_by % _MULTIPLE == 0 and extent.divided_by(rule.size) is not None
            for rule in self.form.rules
        )
        return self._add(name, "i32", is_multiple, Argument("size32", extent=renamed))

    def _add(self, name: str, type_: str, is_multiple: bool, argument: Argument) -> str:
        self._found.setdefault(name, Parameter(name, type_, is_multiple, argument))
        return name


def launches_of(
    form: Form, sizes: dict[str, int]
) -> tuple[VariantSource, tuple[int, int, int]] | None:
    """Return what is launched for some sizes, by name, and its blocks; None if no variant fits."""
    for source in sources_of_form(form):
        step = source.steps[0]
        if has_elements(source, sizes) and all(
            _holds(condition, sizes) for condition in source.conditions
        ):
            x, y, z = (-(-_value(extent, sizes) // divisor) for extent, divisor in step.grid)
            return source, (x, y, z)
    return None


def has_elements(source: VariantSource, sizes: Mapping[str, int]) -> bool:
    """Say whether there is something in all tensors that a variant has maps of.

    Args:
        source: The variant.
        sizes: By the names of its symbols.
    """
    by_symbol = {f"s{index}": sizes[name] for index, name in enumerate(source.symbols)}
    maps = (map_ for step in source.steps for map_ in step.maps)
    return all(_value(dim, by_symbol) for item in maps for dim in item.dims)


def _value(extent: Extent, sizes: Mapping[str, int]) -> int:
    result = extent.factor
    for name in extent.symbols:
        result *= sizes[name]
    return result


def _holds(condition: Condition, sizes: dict[str, int]) -> bool:
    size = _value(condition.extent, sizes)
    is_small = condition.at_most is None or size <= condition.at_most
    return size % condition.divisible_by == 0 and is_small

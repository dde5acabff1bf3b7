"""Weight prepacking: `@op.prepack("w")` converts an input to the layout that the kernel reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ortkit.errors import UserError
from ortkit.extend.check.op_cases import numpy_dtype
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.kernel_options import DeclaredKernel, KernelOptions, Packing
from ortkit.extend.declare.size_rules import Words, value_of
from ortkit.extend.declare.variants import DeclaredSignature, Form
from ortkit.kernels.backend import PackedInput
from ortkit.kernels.link.manifest import ELEMENT_TYPES
from ortkit.kernels.sizes import symbols_of

_OPTIONS = ("constants", "schedule", "units")


def packing_form(packing: Packing, form: Form) -> Form:
    """Return what packs the input of a form; its packed tensor is no part of the signature."""
    spec = next(spec for spec in form.signature.inputs if spec.name == packing.input)
    content = f"{form.op.id} {form.op.version} packs {packing.input} {spec.dtype}"
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    signature = DeclaredSignature(f"pack_{packing.input}", "", (spec,), (), key)
    return Form(form.op, form.types, form.is_present, signature, (), (), packing.kernel)


def declared_packing(
    op: DeclaredOp,
    name: str,
    function: Any,
    dtype: str,
    shape: Sequence[str | int],
    options: Mapping[str, Any],
) -> Packing:
    """Check what was declared.

    Raises:
        UserError: Something of it cannot be.
    """
    where = f"{op.id}: prepack {name}"
    found = next((op_input for op_input in op.schema.inputs if op_input.name == name), None)
    if found is None:
        known = ", ".join(item.name for item in op.schema.inputs)
        raise UserError(f"there is no input {name!r}", where=where, fix=f"known: {known}")
    if found.is_variadic or found.type.star is not None:
        raise UserError("an input of any number of tensors or axes is not packed", where=where)
    if dtype and dtype not in ELEMENT_TYPES:
        raise UserError(f"{dtype!r} is no element type", where=where,
                        fix=f"use {', '.join(ELEMENT_TYPES)}")  # fmt: skip
    for option in options:
        if option not in _OPTIONS:
            raise UserError(f"there is no option {option!r}", where=where,
                            fix=f"use dtype, shape, {', '.join(_OPTIONS)}")  # fmt: skip
    if not shape:
        raise UserError("the packed tensor has no shape", where=where,
                        fix='give it as shape=("ceil(n / 32)", "k", 32)')  # fmt: skip
    kernel = DeclaredKernel("tvm", function, len(op.kernels), KernelOptions(**options))
    names = dict.fromkeys(name for dim in found.type.dims for name in dim.names)
    numbers = {key: value for key, value in kernel.options.constants.items()
               if isinstance(value, int) and not isinstance(value, bool)}  # fmt: skip
    words = Words(where, tuple(names), numbers)
    return Packing(name, dtype, tuple(map(words.blocks, shape)), words, kernel)


@dataclass(frozen=True)
class Workspace:
    """The memory that a packed input takes in one run, and how it is filled.

    Args:
        size: Its bytes.
        sizes: The numbers that its function is called with.
        units: How many, counted from 0.
    """

    size: int
    sizes: tuple[int, ...]
    units: int


def workspace_of(pack: PackedInput, named: Mapping[str, int]) -> Workspace:
    """Return the memory that a packed input takes.

    Args:
        pack: Of a kernel.
        named: The sizes of the run.
    """
    sizes = tuple(named[symbol] for symbol in symbols_of(pack.signature.inputs))
    by_symbol = {f"s{index}": size for index, size in enumerate(sizes)}
    dims = [-(-value_of(extent, by_symbol) // divisor) for extent, divisor in pack.shape]
    units = prod(value_of(extent, by_symbol) for extent in pack.kernel.launch.units)
    return Workspace(prod(dims) * numpy_dtype(pack.dtype).itemsize, sizes, units)

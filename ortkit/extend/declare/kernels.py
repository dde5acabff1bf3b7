"""Kernels that users write for their ops: `@op.kernel("tvm")` and `@op.kernel("triton")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ortkit.errors import UserError
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.kernel_options import TARGETS, DeclaredKernel, KernelOptions, expanded
from ortkit.extend.declare.size_rules import SizeRule, Words

_MOST_WARPS = 32
#: The first whose device copies boxes of tensors by itself.
_FIRST_WITH_BOXES = 90
_MOST_OF_BOX = 256
_MOST_AXES_OF_BOX = 5
_LISTS = ("dtypes", "without", "counts", "grid", "inplace", "packed", "architectures")
#: Options that mean something to one backend only.
_OWN = {
    "tvm": (
        "split", "units", "least", "schedule", "work", "picoseconds", "inplace", "packed",
    ),
    "triton": (
        "grid", "sizes", "warps", "stages", "boxes", "architectures", "workers", "registers",
    ),
}  # fmt: skip


def declared_kernel(
    op: DeclaredOp, backend: str, function: Any, options: Mapping[str, Any]
) -> DeclaredKernel:
    """Check what was declared.

    Raises:
        UserError: Something of it cannot be.
    """
    where = f"{op.id}: kernel"
    if backend not in TARGETS:
        raise UserError(
            f"there is no kernel language {backend!r}", where=where,
            fix=f"use {' or '.join(TARGETS)}",
        )  # fmt: skip
    for other, names in _OWN.items():
        for name in names:
            if name in options and other != backend:
                raise UserError(f"{name} means nothing to {backend} kernels", where=where)
    is_named = isinstance(function, str) and ":" in function
    if not is_named and not callable(function) and type(function).__name__ != "PrimFunc":
        raise UserError(f"{function!r} is no kernel", where=where)
    found = _options(options, backend, where)
    _check(op, backend, found, where)
    kernel = DeclaredKernel(backend, function, len(op.kernels), found)  # type: ignore[arg-type]
    for is_present in presences(op, kernel):
        words_of(op, kernel, is_present).rules(found.when)
    return kernel


def _options(options: Mapping[str, Any], backend: str, where: str) -> KernelOptions:
    """Return the options with lists as tuples; one name may stand for a list of one."""
    known = {field.name for field in fields(KernelOptions)}
    made: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            of_backend = known - {one for other, own in _OWN.items() if other != backend
                                  for one in own}  # fmt: skip
            raise UserError(
                f"there is no option {name!r}", where=where,
                fix=f"use {', '.join(sorted(of_backend))}",
            )  # fmt: skip
        if name in _LISTS:
            value = (value,) if isinstance(value, str | int) else tuple(value)
        made[name] = frozenset(value) if name == "without" else value
    return KernelOptions(**made)


def _check(op: DeclaredOp, backend: str, options: KernelOptions, where: str) -> None:
    known = {dtype for dtypes in op.schema.kinds.values() for dtype in dtypes}
    for dtype in options.dtypes:
        if dtype not in known:
            raise UserError(
                f"the op has no element type {dtype!r}", where=where,
                fix=f"use {', '.join(sorted(known))}",
            )  # fmt: skip
    optional = {op_input.name for op_input in op.schema.inputs if op_input.type.is_optional}
    for name in options.without:
        if name not in optional:
            raise UserError(f"the input {name!r} is not optional", where=where)
    for name in options.packed:
        if name not in op.packings:
            raise UserError(
                f"there is nothing that packs {name!r}", where=where,
                fix=f'declare it before with @{op.reference.__name__}.prepack("{name}", ...)',
            )  # fmt: skip
    for name, attribute in op.schema.attributes.items():
        if attribute.kind not in (bool, int, float):
            raise UserError(
                f"the attribute {name} is a text or a list, which kernels cannot take", where=where
            )
    if backend == "triton" and not 1 <= len(options.grid) <= 3:
        raise UserError(
            f"a grid of {len(options.grid)} axes", where=where,
            fix='say how many blocks there are, such as grid=("ceil(n / BLOCK)",)',
        )  # fmt: skip
    if options.warps not in (1, 2, 4, 8, 16, _MOST_WARPS):
        raise UserError(f"{options.warps} warps", where=where, fix="use 1, 2, 4, 8, 16 or 32")
    _check_boxes(op, options, where)
    if options.least < 0 or options.picoseconds < 1:
        raise UserError("least and picoseconds are numbers from 1 on", where=where)
    if options.split and options.units:
        raise UserError("split and units exclude each other", where=where)


def _check_boxes(op: DeclaredOp, options: KernelOptions, where: str) -> None:
    if options.workers % 4 or options.workers < 0:
        raise UserError(
            f"{options.workers} additional warps", where=where, fix="they come in groups of 4"
        )
    kinds = {op_input.name: op_input.type for op_input in op.schema.inputs} | dict(
        op.schema.outputs
    )
    for name in options.boxes:
        if name not in kinds:
            raise UserError(
                f"there is no tensor {name!r} to have boxes of", where=where,
                fix=f"use {', '.join(kinds)}",
            )  # fmt: skip
        box, rank = options.box(name), len(kinds[name].dims)
        if len(box) != rank or not 2 <= rank <= _MOST_AXES_OF_BOX:
            raise UserError(
                f"a box of {len(box)} axes of {name}, which has {rank}", where=where,
                fix=f"give a size for each of 2 to {_MOST_AXES_OF_BOX} axes",
            )  # fmt: skip
        if any(item & (item - 1) or not 0 < item <= _MOST_OF_BOX for item in box):
            raise UserError(
                f"a box of {options.boxes[name]} of {name}", where=where,
                fix=f"use powers of two up to {_MOST_OF_BOX}, or constants that are",
            )  # fmt: skip
    if options.boxes and min(options.architectures, default=0) < _FIRST_WITH_BOXES:
        raise UserError(
            "not all GPUs copy boxes of tensors", where=where,
            fix=f"say which it is for: architectures=({_FIRST_WITH_BOXES},)",
        )  # fmt: skip


def presences(op: DeclaredOp, kernel: DeclaredKernel) -> list[tuple[bool, ...]]:
    """Return which inputs nodes have that a kernel is for."""
    inputs = op.schema.inputs
    if inputs[-1].is_variadic:
        return [(True,) * (len(inputs) - 1 + count) for count in kernel.options.counts]
    return [tuple(op_input.name not in kernel.options.without for op_input in inputs)]


def words_of(op: DeclaredOp, kernel: DeclaredKernel, is_present: Sequence[bool]) -> Words:
    """Return the sizes and constants that a kernel's texts may name."""
    inputs = expanded(op.schema.inputs, is_present)
    kinds = [op_input.type for op_input, flag in zip(inputs, is_present, strict=True) if flag]
    kinds += op.schema.outputs.values()
    names = dict.fromkeys(name for kind in kinds for dim in kind.dims for name in dim.names)
    constants = {
        name: value
        for name, value in kernel.options.constants.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    return Words(f"{op.id}: kernel {kernel.name}", tuple(names), constants)


def rules_of(
    op: DeclaredOp, kernel: DeclaredKernel, is_present: Sequence[bool]
) -> tuple[SizeRule, ...]:
    """Return the conditions on sizes under which a kernel is taken."""
    return words_of(op, kernel, is_present).rules(kernel.options.when)

"""Kernels that users write for their ops: `@op.kernel("tvm")` and `@op.kernel("triton")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ortkit.errors import UserError
from ortkit.extend.declare.op_schema import OpInput, Types
from ortkit.extend.declare.size_rules import SizeRule, Words
from ortkit.targets.catalog import Kind, kind_of_backend, traits_of

if TYPE_CHECKING:
    from ortkit.extend.declare.op import CustomOp

Constant = bool | int | float | str | None
#: What each backend makes kernels for.
TARGETS: Mapping[str, Kind] = {one: kind_of_backend(one) for one in ("tvm", "triton")}
#: Of a variadic input, where a kernel does not say for how many tensors it is.
_COUNTS = (1, 2, 3, 4)
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


@dataclass(frozen=True)
class KernelOptions:
    """What a kernel is for, and how it is called.

    Args:
        dtypes: For words such as Float, the element types that it is for; none: all.
        without: Optional inputs that its nodes are without.
        counts: For how many tensors of a variadic input.
        when: What must hold of the sizes: "n % 16 == 0 and m*n <= 4096".
        constants: Passed by name; they may stand in `when` and `grid`.
        split: For tvm: the first axis of all that is computed in parts.
        units: Or what is counted between `begin` and `end`, which the function then has.
        least: How many of them a part has at least; 0: as many as `work` says.
        schedule: Called with a `tvm.s_tir.Schedule` of a function of TE.
        work: How many points there are; empty: the elements of the largest output.
        picoseconds: For one of them.
        inplace: Pairs of an input and an output that may share memory.
        packed: Inputs that it takes as `CustomOp.prepack` lays them out.
        grid: For triton: such as ("m", "ceil(n / BLOCK)").
        sizes: What parameters stand for that are called neither as a tensor nor as a size.
        warps: Of 32 threads.
        stages: How many turns of a loop are loaded ahead.
        boxes: Tensors whose parameters are maps of them, for copies of boxes that the device does
            by itself (TMA): how much of each of its axes is copied at once, numbers or constants.
        architectures: The GPUs that it is for, such as 90; none: all. On others a kernel behind
            it runs.
        workers: Of a kernel in Gluon: additional warps, which `warp_specialize` gives roles.
        registers: That a thread may have at first; 0: what Triton finds.
    """

    dtypes: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    counts: tuple[int, ...] = _COUNTS
    when: str = ""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    split: str = ""
    units: str = ""
    least: int = 0
    schedule: Any = None
    work: str = ""
    picoseconds: int = 300
    inplace: tuple[tuple[str, str], ...] = ()
    packed: tuple[str, ...] = ()
    grid: tuple[str | int, ...] = ()
    sizes: Mapping[str, str | int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    boxes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    architectures: tuple[int, ...] = ()
    workers: int = 0
    registers: int = 0

    def box(self, name: str) -> tuple[int, ...]:
        """Return how much of each axis of a tensor is copied at once."""
        found = (self.constants.get(one, 0) if isinstance(one, str) else one
                 for one in self.boxes[name])  # fmt: skip
        return tuple(one if isinstance(one, int) else 0 for one in found)


@dataclass(frozen=True)
class DeclaredKernel:
    """One kernel of an op.

    Args:
        backend: "tvm" or "triton".
        source: What the user wrote, or "module:function" of it.
        number: Its place among the op's.
        options: How it is called.
    """

    backend: Literal["tvm", "triton"]
    source: Any
    number: int
    options: KernelOptions

    @cached_property
    def function(self) -> Any:
        """What the user wrote.

        Raises:
            UserError: It is in a module that there is not, or that lacks it.
        """
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UserError(f"the kernel {self.source} is not there: {error}") from error

    @property
    def target(self) -> Kind:
        """What it runs on."""
        return TARGETS[self.backend]

    @property
    def is_on_host(self) -> bool:
        """Whether it is a function that Python calls."""
        return traits_of(self.target).is_host

    @property
    def name(self) -> str:
        """What the user calls it."""
        if isinstance(self.source, str):
            return self.source.partition(":")[2]
        inner = getattr(self.function, "fn", self.function)
        found = getattr(inner, "__name__", "") or getattr(self.function, "__name__", "")
        return str(found or f"{self.backend} kernel {self.number}")

    def fits(self, op: CustomOp, types: Types, is_present: Sequence[bool]) -> bool:
        """Say whether it is for these element types and these inputs."""
        kinds = op.schema.kinds
        chosen = [dtype for kind, dtype in types.items() if len(kinds[kind]) > 1]
        if self.options.dtypes and any(one not in self.options.dtypes for one in chosen):
            return False
        inputs = op.schema.inputs
        if inputs[-1].is_variadic:
            return len(is_present) - len(inputs) + 1 in self.options.counts
        absent = {one.name for one, flag in zip(inputs, is_present, strict=True) if not flag}
        return absent == self.options.without


def expanded(inputs: Sequence[OpInput], is_present: Sequence[bool]) -> list[OpInput]:
    """Return the formal input of each of a node's, those that are absent included."""
    last = inputs[-1]
    if not last.is_variadic:
        return list(inputs)
    count = len(is_present) - len(inputs) + 1
    return [*inputs[:-1], *(OpInput(f"{last.name}{i}", last.type) for i in range(count))]


def declared_kernel(
    op: CustomOp, backend: str, function: Any, options: Mapping[str, Any]
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
    known = {one.name for one in fields(KernelOptions)}
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


def _check(op: CustomOp, backend: str, options: KernelOptions, where: str) -> None:
    known = {dtype for dtypes in op.schema.kinds.values() for dtype in dtypes}
    for dtype in options.dtypes:
        if dtype not in known:
            raise UserError(
                f"the op has no element type {dtype!r}", where=where,
                fix=f"use {', '.join(sorted(known))}",
            )  # fmt: skip
    optional = {one.name for one in op.schema.inputs if one.type.is_optional}
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


def _check_boxes(op: CustomOp, options: KernelOptions, where: str) -> None:
    if options.workers % 4 or options.workers < 0:
        raise UserError(
            f"{options.workers} additional warps", where=where, fix="they come in groups of 4"
        )
    kinds = {one.name: one.type for one in op.schema.inputs} | dict(op.schema.outputs)
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
        if any(one & (one - 1) or not 0 < one <= _MOST_OF_BOX for one in box):
            raise UserError(
                f"a box of {options.boxes[name]} of {name}", where=where,
                fix=f"use powers of two up to {_MOST_OF_BOX}, or constants that are",
            )  # fmt: skip
    if options.boxes and min(options.architectures, default=0) < _FIRST_WITH_BOXES:
        raise UserError(
            "not all GPUs copy boxes of tensors", where=where,
            fix=f"say which it is for: architectures=({_FIRST_WITH_BOXES},)",
        )  # fmt: skip


def presences(op: CustomOp, kernel: DeclaredKernel) -> list[tuple[bool, ...]]:
    """Return which inputs nodes have that a kernel is for."""
    inputs = op.schema.inputs
    if inputs[-1].is_variadic:
        return [(True,) * (len(inputs) - 1 + count) for count in kernel.options.counts]
    return [tuple(one.name not in kernel.options.without for one in inputs)]


def words_of(op: CustomOp, kernel: DeclaredKernel, is_present: Sequence[bool]) -> Words:
    """Return the sizes and constants that a kernel's texts may name."""
    inputs = expanded(op.schema.inputs, is_present)
    kinds = [one.type for one, flag in zip(inputs, is_present, strict=True) if flag]
    kinds += op.schema.outputs.values()
    names = dict.fromkeys(name for kind in kinds for dim in kind.dims for name in dim.names)
    constants = {
        name: value
        for name, value in kernel.options.constants.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    return Words(f"{op.id}: kernel {kernel.name}", tuple(names), constants)


def rules_of(
    op: CustomOp, kernel: DeclaredKernel, is_present: Sequence[bool]
) -> tuple[SizeRule, ...]:
    """Return the conditions on sizes under which a kernel is taken."""
    return words_of(op, kernel, is_present).rules(kernel.options.when)

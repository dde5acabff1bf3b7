"""Kernels in TE and TIR of known sizes, whose schedules meta-schedule searches for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

from ortkit.errors import KernelError, UserError
from ortkit.extend.check.op_cases import numpy_dtype
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.variants import Form
from ortkit.extend.tvm import tuning
from ortkit.extend.tvm.kernels import compile_tvm, sized
from ortkit.extend.tvm.space import TraceSearch
from ortkit.extend.tvm.traces import NAME, TracedSchedule, name_of, read_traced
from ortkit.extend.tvm.tuning import declared_forms, generator_of, sizes_for
from ortkit.kernels.backend import Kernel
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import extent_of, symbols_of
from ortkit.kernels.tuning.calibration import processor
from ortkit.kernels.tuning.database import known_database
from ortkit.targets.target import Target

#: What of all tensors is computed at once, so that it stays in a core's cache.
_BLOCK_BYTES = 512 << 10
#: Parts of the work that there are at least, for the threads of a session, where rows allow.
_BLOCKS, _LEAST_ROWS = 8, 8


@dataclass(frozen=True)
class SearchedKernel:
    """One kernel of an op at known sizes.

    Args:
        form: With the kernel that the user wrote.
        target: The resolved target.
        known: The sizes of a run, by name.
        generator: See `TeKernel`.
        search: What proposes schedules.
    """

    form: Form
    target: Target
    known: Mapping[str, int]
    generator: str
    search: TraceSearch
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    backend: str = NAME

    @property
    def name(self) -> str:
        """What to call it, such as `domain::Op float32 by kernel (tvm) at n=512`."""
        listed = ", ".join(f"{name}={size}" for name, size in self.known.items())
        return f"{self.form.op.id} {self.form.text} at {listed}"

    @property
    def signature(self) -> RegionSignature:
        """Its tensors."""
        return self.form.signature

    @property
    def bucket(self) -> str:
        """The sizes as they are, but for the one that work is split along: blocks of it count."""
        return ",".join(f"{name}={size}" for name, size in self.search.sizes.items())

    @cached_property
    def first(self) -> str:
        """What is tried first: what would be made without a schedule for these sizes."""
        return tuning.chosen_for(self.form, self.target)

    def sizes(self, given: Mapping[str, int], usual: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return the numbers for the named sizes."""
        return tuple(self.known.values())

    def propose(self, tried: Mapping[str, float | None], count: int) -> list[str]:
        """Return schedules to try next.

        Raises:
            KernelError: Meta-schedule has none for such a function.
        """
        try:
            return self.search.next(tried, count)
        except Exception as error:  # TVM's own classes
            last = str(error).strip().splitlines()[-1:]
            raise KernelError(
                f"{NAME} failed: {type(error).__name__}: {' '.join(last)}", where=self.name
            ) from error

    def compile_as(self, target: Target, folder: Path, choices: str) -> Kernel:
        """Compile it into `folder`, for these sizes, with a schedule or as `tvm_choices` say.

        Raises:
            UserError: It does not fit the op's declaration.
            KernelError: TVM failed.
        """
        traced = read_traced(choices)
        if traced is None:
            return compile_tvm(self.form, target, folder, choices)
        at_once = self.search.sizes
        is_whole = all(size % at_once[name] == 0 for name, size in self.known.items())
        return compile_tvm(self.form, target, folder, traced=[traced], is_for_others=not is_whole)


def searched_kernels(
    ops: Sequence[DeclaredOp],
    target: Target,
    given: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    notes: list[str],
) -> list[SearchedKernel]:
    """Return the kernels of some ops that meta-schedule may order the loops of.

    Args:
        ops: Of any kind.
        target: The processor, resolved.
        given: Numbers for named sizes.
        shapes: Of inputs, by name; `given` goes before what they tell.
        notes: Gets the kernels that are left out, and why.

    Raises:
        UserError: A kernel does not fit its op's declaration.
        MissingDependencyError: There are kernels in TE or TIR, and tvm is not installed.
    """
    from ortkit.kernels.tvm.build import llvm_target

    found = []
    machine = {**llvm_target(target.level), "num-cores": 1}
    for form in declared_forms(ops):
        name = f"{form.op.id} {form.text}"
        try:
            known = _known(form, sizes_for(form, given, shapes))
            at_once = {**known, **_rows(form, known)}
            function = sized(form, target, at_once)
        except (KernelError, UserError) as error:
            notes.append(f"{name}: {error.problem}{f': {error.fix}' if error.fix else ''}")
            continue
        if function is None:
            notes.append(f"{name}: it has a schedule, packed inputs or units of its own")
            continue
        generator = generator_of(NAME, function.script())
        search = TraceSearch(function, at_once, machine)
        found.append(SearchedKernel(form, target, known, generator, search))
    return found


def _known(form: Form, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a number for each named size.

    Raises:
        UserError: There is none for some, or they are none that the kernel is for.
    """
    names = symbols_of((*form.signature.inputs, *form.signature.outputs))
    unknown = [name for name in names if name not in sizes]
    if unknown:
        flags = " ".join(f"--shape {name}=SIZE" for name in unknown)
        raise UserError(
            f"{NAME} needs numbers for all sizes, and {', '.join(unknown)} "
            f"{'is' if len(unknown) == 1 else 'are'} not known", fix=f"give {flags}, or --inputs",
        )  # fmt: skip
    found = {name: sizes[name] for name in names}
    if not found:
        return found
    if min(found.values()) < 1 or not all(rule.holds(found) for rule in form.rules):
        listed = ", ".join(f"{name}={size}" for name, size in found.items())
        raise UserError(
            f"it is not for the sizes {listed}", fix="give others with --shape NAME=SIZE"
        )
    return found


def _rows(form: Form, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return how much of the size that work is split along is computed at once."""
    assert form.declared is not None
    split = form.declared.options.split
    if split not in sizes:
        return {}
    rows = sizes[split]
    if rows <= _LEAST_ROWS:
        return {split: rows}
    tensors = (*form.signature.inputs, *form.signature.outputs)
    row_bytes = sum(_row_bytes(tensor, split, sizes) for tensor in tensors)
    most = min(rows // _BLOCKS, _BLOCK_BYTES // max(1, row_bytes))
    return {split: 1 << (max(_LEAST_ROWS, most).bit_length() - 1)}


def _row_bytes(tensor: TensorSpec, split: str, sizes: Mapping[str, int]) -> int:
    if not tensor.shape or tensor.shape[0] != split:
        return 0
    extents = [extent_of(dim) for dim in tensor.shape[1:]]
    count = prod(each.factor * prod(sizes[name] for name in each.symbols) for each in extents)
    return count * numpy_dtype(tensor.dtype).itemsize


def compile_tuned(form: Form, target: Target, folder: Path, notes: list[str]) -> Kernel:
    """Compile a declared kernel into `folder`, as tuning on this machine found it fastest.

    Args:
        form: With `declared`.
        target: The resolved target.
        folder: For the object file.
        notes: Gets what could not be done; the kernel is right then, and slower.

    Raises:
        UserError: It does not fit the op's declaration.
        KernelError: TVM failed.
    """
    choices, traced = tuning.chosen_for(form, target), traced_for(form, target, notes)
    if traced:
        said: list[str] = []
        try:
            made = compile_tvm(form, target, folder, choices, said, traced)
        except KernelError as error:
            names = ", ".join(traced_schedule.name for traced_schedule in traced)
            notes.append(f"{names} cannot be used, tune it again: {error.problem}")
        else:
            notes += said
            return made
    return compile_tvm(form, target, folder, choices, notes)


def traced_for(form: Form, target: Target, notes: list[str]) -> list[TracedSchedule]:
    """Return the schedules for known sizes that were fastest on this machine.

    Args:
        form: With `declared`.
        target: The resolved target.
        notes: Gets what is left out, and why.
    """
    found = []
    records = known_database().records.items()
    for record_key, record in sorted(records, key=lambda one: one[0].bucket):
        if (record_key.backend, record_key.key, record_key.level) != (
            NAME,
            form.signature.key,
            target.level,
        ):
            continue
        traced = read_traced(record.best)
        if record_key.processor != processor() or traced is None:
            continue
        if record.generator.rpartition(" ")[0] != generator_of(NAME, "").rpartition(" ")[0]:
            notes.append(f"{name_of(record.best)} is of another version of TVM: tune it again")
            continue
        found.append(traced)
    split = form.declared.options.split if form.declared is not None else ""
    # Of schedules for the same sizes that of the largest blocks: it goes to smaller ones itself.
    return sorted(found, key=lambda traced_schedule: -traced_schedule.sizes.get(split, 0))

"""Kernels in TE that have no schedule of their own, as `ortkit tune` takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ortkit.errors import KernelError, UserError
from ortkit.extend.check.op_cases import flat_sizes
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.sizes import Sizes
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.tvm import choices as tvm_choices
from ortkit.extend.tvm import lowering, schedule
from ortkit.extend.tvm.kernels import compile_tvm, require_tvm, unscheduled
from ortkit.kernels.backend import Kernel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.tuning.database import known_database
from ortkit.targets.target import Target

NO_SHAPES: Mapping[str, Sequence[int]] = {}
#: What records of such kernels are kept under, as those of generated kernels are under `tvm`.
BACKEND = "te"


@dataclass(frozen=True)
class TeKernel:
    """One kernel of an op, and what can be chosen of it.

    Args:
        form: With the kernel that the user wrote.
        parameters: What can be chosen, the default first of each.
        generator: Names what makes it: the user's function, our schedule and TVM.
        known: Sizes by name.
    """

    form: Form
    parameters: Mapping[str, tuple[int, ...]]
    generator: str
    known: Mapping[str, int] = field(default_factory=dict)
    backend: str = BACKEND
    bucket: str = ""
    first: str = ""
    propose: None = None

    @property
    def name(self) -> str:
        """What to call it, such as `domain::Op float32 by kernel (tvm)`."""
        return f"{self.form.op.id} {self.form.text}"

    @property
    def signature(self) -> RegionSignature:
        """Its tensors."""
        return self.form.signature

    def sizes(self, given: Mapping[str, int], usual: int) -> tuple[int, ...]:
        """Return a number for each named size, `usual` for those that are not given.

        Raises:
            UserError: They are none that the kernel is for.
        """
        names = symbols_of((*self.signature.inputs, *self.signature.outputs))
        found = {name: given.get(name, self.known.get(name, usual)) for name in names}
        if not all(rule.holds(found) for rule in self.form.rules):
            listed = ", ".join(f"{name}={size}" for name, size in found.items())
            raise UserError(
                f"it is not for the sizes {listed}", where=self.name,
                fix="give others with --shape NAME=SIZE",
            )  # fmt: skip
        return tuple(found.values())

    def compile_as(self, target: Target, folder: Path, choices: str) -> Kernel:
        """Compile it into `folder`.

        Raises:
            UserError: It does not fit the op's declaration.
            KernelError: TVM failed.
        """
        return compile_tvm(self.form, target, folder, choices)


def te_kernels(
    ops: Sequence[DeclaredOp], target: Target, shapes: Mapping[str, Sequence[int]] = NO_SHAPES
) -> list[TeKernel]:
    """Return all kernels of some ops whose schedule is ours to choose.

    Args:
        ops: Of any kind.
        target: The processor, resolved.
        shapes: Of inputs, by name, from which sizes are read.

    Raises:
        UserError: A kernel does not fit its op's declaration, or a shape does not.
        MissingDependencyError: There are kernels in TE, and tvm is not installed.
    """
    found = []
    for form in declared_forms(ops):
        try:
            function = unscheduled(form, target)
        except KernelError:
            continue  # `ops build` says why
        if function is not None:
            parameters = dict(tvm_choices.VALUES)
            if not schedule.has_reduction(function):
                del parameters["reassociate"]
            generator = generator_of(BACKEND, function.script())
            found.append(TeKernel(form, parameters, generator, sizes_for(form, {}, shapes)))
    return found


def declared_forms(ops: Sequence[DeclaredOp]) -> Iterator[Form]:
    """Yield the kernels that users wrote for TVM.

    Raises:
        MissingDependencyError: There are some, and tvm is not installed.
    """
    for op in ops:
        if not any(kernel.backend == "tvm" for kernel in op.kernels):
            continue
        require_tvm(op.id)
        for form in forms_of(op):
            if isinstance(form, Form) and form.declared is not None:
                yield form


def sizes_for(
    form: Form, given: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return the named sizes of a kernel that are known.

    Args:
        form: The kernel.
        given: By name.
        shapes: Of inputs, by name; `given` goes before what they tell.

    Raises:
        UserError: A shape does not fit the op's declaration.
    """
    sizes = Sizes()
    there = [op_input for op_input, flag in zip(form.inputs, form.is_present, strict=True) if flag]
    known = [item for item in there if item.name in shapes]
    sizes.learn([(item.name, item.type, shapes[item.name]) for item in known],
                form.op.id)  # fmt: skip
    return {**flat_sizes(sizes), **given}


def chosen_for(form: Form, target: Target) -> str:
    """Return what tuning on this machine chose for a kernel; empty for the default."""
    found = known_database().chooser()(form.signature, BACKEND, target) or ""
    return found if tvm_choices.read_choices(found) is not None else ""


def generator_of(name: str, function: str) -> str:
    """Name what makes a kernel: what chooses, the version of TVM, and a digest of all code."""
    digest = hashlib.sha256(function.encode())
    for module in (tvm_choices, lowering, schedule):
        digest.update(Path(str(module.__file__)).read_bytes())
    return f"{name} apache-tvm-{version('apache-tvm')} {digest.hexdigest()[:16]}"

"""From declared ops to kernels: a kernel for each set of types and inputs, then a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import KernelError, UserError
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import Attribute, OpInput
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_kernels
from ortkit.kernels.cuda import Condition, CudaKernel
from ortkit.kernels.link.linker import KernelLibrary, link_named
from ortkit.kernels.link.named_ops import (
    OPTIONAL,
    REQUIRED,
    VARIADIC,
    NamedAttribute,
    NamedKernel,
    NamedOp,
)
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder


@dataclass(frozen=True)
class OpsBuild:
    """What became of some ops."""

    library: KernelLibrary | None
    """None where there is no kernel at all."""
    built: tuple[Form, ...]
    refused: tuple[tuple[str, str, str], ...]
    """Op, form and reason."""
    compiled: int
    notes: tuple[tuple[str, str, str], ...] = ()
    """Op, form and what makes its kernel slow."""


def _uncounted(done: int, total: int) -> None:
    """Ignore progress."""


def build_ops(
    ops: Sequence[DeclaredOp],
    path: Path,
    target: Target | None = None,
    *,
    cuda: Target | None = None,
    dtypes: Sequence[str] | None = None,
    cache: KernelCache | None = None,
    count: Callable[[int, int], None] = _uncounted,
) -> OpsBuild:
    """Compile all forms of some ops, and link them into one library.

    Any ONNX Runtime loads it, without ortkit and Python: `register_custom_ops_library(path)`.

    Args:
        ops: Each with a body or a kernel.
        path: The library; not touched if nothing can be compiled.
        target: The processor; None for this machine's.
        cuda: The GPUs, for kernels beside those for the processor; None for none.
        dtypes: Where a word such as Float stands for several element types, those to build for.
        cache: Where compiled kernels are kept; None means the user's cache.
        count: Called with how many kernels are compiled, and of how many.

    Raises:
        UserError: An op has nothing to compile, or the library cannot be written.
        MissingDependencyError: A toolchain is not installed.
        KernelError: The C compiler failed to link.
    """
    target = target or Target()
    forms: list[tuple[Form, Target]] = []
    refused: list[tuple[str, str, str]] = []
    for op in ops:
        for each in (target, *([] if cuda is None else [cuda])):
            for form in _forms(op, dtypes, each, is_only=cuda is None):
                if isinstance(form, Form):
                    forms.append((form, each))
                else:
                    refused.append((op.id, *form))
    notes: list[tuple[str, str, str]] = []
    with built_forms(forms, cache, count, notes) as (found, compiled):
        made = []
        for (form, _), kernel in zip(forms, found, strict=True):
            if isinstance(kernel, Refused):
                refused.append((form.op.id, form.text, kernel.reason))
            else:
                made.append((form, kernel))
        named = list(_named(made))
        library = link_named(named, path, target) if named else None
    return OpsBuild(
        library, tuple(form for form, _ in made), tuple(refused), compiled, tuple(notes)
    )


def _forms(
    op: DeclaredOp, dtypes: Sequence[str] | None, target: Target, *, is_only: bool
) -> Iterator[Form | tuple[str, str]]:
    """Yield what an op has for a target; nothing for one of two that it says nothing of."""
    try:
        yield from forms_of(op, dtypes, target.kind)
    except UserError as error:
        if is_only:
            raise
        yield target.kind, error.problem


@contextmanager
def built_forms(
    forms: Sequence[tuple[Form, Target]],
    cache: KernelCache | None = None,
    count: Callable[[int, int], None] = _uncounted,
    notes: list[tuple[str, str, str]] | None = None,
) -> Iterator[tuple[list[Kernel | CudaKernel | Refused], int]]:
    """Compile forms; the kernels' files are there inside of the `with` block.

    Args:
        forms: With what each is for.
        cache: See `build_ops`.
        count: See `build_ops`.
        notes: Gets op, form and what makes its kernel slow.

    Yields:
        For each its kernel or why it has none, and how many were recompiled.

    Raises:
        UserError: A kernel that a user wrote does not fit its op.
        MissingDependencyError: What one is written for is not installed.
    """
    found: list[Kernel | CudaKernel | Refused] = [Refused("")] * len(forms)
    compiled = 0
    with TemporaryFolder("ops") as own:
        for index, (form, target) in enumerate(forms):
            if form.declared is None:
                continue
            folder = own / str(index)
            folder.mkdir()
            said: list[str] = []
            found[index] = _compiled(form, target, folder, said)
            if notes is not None:
                notes += ((form.op.id, form.text, each) for each in said)
            compiled += not isinstance(found[index], Refused)
        with _generated(forms, cache, count) as (more, new):
            for index, kernel in more:
                found[index] = kernel
            yield found, compiled + new


@contextmanager
def _generated(
    forms: Sequence[tuple[Form, Target]],
    cache: KernelCache | None,
    count: Callable[[int, int], None],
) -> Iterator[tuple[list[tuple[int, Kernel | CudaKernel | Refused]], int]]:
    """Compile what is made from bodies, for CPUs and then for CUDA."""
    generated = [(index, *item) for index, item in enumerate(forms) if item[0].declared is None]
    cpu = [one for one in generated if one[2].traits.is_host]
    cuda = [one for one in generated if not one[2].traits.is_host]
    made: list[tuple[int, Kernel | CudaKernel | Refused]] = []

    def take(part: list[tuple[int, Form, Target]], kernels: Sequence[object]) -> None:
        for (index, _, _), kernel in zip(part, kernels, strict=True):
            assert isinstance(kernel, Kernel | CudaKernel | Refused)
            made.append((index, kernel))

    target = cpu[0][2] if cpu else Target()
    with build_kernels([form.signature for _, form, _ in cpu], target, cache, count) as first:
        take(cpu, first.found)
        if not cuda:
            yield made, first.compiled
            return
        signatures, there = [form.signature for _, form, _ in cuda], cuda[0][2]
        with build_kernels(signatures, there, cache, count, there.traits.backends[0]) as second:
            take(cuda, second.found)
            yield made, first.compiled + second.compiled


def _compiled(
    form: Form, target: Target, folder: Path, notes: list[str]
) -> Kernel | CudaKernel | Refused:
    """Compile a kernel that a user wrote."""
    assert form.declared is not None
    try:
        if form.declared.backend == "tvm":
            from ortkit.extend.tvm.searched import compile_tuned

            return compile_tuned(form, target.resolved(), folder, notes)
        from ortkit.extend.triton.kernels import compile_triton

        return compile_triton(form, target, folder)
    except KernelError as error:
        return Refused(error.problem)


def _named(made: Sequence[tuple[Form, Kernel | CudaKernel]]) -> Iterator[NamedOp]:
    """Yield an op for each set of element types that has kernels for all that it needs."""
    groups: dict[
        tuple[str, int, tuple[tuple[str, str], ...]], list[tuple[Form, Kernel | CudaKernel]]
    ] = {}
    for form, kernel in made:
        key = form.op.id, form.op.version, tuple(form.types.items())
        groups.setdefault(key, []).append((form, kernel))
    for found in groups.values():
        op, types = found[0][0].op, found[0][0].types
        # The one with the fewest inputs tells shapes, and stands last.
        found.sort(key=lambda one: -sum(one[0].is_present))
        names = list(op.schema.attributes)
        used = {name for form, _ in found for name in (*form.attributes, *form.built_in)}
        attributes = [name for name in names if name in used]
        yield NamedOp(
            op.domain, op.name, op.version,
            tuple((types[op_input.type.kind], _kind(op_input)) for op_input in op.schema.inputs),
            tuple(types[kind.kind] for kind in op.schema.outputs.values()),
            tuple(_attribute(op, name) for name in attributes),
            tuple(_kernel(form, kernel, attributes) for form, kernel in found),
        )  # fmt: skip


def _kind(op_input: OpInput) -> int:
    if op_input.is_variadic:
        return VARIADIC
    return OPTIONAL if op_input.type.is_optional else REQUIRED


def _attribute(op: DeclaredOp, name: str) -> NamedAttribute:
    attribute = op.schema.attributes[name]
    return NamedAttribute(name, attribute.kind is float, _value(attribute.default))


def _value(value: Attribute | None) -> float | int | None:
    if value is None or isinstance(value, float):
        return value
    assert isinstance(value, int)
    return int(value)


def _kernel(form: Form, kernel: Kernel | CudaKernel, attributes: Sequence[str]) -> NamedKernel:
    schema = form.op.schema
    there = [index for index, flag in enumerate(form.is_present) if flag]
    kinds = [form.inputs[index].type for index in there]
    wildcard_axes = [*(kind.star for kind in kinds), *(None for _ in form.attributes)]
    wildcard_axes += [kind.star for kind in schema.outputs.values()]
    fixed = {}
    for name in form.built_in:
        value = _value(schema.attributes[name].default)
        assert value is not None
        fixed[attributes.index(name)] = value
    return NamedKernel(
        form.signature, kernel,
        (*there, *(-1 - attributes.index(name) for name in form.attributes)),
        tuple(wildcard_axes), form.is_present, fixed,
        tuple(Condition(rule.size, rule.divisible_by, rule.at_most) for rule in form.rules),
    )  # fmt: skip

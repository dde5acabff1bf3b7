"""Kernels that users write in TE or TIR: scheduled, lowered to one C function, compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from ortkit.errors import KernelError, MissingDependencyError, OrtkitError
from ortkit.extend.declare.prepack import packing_form
from ortkit.extend.declare.variants import Form
from ortkit.extend.tvm.choices import read_choices
from ortkit.extend.tvm.lowering import lowered
from ortkit.extend.tvm.maker import Maker
from ortkit.extend.tvm.traces import TracedSchedule
from ortkit.kernels.backend import Kernel, PackedInput
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.tunable import symbol_of
from ortkit.targets.target import Target

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

# What TVM says of a buffer that would lie on the stack.
_UNKNOWN_ROOM = "constant size stack allocation"


def require_tvm(where: str) -> None:
    """Raise unless tvm is installed.

    Raises:
        MissingDependencyError: It is not.
    """
    if find_spec("tvm") is None:
        raise MissingDependencyError(
            f"tvm is not installed, which {where} is written for", fix="pip install apache-tvm"
        )


def compile_tvm(
    form: Form,
    target: Target,
    folder: Path,
    choices: str = "",
    notes: list[str] | None = None,
    traced: Sequence[TracedSchedule] = (),
    is_for_others: bool = True,
) -> Kernel:
    """Compile a declared kernel into `folder`.

    Args:
        form: With `declared` of the backend "tvm".
        target: The processor.
        folder: For the object file; it must be there as long as the kernel is used.
        choices: Of the schedule, if it has none of its own; see `tvm_choices`.
        notes: Gets what that could not do.
        traced: Schedules for known sizes, the first that fits being taken; for others it is as
            `choices` say.
        is_for_others: Whether it is called with other sizes, and blocks that are not whole.

    Raises:
        UserError: The kernel does not fit the declaration.
        MissingDependencyError: tvm is not installed.
        KernelError: TVM failed.
    """
    require_tvm(form.op.id)
    target = target.resolved()
    chosen = read_choices(choices)
    if chosen is None:
        raise KernelError(f"no kernel is known as {choices!r}", where=form.op.id)
    made = Maker(form, target.level, chosen, [] if notes is None else notes)
    packs = [_packed(made, name, target, folder) for name in made.packed]
    return replace(
        _compiled(made, target, folder, choices, traced, is_for_others), packs=tuple(packs)
    )


def _packed(made: Maker, name: str, target: Target, folder: Path) -> PackedInput:
    """Compile what packs an input of a kernel."""
    packing = made.packed[name]
    form = packing_form(packing, made.form)
    packer = Maker(form, target.level, notes=made.notes, packing=packing)
    symbols = symbols_of(form.signature.inputs)
    names = [spec.name for spec in made.form.signature.inputs]
    return PackedInput(
        names.index(name), form.signature, _compiled(packer, target, folder),
        packer.tensors[-1].dtype,
        tuple((extent.numbered(symbols), divisor) for extent, divisor in packing.shape),
    )  # fmt: skip


def _compiled(
    made: Maker,
    target: Target,
    folder: Path,
    choices: str = "",
    traced: Sequence[TracedSchedule] = (),
    is_for_others: bool = True,
) -> Kernel:
    """Compile one kernel: a function, or several and what calls them."""
    from ortkit.extend.tvm.dispatch import Special, dispatcher
    from ortkit.kernels.tvm.build import write_object

    form = made.form
    symbol = symbol_of(form.signature, " ".join([choices, *map(str, traced)]).strip())
    general = f"{symbol}_any" if traced else symbol
    specials = [Special(f"{symbol}_{i}", item.sizes) for i, item in enumerate(traced)]
    functions: list[Expr] = []
    try:
        if is_for_others or not traced:
            functions.append(lowered(made.parts(general, made.function())))
        else:
            general = specials[0].symbol
        for traced_schedule, special in zip(traced, specials, strict=True):
            sized = Maker(form, made.level, numbers=traced_schedule.sizes)
            functions.append(
                lowered(sized.parts(special.symbol, traced_schedule.applied(sized.written()[0])))
            )
        if specials:
            functions.insert(0, dispatcher(
                symbol, made.tensors, [*made.sizes], made.split, specials, general
            ))  # fmt: skip
    except OrtkitError:
        raise
    except Exception as error:  # the user's function, and TVM's own classes
        raise _failed(error, form) from error
    artifact = folder / f"{symbol}.o"
    try:
        write_object(functions[0], target.level, artifact,
                     reassociate=bool(made.choices.reassociate), called=functions[1:])  # fmt: skip
    except KernelError as error:
        if _UNKNOWN_ROOM not in error.problem:
            raise
        raise KernelError(
            "it keeps an intermediate tensor of a size that only a run tells", where=form.op.id,
            fix="compute it where it is needed: give a schedule with compute_at, or split",
        ) from error  # fmt: skip
    symbols = symbols_of((*form.signature.inputs, *form.signature.outputs))
    return Kernel(
        form.signature.key, "tvm", target, artifact, symbol,
        made.launch().numbered(symbols), 0.0,
    )  # fmt: skip


def unscheduled(form: Form, target: Target) -> Expr | None:
    """Return a kernel in TE whose schedule is ours to choose, as a PrimFunc; None if it is not.

    One with packed inputs is not: who lays them out orders the loops too.

    Args:
        form: With `declared`.
        target: The processor, resolved.

    Raises:
        UserError: The kernel does not fit the declaration.
        KernelError: TVM or the user's function failed.
    """
    if not _is_ours(form):
        return None
    found, is_ordered = _written(Maker(form, target.level))
    return None if is_ordered else found


def sized(form: Form, target: Target, sizes: Mapping[str, int]) -> Expr | None:
    """Return a kernel in TE or TIR for known sizes as a PrimFunc, its loops as they are written.

    None if it has a schedule of its own, packed inputs, or a range of its own.

    Args:
        form: With `declared`.
        target: The processor, resolved.
        sizes: A number for each named size.

    Raises:
        UserError: The kernel does not fit the declaration.
        KernelError: TVM or the user's function failed.
    """
    if not _is_ours(form) or form.declared is None or form.declared.options.units:
        return None
    return _written(Maker(form, target.level, numbers=sizes))[0]


def _is_ours(form: Form) -> bool:
    """Say whether the order of loops is ours to choose: nobody else has an opinion."""
    assert form.declared is not None
    options = form.declared.options
    return form.declared.backend == "tvm" and options.schedule is None and not options.packed


def _written(made: Maker) -> tuple[Expr, bool]:
    try:
        return made.written()
    except OrtkitError:
        raise
    except Exception as error:  # the user's function, and TVM's own classes
        raise _failed(error, made.form) from error


def _failed(error: Exception, form: Form) -> KernelError:
    last = [line for line in str(error).strip().splitlines() if line.strip()][-1:]
    return KernelError(f"{type(error).__name__}: {' '.join(last)}", where=form.op.id)

"""Store an intermediate that several fused programs share in the buffer of an original value.

Layers share tables and masks that rewriting has put into another form. The original has them in
its own form, as a value that only these layers read. The program that makes it writes the new form
into its memory instead, and the programs of the layers know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ortkit.kernels.signature import TensorSpec
from ortkit.provider.own.program import Program
from ortkit.provider.own.sizes import elements_of


def fits(carried: TensorSpec, carrier: TensorSpec) -> bool:
    """Say whether the bytes of `carried` have room in `carrier` in every run."""
    if carried.dtype != carrier.dtype:
        return False
    rest = elements_of(carrier).divided_by(elements_of(carried))
    return rest is not None and not rest.symbols and rest.factor >= 1


def choose(wanted: Sequence[TensorSpec], offered: Sequence[TensorSpec]) -> dict[int, int] | None:
    """Return a carrier for each, by position: one of the same sizes before a larger one.

    None if there are not enough.
    """
    chosen: dict[int, int] = {}
    for is_equivalent in (True, False):
        for index, carried in enumerate(wanted):
            if index in chosen:
                continue
            for position, carrier in enumerate(offered):
                if position in chosen.values() or not fits(carried, carrier):
                    continue
                if is_equivalent and elements_of(carried) != elements_of(carrier):
                    continue
                chosen[index] = position
                break
    return chosen if len(chosen) == len(wanted) else None


def reading(program: Program, carriers: Mapping[int, TensorSpec]) -> Program:
    """Return a program that finds some of its inputs in carriers.

    Args:
        program: What is to be changed.
        carriers: By the index of an input among the tensors, what it is given instead.
    """
    added, slots = _added(program, carriers)
    inputs = tuple(slots.get(index, index) for index in program.inputs)
    return replace(program, tensors=added, inputs=inputs, views={**program.views, **slots})


def writing(program: Program, carriers: Mapping[int, TensorSpec]) -> Program:
    """Return a program that writes some of its outputs into carriers; see `reading`."""
    roots = {program.root(index): spec for index, spec in carriers.items()}
    added, slots = _added(program, roots)
    ends = {index: slots[program.root(index)] for index in carriers}
    outputs = tuple(ends.get(index, index) for index in program.outputs)
    return replace(program, tensors=added, outputs=outputs, views={**program.views, **slots})


def _added(
    program: Program, carriers: Mapping[int, TensorSpec]
) -> tuple[tuple[TensorSpec, ...], dict[int, int]]:
    first = len(program.tensors)
    slots = {number: first + index for index, number in enumerate(carriers)}
    return (*program.tensors, *carriers.values()), slots

"""Memory between the kernels of a program: what lies in the same place, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortkit.kernels.sizes import Extent
from ortkit.provider.own.program import Program
from ortkit.provider.own.sizes import bytes_of


@dataclass(frozen=True)
class Slots:
    """Where tensors lie that neither enter nor leave.

    Args:
        slot_of: Per tensor of its own bytes the number of its slot.
        sizes: The bytes of each slot.
    """

    slot_of: Mapping[int, int]
    sizes: Sequence[Extent]

    @staticmethod
    def of(program: Program) -> Slots:
        """Give each tensor a slot that nobody needs any more when it is made, or a new one."""
        given = {program.root(index) for index in (*program.inputs, *program.outputs)}
        last = {
            program.root(index): number
            for number, step in enumerate(program.steps)
            for index in (*step.outputs, *step.inputs)
        }
        slot_of: dict[int, int] = {}
        sizes: list[Extent] = []
        free: list[int] = []
        for number, step in enumerate(program.steps):
            for index in map(program.root, step.outputs):
                if index in given or index in slot_of:
                    continue
                wanted = bytes_of(program.tensors[index])
                slot = _fitting(wanted, free, sizes)
                if slot is None:
                    slot = len(sizes)
                    sizes.append(wanted)
                else:
                    free.remove(slot)
                    sizes[slot] = _larger(sizes[slot], wanted)
                slot_of[index] = slot
            # Only now: no kernel writes where it still reads.
            free += [slot for index, slot in slot_of.items() if last[index] == number]
        return Slots(slot_of, sizes)


def _fitting(wanted: Extent, free: Sequence[int], sizes: Sequence[Extent]) -> int | None:
    """Return the free slot that is nearest in size; one of unknown size must be as wanted."""
    equal = [slot for slot in free if sizes[slot] == wanted]
    if equal:
        return equal[0]
    size = wanted.static
    known = [
        (slot, bytes_of_slot) for slot in free if (bytes_of_slot := sizes[slot].static) is not None
    ]
    if size is None or not known:
        return None
    return min(known, key=lambda one: abs(one[1] - size))[0]


def _larger(one: Extent, other: Extent) -> Extent:
    return other if (one.static or 0) < (other.static or 0) else one

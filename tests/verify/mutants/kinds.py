"""Kinds of faults: which nodes each fits, and what it does to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx

from mutants.draft import Draft, Fault, Rng, Site

#: Plants a fault at a node; False if it does not fit there.
Plant: TypeAlias = Callable[[Site, Rng], bool]
#: How many nodes are tried for one fault.
_TRIED = 40


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Args:
        name: What is wrong.
        ops: The operators whose nodes are tried; none for all.
        plant: Plants it.
        kind: "unconditional" or "conditional".
    """

    name: str
    ops: tuple[str, ...]
    plant: Plant
    kind: str = "unconditional"


class Catalog:
    """The kinds of one module, in the order in which they are written."""

    def __init__(self, kind: str = "unconditional") -> None:
        self.kinds: list[Kind] = []
        self._kind = kind

    def fault(self, name: str, *ops: str) -> Callable[[Plant], Plant]:
        """Add a kind of fault."""

        def add(plant: Plant) -> Plant:
            self.kinds.append(Kind(name, ops, plant, self._kind))
            return plant

        return add


def plant_all(model: onnx.ModelProto, rng: Rng, kinds: Sequence[Kind]) -> list[Fault]:
    """Plant each kind once, at a node that `rng` picks; kinds that fit no node are left out."""
    found = []
    ops = {node.op_type for holder in (model.graph, *model.functions) for node in holder.node}
    for each in kinds:
        if each.ops and ops.isdisjoint(each.ops):
            continue
        fault = plant_one(model, np.random.default_rng(rng.integers(1 << 32)), each)
        if fault is not None:
            found.append(fault)
    return found


def plant_one(model: onnx.ModelProto, rng: Rng, kind: Kind) -> Fault | None:
    """Plant one kind; None where it fits no node."""
    count = sum(1 for _ in Draft(model).sites(*kind.ops))
    for place in rng.permutation(count)[:_TRIED]:
        draft = Draft(model)
        site = list(draft.sites(*kind.ops))[place]
        if kind.plant(site, rng):
            return Fault(kind.name, kind.kind, draft.model)
    return None

"""Batches of values: runs that start where the one before stopped.

The values of a model are compared in batches that fit the memory. Each batch needs a run of the
original; from the model's inputs that takes longer with each batch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortkit.verify.steps import captured, given_names, read_from_inputs


@dataclass(frozen=True)
class Stop:
    """Where an earlier run of the original stopped."""

    values: frozenset[str] = frozenset()
    """The names of the values that it gave and later nodes read."""
    results: Path | None = None
    """The folder of its results; None before the first run."""


@dataclass(frozen=True)
class Batch:
    """Values that are compared at once, and the steps of both models that compute them."""

    names: tuple[str, ...]
    steps: ir.Model
    """The candidate's."""
    own_steps: ir.Model
    """The original's."""

    @property
    def needed(self) -> set[str]:
        """The values that a run of the original gives: those, and what the steps read."""
        return {*self.names, *given_names(self.steps), *given_names(self.own_steps)}


def live_values(model: ir.Model, computed: Collection[str], later: Collection[str]) -> set[str]:
    """Return the values that are known after a run and are read or given after it.

    Args:
        model: The model, left as it is.
        computed: Names of values that the run gives. It computes what is before the last of them.
        later: Names of values that later runs give.
    """
    nodes = list(model.graph)
    outputs = [{value.name or "" for value in node.outputs} for node in nodes]
    end = max((at for at, names in enumerate(outputs, 1) if names & set(computed)), default=0)
    read = {*later} | {
        value.name or ""
        for node in nodes[end:]
        for value in (*node.inputs, *captured(node))
        if value is not None
    }
    return read & set().union(*outputs[:end])


def resume(model: ir.Model, names: Collection[str]) -> None:
    """Let a model read values from inputs `NAME/given` instead of computing them, in place.

    It can still give them: a copy of the input has the name.

    Args:
        model: The model, changed in place.
        names: Of values that nodes of the main graph compute, whose types are known.
    """
    for value, given in read_from_inputs(model, names).items():
        copy = ir.node("Identity", [given])
        copy.outputs[0].name, value.name = value.name, f"{value.name}/computed"
        copy.outputs[0].type = given.type
        model.graph.insert_before(model.graph[0], copy)

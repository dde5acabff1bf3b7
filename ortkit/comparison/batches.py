"""What a batch is to a model: the size of its inputs' first axis."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.verify.inputs.sizes import free_inputs

_BATCH = re.compile(r"batch|^(b|n|bs|bsz)$", re.I)


@dataclass(frozen=True)
class BatchAxis:
    """Which size of a model's inputs is that of the batch."""

    names: frozenset[str]
    """Of symbolic sizes; empty where it has none."""
    unnamed: tuple[str, ...]
    """Inputs whose first axis is open and has no name."""
    fixed: int | None
    """The size of the first axis where it is given, None where it is open or there is none."""

    @property
    def problem(self) -> str:
        """Why it cannot be chosen, empty if it can."""
        if self.names or self.unnamed:
            return ""
        if self.fixed is None:
            return "no input has a batch axis"
        return f"its batch is fixed at {self.fixed}"

    def refusal(self, batch: int) -> str:
        """Say why the model does not run with this batch, empty if nothing speaks against it."""
        return "" if self.fixed == batch else self.problem


def batch_axis(model: ir.Model) -> BatchAxis:
    """Find the batch: by the name of a first axis, else what stands first everywhere."""
    firsts: dict[str, None] = {}
    elsewhere: set[str] = set()
    unnamed: list[str] = []
    fixed: int | None = None
    for value in free_inputs(model):
        shape = value.shape
        if shape is None or len(shape) == 0:
            continue
        for axis, size in enumerate(shape):
            name = None if isinstance(size, int) else size.value
            if axis == 0 and isinstance(size, int):
                fixed = size if fixed is None else fixed
            elif axis == 0 and name is None:
                unnamed.append(value.name or "")
            elif name is not None and (axis > 0 or len(shape) == 1):
                elsewhere.add(name)
                if axis == 0:
                    firsts[name] = None
            elif name is not None:
                firsts[name] = None
    named = {name for name in firsts if _BATCH.search(name)}
    found = frozenset(named or (set(firsts) - elsewhere))
    return BatchAxis(found, tuple(unnamed), fixed)


def set_batch(model: ir.Model, axis: BatchAxis, batch: int) -> None:
    """Give the first axes that have no name this size; named ones are set by name."""
    for value in free_inputs(model):
        if value.name in axis.unnamed and value.shape is not None:
            value.shape = ir.Shape([batch, *value.shape[1:]])

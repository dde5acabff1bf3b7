"""Inputs of a kernel that computes packed rows: they have to agree with each other.

A body that scatters rows to their positions, masks the others and gathers the rows again is
computed by its kernel without the others. So positions, gathered rows and mask of a case are made
up together. In every other case two thirds of all positions have a row. Where a sample has a
single row, its result is that row's values, whatever the kernel does with scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.inputs import is_floating

#: Masks a score of any type.
_MASKED = -3.0e4


@dataclass(frozen=True)
class PackedRows:
    """The numbers of inputs that have to agree.

    Args:
        row_of_position: [samples, positions]: the row of each position.
        indices: [1, rows]: the position of each row, counted through all samples.
        mask: A number for each position, 0 or far below it where the position has no row.
    """

    row_of_position: int
    indices: int
    mask: int

    def sizes(self, shapes: Sequence[Sequence[int]], number: int) -> list[tuple[int, ...]]:
        """Return the shapes of a case, of every other one with as many rows as tell something.

        Args:
            shapes: Of the inputs that are no constants; there are no others.
            number: The case's.
        """
        before, positions = shapes[self.indices][1], prod(shapes[self.row_of_position])
        rows = max(before, -(-2 * positions // 3)) if number % 2 else before
        kept = (self.row_of_position, self.mask)
        return [
            tuple(shape) if at in kept or len(shape) < 2 else (shape[0], rows, *shape[2:])
            for at, shape in enumerate(shapes)
        ]

    def fits(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Say whether there can be as many rows as that."""
        rows, positions = prod(shapes[self.indices]), prod(shapes[self.row_of_position])
        return rows <= positions == prod(shapes[self.mask])

    def agree(self, operands: list[Operand], seed: int) -> list[Operand]:
        """Return operands of which those named agree."""
        random = np.random.default_rng(seed)
        row_map, indices = operands[self.row_of_position].array, operands[self.indices].array
        mask = operands[self.mask].array
        count, (samples, positions) = indices.size, row_map.shape
        kept = np.zeros(samples * positions, np.bool_)
        kept[random.choice(kept.size, count, replace=False)] = True
        found = dict(enumerate(operands))
        kept_indices = np.flatnonzero(kept).reshape(indices.shape).astype(indices.dtype)
        at = (np.cumsum(kept) - 1).reshape(row_map.shape).astype(row_map.dtype)
        found[self.row_of_position], found[self.indices] = Operand(at), Operand(kept_indices)
        found[self.mask] = Operand(_masked(mask, kept.reshape(samples, positions)))
        return [found[number] for number in range(len(operands))]


def _masked(mask: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return a mask that leaves out what is not kept, and no sample without a key."""
    changed = mask.reshape(kept.shape).copy()
    seen, hidden = (0.0, _MASKED) if is_floating(mask.dtype) else (1, 0)
    changed[~kept] = hidden
    for row, is_kept in zip(changed, kept, strict=True):
        if is_kept.any():
            row[np.argmax(is_kept)] = seen
    return changed.reshape(mask.shape)


def packed_rows(function: onnx.FunctionProto) -> PackedRows | None:
    """Return which inputs of a body have to agree, None if none have to."""
    inputs = list(function.input)
    makers = {name: node for node in function.node for name in node.output}
    gathers = [node for node in function.node if node.op_type == "Gather" and not node.domain]
    last = makers.get(function.output[0])
    others = [node for node in gathers if node is not last]
    if len(function.output) != 1 or last not in gathers or not others:
        return None
    maps = {node.input[1] for node in others}
    sources = {makers[node.input[0]].input[0] for node in others if node.input[0] in makers}
    assert last is not None
    left = [name for name in inputs if name not in (*maps, *sources, last.input[1])]
    if len(maps) != 1 or not maps <= set(inputs) or len(left) != 1:
        return None
    if last.input[1] not in inputs or not any(n.op_type == "Softmax" for n in function.node):
        return None
    return PackedRows(inputs.index(maps.pop()), inputs.index(last.input[1]), inputs.index(left[0]))

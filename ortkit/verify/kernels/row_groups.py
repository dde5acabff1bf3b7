"""A batch whose rows have values of several kinds, for a kernel that computes each on its own.

For the process that runs kernels: it imports numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ortkit.graph.batch.row_order import copies_of, row_order
from ortkit.verify.kernels.blocks import Operand, same_bytes
from ortkit.verify.kernels.inputs import Kind
from ortkit.verify.kernels.job import InputSpec, RowsJob

#: Weights are those of the whole batch.
_OTHER_CONSTANTS: Kind = "other constants"

Arrays = Sequence[np.ndarray]


def kind_groups(
    kinds: Sequence[Kind], job: RowsJob, inputs: Sequence[InputSpec]
) -> Iterator[tuple[Kind, ...]]:
    """Yield kinds of values that are in one batch together.

    Args:
        kinds: All kinds of rows.
        job: What the rows are.
        inputs: Of the kernel. What has no rows and is no constant is the same for a whole batch.
    """
    pairs = zip(inputs, job.inputs, strict=True)
    is_shared = any(spec.constant is None and axis is None for spec, axis in pairs)
    most = 1 if is_shared else max(1, job.batch // job.rows)
    together = [kind for kind in kinds if kind != _OTHER_CONSTANTS]
    for start in range(0, len(together), most):
        yield tuple(together[start : start + most])
    if _OTHER_CONSTANTS in kinds and any(spec.constant is not None for spec in inputs):
        yield (_OTHER_CONSTANTS,)


@dataclass(frozen=True)
class RowGroup:
    """A batch of a few rows of each kind, which stand in it in an order without a period.

    Args:
        job: Which axes of tensors the rows are along.
        kinds: The kinds of values.
    """

    job: RowsJob
    kinds: tuple[Kind, ...]

    @cached_property
    def _order(self) -> np.ndarray:
        return row_order(self.job.batch, len(self.kinds) * self.job.rows)

    def operands(self, parts: Sequence[Sequence[Operand]]) -> list[Operand]:
        """Return the inputs of the kernel.

        Args:
            parts: By kind, the inputs of the body for a few rows.
        """
        whole = []
        for each, axis in zip(zip(*parts, strict=True), self.job.inputs, strict=True):
            if axis is None:
                whole.append(each[0])
                continue
            rows = np.concatenate([operand.array for operand in each], axis)
            whole.append(Operand(np.take(rows, self._order, axis)))
        return whole

    @property
    def thinned(self) -> RowGroup:
        """The group with one row of each kind."""
        return RowGroup(replace(self.job, rows=1), self.kinds)

    def row(self, operands: Sequence[Operand], number: int) -> list[Operand]:
        """Return one row of the inputs of a body for a few rows."""
        pairs = zip(operands, self.job.inputs, strict=True)
        return [
            each if axis is None else Operand(np.take(each.array, [number], axis))
            for each, axis in pairs
        ]

    def chunks(self, parts: Sequence[Sequence[Operand]]) -> Iterator[list[Operand]]:
        """Yield inputs of the body for its few rows, each of another kind; the last is repeated.

        Args:
            parts: By kind, inputs of one row.
        """
        count = self.job.rows
        for start in range(0, len(parts), count):
            chunk = list(parts[start : start + count])
            chunk += chunk[-1:] * (count - len(chunk))
            yield [
                each[0] if axis is None
                else Operand(np.concatenate([operand.array for operand in each], axis))
                for each, axis in zip(zip(*chunk, strict=True), self.job.inputs, strict=True)
            ]  # fmt: skip

    def like_outputs(self, body: Arrays) -> list[np.ndarray]:
        """Return arrays without values, of the types and shapes of the kernel's outputs.

        Args:
            body: The outputs for a few rows.
        """
        found = []
        for array, axis in zip(body, self.job.outputs, strict=True):
            shape = [self.job.batch if at == axis else n for at, n in enumerate(array.shape)]
            found.append(np.empty(shape, array.dtype))
        return found

    def outputs(self, whole: Arrays) -> Iterator[list[list[np.ndarray]]]:
        """Yield what a kernel gives for the few rows: by kind, its outputs.

        A kernel may compute equal rows of a batch in different ways, by their index. So it is
        asked for each index; outputs that repeat those of the first are left out.

        Args:
            whole: The kernel's outputs.
        """
        first: list[np.ndarray] = []
        for indices in copies_of(self._order, len(self.kinds) * self.job.rows):
            rows = [self._take(array, indices, at) for at, array in enumerate(whole)]
            if first and all(map(same_bytes, first, rows)):
                continue
            first = first or rows
            yield [self._of_kind(rows, number) for number in range(len(self.kinds))]

    def _of_kind(self, rows: Arrays, number: int) -> list[np.ndarray]:
        count = self.job.rows
        indices = np.arange(number * count, (number + 1) * count)
        return [self._take(array, indices, at) for at, array in enumerate(rows)]

    def _take(self, array: np.ndarray, indices: np.ndarray, output: int) -> np.ndarray:
        axis = self.job.outputs[output]
        return array if axis is None else np.take(array, indices, axis)

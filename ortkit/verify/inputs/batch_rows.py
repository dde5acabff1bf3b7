"""A few rows that stand for a fixed batch whose run takes long: which, and their input sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.cut import Axes, Cut, cut_batch, fixed_batch, row_axes
from ortkit.graph.batch.place import Mixed
from ortkit.verify.inputs.feeds import Feeds, Value
from ortkit.verify.inputs.sets import InputSet
from ortkit.verify.limits import operations

#: Rows that stand for any number of them, and where a run of them takes long: each of these is of
#: another input set.
ROWS, ROWS_OF_LONG = 3, 2
#: Operations of a run that takes about a second on two cores.
_MOST_OPERATIONS = 20_000_000_000


@dataclass(frozen=True)
class FewRows:
    """A model for a few rows of its batch, each of which it computes on its own, and inputs."""

    cut: Cut
    axes: Axes
    sets: tuple[Feeds, ...] = ()

    @property
    def text(self) -> str:
        """What reports say of it."""
        return f"{self.cut.rows} of {self.cut.batch} rows: each is computed on its own"

    def of(self, feeds: Feeds, number: int = 0) -> dict[str, Value]:
        """Return some rows of an input set with all of them.

        Args:
            feeds: The input set.
            number: Of the set: others give other rows.
        """
        batch, rows = self.cut.batch, self.cut.rows
        picked = (np.arange(rows) + rows * number) % batch
        return {name: self._some(name, value, picked) for name, value in feeds.items()}

    def _some(self, name: str, value: Value, picked: np.ndarray) -> Value:
        axis = self.axes.get(name)
        if axis is None or not isinstance(value, np.ndarray):
            return value
        return np.take(value, picked, axis)


def is_long(model: ir.Model, rows: int) -> bool:
    """Say whether a run of some rows of a model with a fixed batch takes long.

    Args:
        model: Read, not changed.
        rows: How many.
    """
    return operations(model) * rows > _MOST_OPERATIONS * max(1, fixed_batch(model))


def few_rows(model: ir.Model) -> FewRows | Mixed | None:
    """Return a few rows that stand for the batch of a model whose run takes long.

    Args:
        model: Read, not changed.

    Returns:
        Them without input sets, or what mixes rows; None where all of them do not take long.
    """
    batch = fixed_batch(model)
    if batch <= ROWS_OF_LONG or not is_long(model, batch):
        return None
    count = ROWS_OF_LONG if is_long(model, ROWS) or batch <= ROWS else ROWS
    cut = cut_batch(model, count)
    if isinstance(cut, Mixed):
        return cut
    axes = row_axes(model, cut)
    return Mixed("where its rows are is not known") if axes is None else FewRows(cut, axes)


def rows_of_sets(cut: Cut, axes: Axes, sets: Sequence[InputSet]) -> tuple[InputSet, ...]:
    """Return one input set whose rows are of different sets.

    None where an input has no rows, so that each set would have another one.

    Args:
        cut: The original for a few rows.
        axes: As `row_axes` returns them.
        sets: Of that original.
    """
    sets = sets[: cut.rows]
    values: Mapping[str, list[Value]] = {
        name: [each.feeds[name] for each in sets] for name in sets[0].feeds
    }
    feeds: dict[str, Value] = {}
    for name, arrays in values.items():
        axis = axes.get(name)
        if axis is None or len(arrays) != cut.rows:
            return ()
        rows = [np.take(_array(each), [row], axis) for row, each in enumerate(arrays)]
        feeds[name] = np.concatenate(rows, axis)
    plan = next((each.plan for each in sets if each.is_extreme), sets[0].plan)
    return (InputSet(feeds, "; ".join(dict.fromkeys(each.text for each in sets)), plan),)


def _array(value: Value) -> np.ndarray:
    assert isinstance(value, np.ndarray), "what has rows is a tensor"
    return value

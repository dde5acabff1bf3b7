"""Whether requests to a model may be computed together: only where its rows are independent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.comparison.batches import BatchAxis, batch_axis
from ortkit.errors import ModelError
from ortkit.graph.batch.cut import cut_batch
from ortkit.graph.batch.place import Mixed
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.fixed import fix_sizes
from ortkit.measure.inputs import usual_feeds
from ortkit.refusal import Refused
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.sizes import free_inputs

#: Batch and rows of the proof: a prime, so that no other size of a model is taken for the batch.
_BATCH, _ROWS = 8191, 2


def joinable(path: Path) -> Refused | None:
    """Return None if requests to a model may be batched along its first axis, else why not."""
    model = open_model(path)
    axis = batch_of(model)
    if isinstance(axis, Refused):
        return axis
    try:
        feeds = next(usual_feeds(model, dict.fromkeys(axis.names, 1)))
    except (ModelError, StopIteration):
        return Refused("no inputs can be made up that the proof needs")
    return mixed_rows(model, axis, feeds)


def batch_of(model: ir.Model) -> BatchAxis | Refused:
    """Find the batch, if every input and output may have it as its first axis.

    Returns:
        The batch, or why requests cannot be batched.
    """
    axis = batch_axis(model)
    if axis.problem:
        return Refused(axis.problem)
    if len(axis.names) + bool(axis.unnamed) > 1:
        named = ", ".join([*sorted(axis.names), *axis.unnamed])
        return Refused(f"several sizes may be the batch: {named}")
    for value in free_inputs(model):
        first = _first(value)
        if isinstance(first, int) or not (first.value in axis.names or value.name in axis.unnamed):
            return Refused(f"the first axis of input {value.name!r} is not the batch")
    for value in model.graph.outputs:
        if isinstance(_first(value), int):
            return Refused(f"the first axis of output {value.name!r} is not the batch")
    return axis


def mixed_rows(model: ir.Model, axis: BatchAxis, feeds: Feeds) -> Refused | None:
    """Try to prove that a model computes each row of its batch on its own.

    The proof is for the other sizes that `feeds` have: with sizes that are not known it ends at
    the first operator that computes with one.

    Args:
        model: The model, changed in place.
        axis: Its batch.
        feeds: Inputs that it runs on.

    Returns:
        None if it does, else where the proof ends.
    """
    sizes: dict[str, int] = {}
    for value in free_inputs(model):
        for dim, size in zip(value.shape or (), np.shape(feeds[value.name or ""]), strict=False):  # type: ignore[arg-type]
            if not isinstance(dim, int) and dim.value and dim.value.isidentifier():
                sizes[dim.value] = size
    fix_sizes(model, sizes | dict.fromkeys(axis.names, _BATCH))
    for value in free_inputs(model):
        value.shape = ir.Shape([_BATCH, *np.shape(feeds[value.name or ""])[1:]])  # type: ignore[arg-type]
    cut = cut_batch(model, _ROWS)
    if isinstance(cut, Mixed):
        return Refused(cut.reason)
    for value in cut.model.graph.outputs:
        if _first(value) != _ROWS:
            return Refused(f"output {value.name!r} has no row for each of the batch")
    return None


def _first(value: ir.Value) -> int | ir.SymbolicDim:
    """Return the first size; -1 for a scalar or an unknown rank."""
    return value.shape[0] if value.shape is not None and len(value.shape) else -1

"""Input sets of usual numbers, for models in lower precision: their error is one on such."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.limits import operations

#: A scale of one of 64 columns of 8 bits that is 5 % off is distinguished from rounding in 5 of
#: 10 cases on 3 rows and in 10 on 16, a scale of 4 bits that is doubled in 1 on 3 and in 10 on 64
#: (2026-11).
_ROWS = 64
#: Operations of a run with more rows: a quarter of a second on two cores.
_MOST_OPERATIONS = 5_000_000_000


def usual_plans(maker: FeedMaker, model: ir.Model, level: Level, seed: int) -> tuple[Plan, ...]:
    """Plan the sets of a covering design with usual numbers, one of them with many rows.

    Products behind a pooling have one row for each of the batch, so that other sizes do not help.

    Args:
        maker: Makes up inputs of the model.
        model: Read, not changed.
        level: How much is covered.
        seed: Seeds the random numbers.
    """
    first, *others = maker.covering(level, seed, is_usual=True)
    if not maker.batches:
        return (first, *others)
    row = operations(model, maker.completed(maker.with_batch(first, 1)).sizes)
    rows = min(_ROWS, _MOST_OPERATIONS // max(1, row))
    most = max(first.sizes[name] for name in maker.batches)
    return (maker.with_batch(first, max(rows, most)), *others)

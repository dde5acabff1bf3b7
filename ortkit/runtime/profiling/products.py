"""Why matrix products and the like are far from the machine's rate, where the numbers say it."""

from __future__ import annotations

import math

from ortkit.runtime.profiling.result import Row

_CPU = "CPUExecutionProvider"
#: Below this part of the peak a product is worth a word.
_SLOW = 0.5
_SMALL_M = 16
#: Part of a node's time that its threads wait for each other.
_WAITING = 0.15

REASONS = {
    "alone": (
        "runs on one thread",
        "no work was handed to the other threads; more rows at a time (a larger batch) would be",
    ),
    "waits": (
        "threads wait for each other",
        "its parts are uneven, or another process takes a core; compare other numbers of threads "
        "with `ortkit compare --threads`",
    ),
    "few rows": (
        "few rows",
        f"fewer than {_SMALL_M} rows meet the weights, which are read for each run all the same; "
        "more rows at a time (a larger batch) cost little more",
    ),
}


def waiting(row: Row) -> float:
    """Return the part of its time in which a node's threads wait for each other."""
    return 0.0 if row.balance is None else row.balance.waiting


def _rows_of_product(row: Row) -> int:
    """Return how many vectors a product multiplies with the same matrix; large if not known."""
    if row.op not in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm") or not row.outputs:
        return _SMALL_M
    dims = row.outputs[0][1]
    return math.prod(dims[:-1])


def why_slow(row: Row, threads: int) -> str | None:
    """Return a key of `REASONS`; None: it is near the peak, or nothing says why it is not."""
    work, balance = row.work, row.balance
    if work.attained is None or work.attained >= _SLOW or work.bound is None:
        return None
    if balance is not None and threads > 1 and row.provider == _CPU:
        if balance.parallel == 0:
            return "alone"
        if balance.waiting > _WAITING:
            return "waits"
    return "few rows" if _rows_of_product(row) < _SMALL_M else None

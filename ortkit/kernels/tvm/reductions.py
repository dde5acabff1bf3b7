"""The kinds of reductions: where they begin, and how they go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Emitter, Expr


@dataclass(frozen=True)
class Reduction:
    """One kind.

    Args:
        identity: What changes nothing, of a compute type.
        step: The reduction of two numbers. A NaN stays, but in a "peak".
    """

    identity: Callable[[Emitter, str], Expr]
    step: Callable[[Emitter, Expr, Expr], Expr]


def _lowest(e: Emitter, dtype: str) -> Expr:
    return e.constant(float("-inf"), dtype) if dtype.startswith("float") else e.lowest(dtype)


def _highest(e: Emitter, dtype: str) -> Expr:
    return e.constant(float("inf"), dtype) if dtype.startswith("float") else e.highest(dtype)


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(lambda e, dtype: e.constant(0, dtype), lambda _e, a, b: a + b),
    "prod": Reduction(lambda e, dtype: e.constant(1, dtype), lambda _e, a, b: a * b),
    "max": Reduction(_lowest, lambda e, a, b: e.select(e.either(a > b, e.is_nan(a)), a, b)),
    # For softmax, where a lost NaN comes back with the sum.
    "peak": Reduction(_lowest, lambda e, a, b: e.select(a > b, a, b)),
    "min": Reduction(_highest, lambda e, a, b: e.select(e.either(a < b, e.is_nan(a)), a, b)),
}


def halve(e: Emitter, buffer: Buffer, count: int, step: Callable[[Expr, Expr], Expr]) -> None:
    """Reduce `count` (a power of two) numbers to the first, always in the same order."""
    half = count // 2
    while half >= 1:
        if half == 1:
            e.store(buffer, step(buffer[e.i64(0)], buffer[e.i64(1)]), e.i64(0))
        else:
            with e.vector(half) as lane:
                e.store(buffer, step(buffer[lane], buffer[lane + e.i64(half)]), lane)
        half //= 2

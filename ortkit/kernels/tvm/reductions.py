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
        step: The reduction of two numbers. A NaN may be lost in "max" and "min".
    """

    identity: Callable[[Emitter, str], Expr]
    step: Callable[[Emitter, Expr, Expr], Expr]


def _lowest(e: Emitter, dtype: str) -> Expr:
    return e.constant(float("-inf"), dtype) if dtype.startswith("float") else e.lowest(dtype)


def _highest(e: Emitter, dtype: str) -> Expr:
    return e.constant(float("inf"), dtype) if dtype.startswith("float") else e.highest(dtype)


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(lambda e, dtype: e.constant(0, dtype), lambda e, a, b: e.add(a, b)),
    "max": Reduction(_lowest, lambda e, a, b: e.select(a > b, a, b)),
    "min": Reduction(_highest, lambda e, a, b: e.select(a < b, a, b)),
}


def halve(e: Emitter, buffer: Buffer, count: int, step: Callable[[Expr, Expr], Expr]) -> Expr:
    """Return the reduction of `count` (a power of two) numbers, always in the same order.

    Each half goes to a buffer of its own: one that is read in parts of many sizes is taken apart
    by LLVM, and so are the loops that filled it.
    """
    dtype = e.dtype(buffer[e.i64(0)])
    while count > 1:
        count //= 2
        half = e.local(count, dtype)
        if count == 1:
            e.store(half, step(buffer[e.i64(0)], buffer[e.i64(1)]), e.i64(0))
        else:
            with e.vector(count) as lane:
                e.store(half, step(buffer[lane], buffer[lane + e.i64(count)]), lane)
        buffer = half
    return buffer[e.i64(0)]

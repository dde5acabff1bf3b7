"""Division by what is the same in all lanes: one inverse, and a product for each lane.

A vector of quotients takes as long as some eight products (AVX-512, processors of 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ortkit.kernels.region.axes import Axis
from ortkit.kernels.region.dtypes import compute_dtype
from ortkit.kernels.region.program import Constant, Point
from ortkit.kernels.tvm.emit import Emitter, Expr
from ortkit.kernels.tvm.schedule import Schedule

_DIVISION = "Div"
#: Bounds between which a number and its inverse are far from those of float32, and what brings
#: others there: a power of two, so that nothing is rounded. It is taken to the dividend first:
#: what overflows by it does so in the quotient too, and what loses digits has a denormal quotient.
_LEAST, _MOST, _SCALE = 2.0**-64, 2.0**64, 2.0**64


#: What to multiply with, and before that, unless it is None, with another.
Inverse: TypeAlias = tuple[Expr, Expr | None]


def has_divisor(schedule: Schedule) -> bool:
    """Say whether something is divided by what is the same in all lanes."""
    return any(_divisors(schedule))


def divisor_of(schedule: Schedule, number: int) -> int | None:
    """Return the value that a value is divided by, if it is the same in all lanes."""
    node = schedule.program.values[number].node
    if not isinstance(node, Point) or node.op_type != _DIVISION or schedule.vector is None:
        return None
    dividend, divisor = node.operands
    if dividend is None or divisor is None or _is_exact(schedule, divisor):
        return None
    is_real = compute_dtype(schedule.program.values[number].dtype) == "float32"
    lanes = _vector_axes(schedule)
    is_same = not lanes & set(schedule.axes.of(divisor))
    return divisor if is_real and is_same and lanes & set(schedule.axes.of(number)) else None


def quotient(e: Emitter, x: Expr, inverse: Inverse) -> Expr:
    """Return x over what the inverse is of; the inverse is rounded, and so is the product."""
    factor, scale = inverse
    return (x if scale is None else e.share(x * scale)) * factor


def inverse_of(e: Emitter, divisor: Expr, constant: float | None) -> Inverse:
    """Return what to multiply with instead of dividing; `constant` is the divisor if it is one.

    Zero, infinity and NaN answer as in a division.
    """
    if constant is not None and _LEAST <= abs(constant) <= _MOST:
        return e.share(e.f32(1.0) / divisor), None
    size = e.share(e.absolute(divisor))
    raised = e.select(size < e.f32(_LEAST), e.f32(_SCALE), e.f32(1.0))
    scale = e.share(e.select(size > e.f32(_MOST), e.f32(1.0 / _SCALE), raised))
    return e.share(e.f32(1.0) / (divisor * scale)), scale


def _divisors(schedule: Schedule) -> Iterator[int]:
    for number in range(len(schedule.program.values)):
        if (divisor := divisor_of(schedule, number)) is not None:
            yield divisor


def _vector_axes(schedule: Schedule) -> set[Axis]:
    return {axis for axis in (schedule.vector,) if axis is not None}


def _is_exact(schedule: Schedule, number: int) -> bool:
    """Say whether a constant is a power of two: LLVM multiplies with its inverse by itself."""
    node = schedule.program.values[number].node
    if not isinstance(node, Constant) or isinstance(node.value, bool) or not node.value:
        return False
    return abs(float(node.value)).hex().startswith("0x1.0000000000000p")

"""The operations that a backend offers to the definitions of pointwise operators.

Each operator is defined once in terms of these, so that all backends share its accuracy.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

#: An expression of the emitter's own. It has Python's arithmetic, comparison, shift and bitwise
#: operators; tvm has no types that mypy could follow.
Expr: TypeAlias = Any


class Emitter(Protocol):
    """Expressions of one element, and statements that compute them."""

    is_rough: bool
    """Whether results are rounded to half precision, and functions may be less exact."""

    # ---- statements
    def share(self, value: Expr) -> Expr:
        """Compute `value` once here; the result may be used any number of times."""
        ...

    # ---- constants
    def constant(self, value: float | int | bool, dtype: str) -> Expr:
        """Return a constant of `dtype`."""
        ...

    def f32(self, value: float) -> Expr:
        """Return a float32 constant."""
        ...

    def i32(self, value: int) -> Expr:
        """Return an int32 constant."""
        ...

    def u8(self, value: int) -> Expr:
        """Return a uint8 constant."""
        ...

    # ---- arithmetic
    def select(self, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
        """Return one of two values; both are computed."""
        ...

    def add(self, a: Expr, b: Expr) -> Expr:
        """Return a + b; integers wrap around."""
        ...

    def subtract(self, a: Expr, b: Expr) -> Expr:
        """Return a - b; integers wrap around."""
        ...

    def multiply(self, a: Expr, b: Expr) -> Expr:
        """Return a b; integers wrap around."""
        ...

    def fence(self, x: Expr) -> Expr:
        """Return x, a floating-point number that is not fused with what is computed from it."""
        ...

    def negative(self, x: Expr) -> Expr:
        """Return -x; the sign of a floating zero flips too, and the lowest integer stays."""
        ...

    def absolute(self, x: Expr) -> Expr:
        """Return |x|; the lowest integer stays."""
        ...

    def floor(self, x: Expr) -> Expr:
        """Return x rounded down."""
        ...

    def ceil(self, x: Expr) -> Expr:
        """Return x rounded up."""
        ...

    def round_half_even(self, x: Expr) -> Expr:
        """Return x rounded to the nearest integer, halves to even."""
        ...

    def sqrt(self, x: Expr) -> Expr:
        """Return the square root, correctly rounded."""
        ...

    def power_of_two(self, x: Expr) -> Expr | None:
        """Return 2^x by an instruction of the machine, None where there is none."""
        ...

    def truncated_quotient(self, a: Expr, b: Expr) -> Expr:
        """Return a / b of integers, rounded toward 0; b is neither 0, nor -1 for the lowest a."""
        ...

    def truncated_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return the remainder of `truncated_quotient`: it has the sign of a."""
        ...

    def floored_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return the remainder of a / b rounded down: it has the sign of b."""
        ...

    # ---- types
    def cast(self, x: Expr, dtype: str) -> Expr:
        """Convert the value; out of range is undefined."""
        ...

    def bitcast(self, x: Expr, dtype: str) -> Expr:
        """Reinterpret the bits."""
        ...

    def dtype(self, x: Expr) -> str:
        """Return numpy's name of the element type."""
        ...

    # ---- logic
    def equal(self, a: Expr, b: Expr) -> Expr:
        """Return a == b."""
        ...

    def not_equal(self, a: Expr, b: Expr) -> Expr:
        """Return a != b; true where one is NaN."""
        ...

    def is_nan(self, x: Expr) -> Expr:
        """Return whether x is NaN; false for integers."""
        ...

    def both(self, a: Expr, b: Expr) -> Expr:
        """Return a and b."""
        ...

    def either(self, a: Expr, b: Expr) -> Expr:
        """Return a or b."""
        ...

    def differ(self, a: Expr, b: Expr) -> Expr:
        """Return a xor b."""
        ...

    def invert(self, a: Expr) -> Expr:
        """Return not a."""
        ...

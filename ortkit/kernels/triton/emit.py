"""Triton source in the making: statements in order.

`Emitter` is one of `ortkit.kernels.region.emitter`, with the names of its statements' results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ortkit.errors import InternalError
from ortkit.kernels.triton.expr import TYPES, Expr, Number, as_numpy, as_tensor, bare, literal


@dataclass
class Emitter:
    """Statements, and what they are made of; see the module's docstring."""

    lines: list[str] = field(default_factory=list)
    prefix: str = "t"
    is_rough: bool = False
    """Whether results are rounded to half precision, and functions may be the device's own."""
    _count: int = 0

    # ---- statements
    def share(self, value: Expr, comment: str = "") -> Expr:
        """Compute `value` once here; the result may be used any number of times."""
        if value.literal is not None or value.text.isidentifier():
            return value
        name = self.name()
        self.lines.append(f"{name} = {bare(value.text)}{f'  # {comment}' if comment else ''}")
        return Expr(name, value.dtype)

    def name(self) -> str:
        """Return a name that was not given before."""
        self._count += 1
        return f"{self.prefix}{self._count}"

    # ---- constants
    def constant(self, value: Number, dtype: str) -> Expr:
        """Return a constant of `dtype`."""
        return literal(value, dtype)

    def f32(self, value: float) -> Expr:
        """Return a float32 constant."""
        return literal(value, "float32")

    def i32(self, value: int) -> Expr:
        """Return an int32 constant."""
        return literal(value, "int32")

    def u8(self, value: int) -> Expr:
        """Return a uint8 constant."""
        return literal(value, "uint8")

    def lowest(self, dtype: str) -> Expr:
        """Return the smallest number of an integer type."""
        return literal(int(np.iinfo(dtype).min), dtype)

    def highest(self, dtype: str) -> Expr:
        """Return the largest number of an integer type."""
        return literal(int(np.iinfo(dtype).max), dtype)

    # ---- arithmetic
    def select(self, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
        """Return one of two values; both are computed."""
        if condition.literal is not None:
            return then if condition.literal else otherwise
        if then.dtype != otherwise.dtype:
            raise InternalError(f"{then.dtype} or {otherwise.dtype} in a kernel")
        text = f"tl.where({bare(condition.text)}, {bare(then.text)}, {bare(otherwise.text)})"
        return Expr(text, then.dtype)

    def add(self, a: Expr, b: Expr) -> Expr:
        """Return a + b; integers wrap around."""
        return a + b

    def subtract(self, a: Expr, b: Expr) -> Expr:
        """Return a - b; integers wrap around."""
        return a - b

    def multiply(self, a: Expr, b: Expr) -> Expr:
        """Return a b; integers wrap around."""
        return a * b

    def fence(self, x: Expr) -> Expr:
        """Return x, which is not fused with what is computed from it."""
        return Expr(x.text, x.dtype, x.literal)

    def negative(self, x: Expr) -> Expr:
        """Return -x; the sign of a floating zero flips too, and the lowest integer stays."""
        return -x

    def absolute(self, x: Expr) -> Expr:
        """Return |x|; the lowest integer stays."""
        return self._call("tl.abs", x)

    def floor(self, x: Expr) -> Expr:
        """Return x rounded down."""
        return self._call("tl.floor", x)

    def ceil(self, x: Expr) -> Expr:
        """Return x rounded up."""
        return self._call("tl.ceil", x)

    def round_half_even(self, x: Expr) -> Expr:
        """Return x rounded to the nearest integer, halves to even."""
        # Beside this power of two there is no room for a fraction.
        bits = literal(2.0 ** np.finfo(x.dtype).nmant, x.dtype)
        magnitude = self.share(self.absolute(x))
        whole = self.share(self.share(magnitude + bits) - bits)
        value = self.select(magnitude < bits, whole, magnitude)
        is_negative = self.bitcast(x, self._bits(x)) < literal(0, self._bits(x))
        return self.share(self.select(is_negative, -self.share(value), value))

    def sqrt(self, x: Expr) -> Expr:
        """Return the square root, correctly rounded."""
        return self._call("tl.sqrt_rn" if x.dtype == "float32" else "tl.sqrt", x)

    def power_of_two(self, x: Expr) -> Expr | None:
        """Return 2^x within 2^-22, 0 for what would be denormal; None if that is too rough."""
        return self.share(self._call("tl.exp2", x)) if self.is_rough else None

    def truncated_quotient(self, a: Expr, b: Expr) -> Expr:
        """Return a / b of integers, rounded toward 0; b is neither 0, nor -1 for the lowest a."""
        return Expr(f"({as_tensor(a)} // {as_tensor(b)})", a.dtype)

    def truncated_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return what is left of a then: it has the sign of a."""
        return Expr(f"({as_tensor(a)} % {as_tensor(b)})", a.dtype)

    def floored_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return what is left of a when a / b is rounded down: it has the sign of b."""
        rest = self.share(self.truncated_remainder(a, b))
        if a.dtype.startswith("u"):
            return rest
        zero = literal(0, a.dtype)
        is_off = self.both(self.not_equal(rest, zero), (rest ^ b) < zero)
        return self.select(is_off, rest + b, rest)

    # ---- conversions
    def cast(self, x: Expr, dtype: str) -> Expr:
        """Convert the value; out of range is undefined."""
        if x.dtype == dtype:
            return x
        if x.literal is not None and dtype not in ("float16", "bfloat16"):
            return literal(as_numpy(x.literal, x.dtype).astype(dtype).item(), dtype)
        return Expr(f"{as_tensor(x)}.to({TYPES[dtype]})", dtype)

    def bitcast(self, x: Expr, dtype: str) -> Expr:
        """Reinterpret the bits."""
        if x.literal is not None:
            return literal(as_numpy(x.literal, x.dtype).view(dtype).item(), dtype)
        return Expr(f"{x.text}.to({TYPES[dtype]}, bitcast=True)", dtype)

    # ---- comparisons and logic
    def equal(self, a: Expr, b: Expr) -> Expr:
        """Return a == b."""
        return a._with("==", b)

    def not_equal(self, a: Expr, b: Expr) -> Expr:
        """Return a != b; true where one is NaN."""
        return a._with("!=", b)

    def is_nan(self, x: Expr) -> Expr:
        """Return whether x is NaN; false for integers."""
        return self.not_equal(x, x) if x.dtype.startswith("float") else literal(False, "bool")

    def both(self, a: Expr, b: Expr) -> Expr:
        """Return a and b."""
        return a & b

    def either(self, a: Expr, b: Expr) -> Expr:
        """Return a or b."""
        return a | b

    def differ(self, a: Expr, b: Expr) -> Expr:
        """Return a xor b."""
        return a ^ b

    def invert(self, a: Expr) -> Expr:
        """Return not a."""
        return self.differ(a, literal(True, "bool"))

    def dtype(self, x: Expr) -> str:
        """Return numpy's name of the element type."""
        return x.dtype

    def _call(self, function: str, x: Expr) -> Expr:
        return Expr(f"{function}({bare(as_tensor(x))})", x.dtype)

    def _bits(self, x: Expr) -> str:
        return f"int{np.dtype(x.dtype).itemsize * 8}"

"""Triton source in the making: expressions as text, with their types.

`Emitter` has the operations of `ortkit.kernels.tvm.emit.Emitter` that pointwise operators are
written with, so that both backends share one definition, and one accuracy, of each operator.

Kernels are compiled without contraction of a * b + c; here each product that is added to
something within one operator is written as a fused multiply-add, and no other one. So an operator
is as accurate as its definition states, and nothing is fused across operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ortkit.errors import InternalError

Number: TypeAlias = float | int | bool

# numpy's names -> Triton's.
TYPES = {
    "bool": "tl.int1",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "uint8": "tl.uint8",
    "uint16": "tl.uint16",
    "uint32": "tl.uint32",
    "uint64": "tl.uint64",
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float64": "tl.float64",
}
_FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})


@dataclass(frozen=True, eq=False)
class Expr:
    """One expression.

    Args:
        text: Source that can stand as an operand: a name, a call, a number or in parentheses.
        dtype: numpy's name of its type.
        literal: Its value where it is a number that is written into the source.
        factors: What it is the product of, where a sum may be fused with it.
    """

    text: str
    dtype: str
    literal: Number | None = None
    factors: tuple[Expr, Expr] | None = None

    def _with(self, symbol: str, other: Expr) -> Expr:
        if self.dtype != other.dtype:
            raise InternalError(f"{self.dtype} {symbol} {other.dtype} in a kernel")
        dtype = "bool" if symbol in _COMPARISONS else self.dtype
        if self.literal is not None and other.literal is not None:
            one, two = (_numpy(x.literal, x.dtype) for x in (self, other))
            with np.errstate(all="ignore"):
                return literal(_FOLDED[symbol](one, two).item(), dtype)
        return Expr(f"({self.text} {symbol} {other.text})", dtype)

    def __add__(self, other: Expr) -> Expr:
        for one, rest in ((other, self), (self, other)):
            if one.factors is not None:
                return _fused(*one.factors, rest)
        return self._with("+", other)

    def __sub__(self, other: Expr) -> Expr:
        if self.factors is not None:
            return _fused(*self.factors, -other)
        if other.factors is not None:
            return _fused(-other.factors[0], other.factors[1], self)
        return self._with("-", other)

    def __mul__(self, other: Expr) -> Expr:
        result = self._with("*", other)
        if self.dtype not in ("float32", "float64") or result.literal is not None:
            return result
        return Expr(result.text, result.dtype, factors=(self, other))

    def __truediv__(self, other: Expr) -> Expr:
        if self.literal is not None and other.literal is not None:
            return self._with("/", other)
        if self.dtype == "float32":  # the operator is approximate: 2 ulp
            return Expr(f"tl.div_rn({_tensor(self)}, {_tensor(other)})", self.dtype)
        return self._with("/", other)

    def __neg__(self) -> Expr:
        if self.literal is not None:
            return literal((-_numpy(self.literal, self.dtype)).item(), self.dtype)
        if self.dtype.startswith("float"):  # Triton's own minus is 0 - x, which loses -0
            return self._with("*", literal(-1, self.dtype))
        return Expr(f"(-{self.text})", self.dtype)

    def __invert__(self) -> Expr:
        return Expr(f"(~{_tensor(self)})", self.dtype)

    def __and__(self, other: Expr) -> Expr:
        return self._with("&", other)

    def __or__(self, other: Expr) -> Expr:
        return self._with("|", other)

    def __xor__(self, other: Expr) -> Expr:
        return self._with("^", other)

    def __lshift__(self, other: Expr) -> Expr:
        return self._with("<<", other)

    def __rshift__(self, other: Expr) -> Expr:
        return self._with(">>", other)

    def __lt__(self, other: Expr) -> Expr:
        return self._with("<", other)

    def __gt__(self, other: Expr) -> Expr:
        return self._with(">", other)

    def __le__(self, other: Expr) -> Expr:
        return self._with("<=", other)

    def __ge__(self, other: Expr) -> Expr:
        return self._with(">=", other)


def literal(value: Number, dtype: str) -> Expr:
    """Return a number as source; only float32 and int32 are what Triton takes numbers for."""
    plain = _numpy(value, dtype).item()
    if dtype in ("bool", "int32"):
        text = str(plain)
    elif not dtype.startswith("float") or np.isfinite(plain):
        text = str(np.float32(plain)) if dtype == "float32" else repr(plain)
    else:
        text = f'float("{plain}")'
    if dtype not in ("int32", "float32"):
        text = f"tl.full((), {text}, {TYPES[dtype]})"
    elif text.startswith("-"):
        text = f"({text})"
    return Expr(text, dtype, plain)


def typed(value: Number, dtype: str) -> str:
    """Return a number as the source of a tensor of no dims."""
    return _tensor(literal(value, dtype))


def _tensor(x: Expr) -> str:
    if x.literal is None or x.dtype not in ("int32", "float32"):
        return x.text
    return f"tl.full((), {x.text.strip('()') if x.text[0] == '(' else x.text}, {TYPES[x.dtype]})"


def _numpy(value: Number | None, dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _fused(a: Expr, b: Expr, c: Expr) -> Expr:
    a, b = (b, a) if a.literal is not None else (a, b)
    return Expr(f"tl.fma({bare(a.text)}, {bare(b.text)}, {bare(c.text)})", a.dtype)


@dataclass
class Emitter:
    """Statements in order; see the module's docstring."""

    lines: list[str] = field(default_factory=list)
    prefix: str = "t"
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

    def truncated_quotient(self, a: Expr, b: Expr) -> Expr:
        """Return a / b of integers, rounded toward 0; b is neither 0, nor -1 for the lowest a."""
        return Expr(f"({_tensor(a)} // {_tensor(b)})", a.dtype)

    def truncated_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return what is left of a then: it has the sign of a."""
        return Expr(f"({_tensor(a)} % {_tensor(b)})", a.dtype)

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
            return literal(_numpy(x.literal, x.dtype).astype(dtype).item(), dtype)
        return Expr(f"{_tensor(x)}.to({TYPES[dtype]})", dtype)

    def bitcast(self, x: Expr, dtype: str) -> Expr:
        """Reinterpret the bits."""
        if x.literal is not None:
            return literal(_numpy(x.literal, x.dtype).view(dtype).item(), dtype)
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
        return Expr(f"{function}({bare(_tensor(x))})", x.dtype)

    def _bits(self, x: Expr) -> str:
        return f"int{np.dtype(x.dtype).itemsize * 8}"


def bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text

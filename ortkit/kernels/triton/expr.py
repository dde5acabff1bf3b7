"""Expressions of Triton source as text, with their types.

Kernels are compiled without contraction of a * b + c; here each product that is added to
something within one operator is written as a fused multiply-add, and no other one. So an operator
is as accurate as its definition states, and nothing is fused across operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
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
            one, two = (as_numpy(x.literal, x.dtype) for x in (self, other))
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
            return Expr(f"tl.div_rn({as_tensor(self)}, {as_tensor(other)})", self.dtype)
        return self._with("/", other)

    def __neg__(self) -> Expr:
        if self.literal is not None:
            return literal((-as_numpy(self.literal, self.dtype)).item(), self.dtype)
        if self.dtype.startswith("float"):  # Triton's own minus is 0 - x, which loses -0
            return self._with("*", literal(-1, self.dtype))
        return Expr(f"(-{self.text})", self.dtype)

    def __invert__(self) -> Expr:
        return Expr(f"(~{as_tensor(self)})", self.dtype)

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
    plain = as_numpy(value, dtype).item()
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
    return as_tensor(literal(value, dtype))


def as_tensor(x: Expr) -> str:
    """Return the source of an expression that is a tensor, of no dims if it is a number."""
    if x.literal is None or x.dtype not in ("int32", "float32"):
        return x.text
    return f"tl.full((), {x.text.strip('()') if x.text[0] == '(' else x.text}, {TYPES[x.dtype]})"


def as_numpy(value: Number | None, dtype: str) -> Any:
    """Return a number as numpy has it in that type."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _fused(a: Expr, b: Expr, c: Expr) -> Expr:
    a, b = (b, a) if a.literal is not None else (a, b)
    return Expr(f"tl.fma({bare(a.text)}, {bare(b.text)}, {bare(c.text)})", a.dtype)


def bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 else text
    return text

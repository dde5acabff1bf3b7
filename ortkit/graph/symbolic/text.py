"""Reads sizes from text: what ONNX calls `dim_param`; `terms.size_text` writes it."""

from __future__ import annotations

import re

from ortkit.graph.symbolic.dims import Dim, Size, add, combine, multiply

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.:]*(?:-[A-Za-z0-9_.:]+)*)"
    r"|(?P<op>\*\*|//|[-+*%(),]))"
)
_FUNCTIONS = {"max": "max", "Max": "max", "min": "min", "Min": "min", "broadcast": "broadcast"}
#: Deeper or longer texts are taken as a name, not as an expression.
_LIMIT = 200


def parse_size(text: str) -> Size:
    """Read a `dim_param`: an expression in the grammar that `size_text` writes, else a name.

    A name may hold `-` between word characters, so only a spaced `a - b` is a difference.
    """
    text = text.strip()
    if re.fullmatch(r"[A-Za-z_]\w*", text):
        return Dim.named(text)
    try:
        return _Reader(text).read()
    except (_NotAnExpressionError, ZeroDivisionError, ValueError):
        return Dim.named(text)


class _NotAnExpressionError(Exception):
    """The text is not in the grammar."""


class _Reader:
    """A recursive-descent reader; the state is the list of tokens left."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        if len(text) > _LIMIT:
            raise _NotAnExpressionError
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise _NotAnExpressionError
            self.tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        self.tokens.reverse()

    def read(self) -> Size:
        size = self._sum()
        if self.tokens:
            raise _NotAnExpressionError
        return size

    def _peek(self) -> str:
        return self.tokens[-1][1] if self.tokens else ""

    def _take(self, expected: str | None = None) -> tuple[str, str]:
        if not self.tokens or (expected is not None and self._peek() != expected):
            raise _NotAnExpressionError
        return self.tokens.pop()

    def _sum(self) -> Size:
        total = self._term()
        while self._peek() in ("+", "-"):
            _, sign = self._take()
            part = self._term()
            total = add(total, part if sign == "+" else -part)
        return total

    def _term(self) -> Size:
        if self._peek() == "-":
            self._take()
            return -self._term()
        total = self._power()
        while self._peek() in ("*", "//", "%"):
            _, op = self._take()
            other = self._power()
            if op == "*":
                total = multiply(total, other)
            else:
                total = combine("floordiv" if op == "//" else "mod", [total, other])
        return total

    def _power(self) -> Size:
        base = self._primary()
        if self._peek() != "**":
            return base
        self._take()
        kind, text = self._take()
        if kind != "number" or not 0 < int(text) <= 8:
            raise _NotAnExpressionError
        total = base
        for _ in range(int(text) - 1):
            total = multiply(total, base)
        return total

    def _primary(self) -> Size:
        kind, text = self._take()
        if kind == "number":
            return int(text)
        if kind == "name":
            return self._call(text) if self._peek() == "(" else Dim.named(text)
        if text != "(":
            raise _NotAnExpressionError
        size = self._sum()
        self._take(")")
        return size

    def _call(self, name: str) -> Size:
        if name not in _FUNCTIONS:
            raise _NotAnExpressionError
        self._take("(")
        args = [self._sum()]
        while self._peek() == ",":
            self._take()
            args.append(self._sum())
        self._take(")")
        function = _FUNCTIONS[name]
        if function == "broadcast":
            return combine("broadcast", args)
        return combine("max" if function == "max" else "min", args)

"""Sizes as text: what ONNX calls `dim_param`, written and read."""

from __future__ import annotations

import re

from ortkit.graph.symbolic.dims import Atom, Dim, Monomial, Size, add, combine, multiply

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.:]*(?:-[A-Za-z0-9_.:]+)*)"
    r"|(?P<op>\*\*|//|[-+*%(),]))"
)
_FUNCTIONS = {"max": "max", "Max": "max", "min": "min", "Min": "min", "broadcast": "broadcast"}
#: Deeper or longer texts are taken as a name, not as an expression.
_LIMIT = 200


def size_text(size: Size) -> str:
    """Write a size, e.g. `2*seq + 1`; unknowns come as `?12`, unknown elements as `!12`."""
    if isinstance(size, int):
        return str(size)
    text = ""
    parts = sorted(
        (-len(monomial), factor < 0, _term_text(monomial, abs(factor)), factor)
        for monomial, factor in size.terms
    )
    for _, _, part, factor in parts:
        if not text:
            text = part if factor > 0 else f"-{part}"
        else:
            text += f" + {part}" if factor > 0 else f" - {part}"
    return text


def _term_text(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    parts = [] if factor == 1 else [str(factor)]
    for atom in dict.fromkeys(monomial):
        power = monomial.count(atom)
        text = _atom_text(atom, alone=len(parts) == 0 and len(monomial) == 1)
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)


def _atom_text(atom: Atom, *, alone: bool) -> str:
    match atom.kind:
        case "name":
            return atom.label
        case "size":
            return f"?{atom.label}"
        case "value":
            return f"!{atom.label}"
        case "floordiv" | "mod":
            sign = "//" if atom.kind == "floordiv" else "%"
            text = sign.join(_operand_text(arg) for arg in atom.args)
            return text if alone else f"({text})"
    return f"{atom.kind}({', '.join(size_text(arg) for arg in atom.args)})"


def _operand_text(size: Size) -> str:
    text = size_text(size)
    return text if re.fullmatch(r"[\w.:?!]+", text) else f"({text})"


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

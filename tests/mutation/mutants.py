"""Small changes of Python sources, each of which some test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMPARISONS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "in": "not in",
    "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of a source.

    Args:
        line: From 1.
        start: The first byte that is replaced.
        end: The byte behind the last one.
        text: What takes their place.
        what: What is changed, for the report.
    """

    line: int
    start: int
    end: int
    text: str
    what: str

    def of(self, source: str) -> str:
        """Return the changed source."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutants_of(source: str) -> list[Mutant]:
    """Return all changes of a source, in the order of their places; a few do not parse."""
    places = _Places(source)
    found = {each for node in _code(ast.parse(source)) for each in places.changes(node)}
    return sorted(found, key=lambda each: (each.start, each.end, each.text))


def parses(source: str) -> bool:
    """Say whether a source is valid."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def function_at(source: str, line: int) -> range:
    """Return the lines of the innermost function whose body a line is in; none for no function."""
    found = range(0)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            if line in lines and lines.start > found.start:
                found = lines
    return found


def _code(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield nodes that are run: no annotations, and nothing that is there for type checkers.

    How a dataclass is made is left out, too: nothing depends on `frozen` where nothing is wrong.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            if isinstance(node, ast.ClassDef) and name == "decorator_list":
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [child for child in children if isinstance(child, ast.AST)]


class _Places:
    """Where nodes stand in a source, in bytes."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def changes(self, node: ast.AST) -> Iterator[Mutant]:
        """Yield the changes of one node."""
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for first, second in pairwise(operands):
                yield from self._between(first, second, _COMPARISONS)
        elif isinstance(node, ast.BoolOp):
            words = {"and": "or"} if isinstance(node.op, ast.And) else {"or": "and"}
            for first, second in pairwise(node.values):
                yield from self._between(first, second, words)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            yield from self._between(node.left, node.right, dict([_ARITHMETIC[type(node.op)]]))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._made(node, self._start(node), self._start(node.operand), "", "not dropped")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._whole(node, str(not node.value))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._whole(node, str(node.value + 1))
            yield self._whole(node, f"({node.value - 1})")
        elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
            yield self._whole(node.value, "None")

    def _between(
        self, first: ast.expr, second: ast.expr, words: dict[str, str]
    ) -> Iterator[Mutant]:
        """Yield the change of the operator between two operands."""
        start, end = self._end(first), self._start(second)
        between = self._data[start:end].decode()
        word = between.replace("(", " ").replace(")", " ").strip()
        if word in words:
            at = start + len(between[: between.index(word)].encode())
            what = f"{word} becomes {words[word]}"
            yield self._made(second, at, at + len(word), words[word], what)

    def _whole(self, node: ast.expr, text: str) -> Mutant:
        start, end = self._start(node), self._end(node)
        old = " ".join(self._data[start:end].decode().split())
        return self._made(node, start, end, text, f"{old[:40]} becomes {text}")

    def _made(self, node: ast.expr, start: int, end: int, text: str, what: str) -> Mutant:
        return Mutant(node.lineno, start, end, text, what)

    def _start(self, node: ast.expr) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

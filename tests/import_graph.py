"""Which module of the package imports which, read from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ortkit
from ortkit.graph.io.convert import paused_collector

SOURCE = Path(ortkit.__file__).parent
KERNELS = SOURCE.parent / "custom_ops"
#: A module in a catalog, with or without what is taken from it.
_ENTRY = re.compile(r"[\w.-]+(?::\w+)?")
_FOLDER = re.compile(r"ortkit(?:\.\w+)+\.?")


@cache
def modules() -> dict[str, Path]:
    """Return the files by the names that they are imported by."""
    found = {}
    for root, prefix in ((SOURCE, "ortkit"), (KERNELS, "ortkit.custom_ops")):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((prefix, *parts))] = path
    return found


def package_of(name: str) -> str:
    """Return the package of a module: folders with /, a module beside them by its own name."""
    is_folder = modules()[name].stem == "__init__"
    parts = name.split(".")[1:]
    if not parts:
        return "__init__"
    return "/".join(parts if is_folder or len(parts) == 1 else parts[:-1])


def imports(name: str, *, top_level_only: bool = False) -> Iterator[str]:
    """Yield the modules that a module imports, also those that only a type checker sees."""
    facts = _facts(name)
    yield from facts.top_level_imports if top_level_only else facts.imports


def imports_of_file(path: Path) -> Iterator[str]:
    """Yield what a file outside the package imports; a relative import is left out."""
    for node in ast.walk(tree(path)):
        if not (isinstance(node, ast.ImportFrom) and node.level):
            yield from _imported([node], "", path)


def catalog_entries(name: str) -> Iterator[str]:
    """Yield the modules that a module names in strings, whole or below a folder it names."""
    yield from _facts(name).catalog_entries


def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file.

    None is kept: Python's collector would look at all of them again and again.
    """
    with paused_collector():
        return ast.parse(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Facts:
    """What a module says of others."""

    imports: tuple[str, ...]
    top_level_imports: tuple[str, ...]
    catalog_entries: tuple[str, ...]


@cache
def _facts(name: str) -> _Facts:
    path = modules()[name]
    parsed = tree(path)
    nodes = list(ast.walk(parsed))
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return _Facts(
        tuple(_imported(nodes, name, path)),
        tuple(_imported(parsed.body, name, path)),
        tuple(_entries(texts)),
    )


def _entries(texts: set[str]) -> Iterator[str]:
    folders = {"", *(text.rstrip(".") + "." for text in filter(_FOLDER.fullmatch, texts))}
    for text in filter(_ENTRY.fullmatch, texts):
        tail = text.partition(":")[0].replace("-", "_")
        yield from (folder + tail for folder in folders if folder + tail in modules())


def _imported(nodes: Iterable[ast.AST], name: str, path: Path) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level or None]
            if node.level and path.stem == "__init__":
                above = name.split(".")[: len(above) + 1]
            start = ".".join(above) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            yield from (
                whole if (whole := f"{base}.{each.name}") in modules() else base
                for each in node.names
            )

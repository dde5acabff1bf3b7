"""What the source tree looks like, in numbers: `scripts/house` prints them, a test holds them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tests.import_graph import SOURCE, imports, modules, package_of, tree

#: Folders that are lists: one pass or one command per file.
LISTS = ("passes", "cli")
_KINDS = frozenset({"cpu", "cuda"})


@dataclass(frozen=True)
class Shape:
    """What is counted of the tree."""

    files: Mapping[str, int]
    """Modules by folder."""
    package_cycles: tuple[tuple[str, ...], ...]
    """Top-level packages that import each other."""
    file_cycles: tuple[tuple[str, ...], ...]
    """Modules that import each other, also inside functions and for type checkers only."""
    refusals: tuple[str, ...]
    """Classes that say why something is not done."""
    target_tests: Mapping[str, int]
    """Comparisons of a target's kind with a name, by module outside `targets`."""

    @property
    def largest_folder(self) -> tuple[str, int]:
        """The folder with the most modules that is no list."""
        found = {name: count for name, count in self.files.items() if name not in LISTS}
        name = max(found, key=lambda each: found[each])
        return name, found[name]

    def lines(self) -> Iterator[str]:
        """Yield what to print."""
        name, count = self.largest_folder
        yield f"largest folder that is no list    {name}: {count} modules"
        yield f"cycles between packages           {len(self.package_cycles)}"
        yield from (f"    {' '.join(each)}" for each in self.package_cycles)
        yield f"cycles between modules            {len(self.file_cycles)}"
        yield from (f"    {len(each)}: {', '.join(each[:4])} ..." for each in self.file_cycles)
        yield f"types of refusals                 {len(self.refusals)}: {', '.join(self.refusals)}"
        total, folders = sum(self.target_tests.values()), len(self.target_tests)
        yield f"tests of a target by its name     {total} in {folders} modules outside targets"


@cache
def measure() -> Shape:
    """Count the tree as it lies on disk."""
    files = {
        name: {other for other in imports(name) if other in modules() and other != name}
        for name in modules()
    }
    packages: dict[str, set[str]] = {package_of(name).partition("/")[0]: set() for name in files}
    for name, others in files.items():
        package = package_of(name).partition("/")[0]
        packages[package] |= {package_of(other).partition("/")[0] for other in others} - {package}
    return Shape(
        files=Counter(map(package_of, modules())),
        package_cycles=cycles(packages),
        file_cycles=cycles(files),
        refusals=tuple(sorted(_refusals())),
        target_tests={name: count for name in modules() if (count := _target_tests(name))},
    )


def cycles(graph: Mapping[str, set[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the strongly connected components of several nodes, the largest first."""
    reached = {node: _reached(graph, node) for node in graph}
    found = {
        tuple(sorted(other for other in reached[node] if node in reached[other]))
        for node in graph
        if node in reached[node]
    }
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _refusals() -> Iterator[str]:
    """Yield classes and exceptions whose name speaks of a refusal."""
    for name, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and node.name.startswith(("Refus", "Refusal")):
                yield f"{name.removeprefix('ortkit.')}.{node.name}"


def _target_tests(name: str) -> int:
    """Count the comparisons with "cpu" or "cuda" in a module."""
    path = modules()[name]
    if path.is_relative_to(SOURCE / "targets"):
        return 0
    return sum(
        isinstance(each, ast.Constant) and each.value in _KINDS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare)
        for operand in (node.left, *node.comparators)
        for each in ast.walk(operand)
    )


if __name__ == "__main__":
    print("\n".join(measure().lines()))  # noqa: T201

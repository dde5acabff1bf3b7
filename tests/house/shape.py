"""What the source tree looks like, in numbers: `scripts/house` prints them, a test holds them."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import onnx.defs

from ortkit.operators.catalog import CATALOG
from ortkit.targets.catalog import KINDS
from tests.import_graph import imports, modules, package_of, tree

#: Folders that are lists: one pass or one command per file.
LISTS = ("passes", "cli")
#: Imports that close a cycle and stay, each with its reason: the module, and what it imports.
SANCTIONED = {
    ("ortkit.runtime.session", "ortkit.runtime.memory"): "`Session.memory` returns a report of it",
    ("ortkit.runtime.session", "ortkit.runtime.profiling.recording"): (
        "`Session.profile` returns what records it"
    ),
}
_KINDS = frozenset(KINDS)
#: Sets with fewer names are too short to say the same by more than accident.
_LEAST_NAMES = 4
#: Two sets that have this part of their names in common state one fact twice.
_ALIKE = 0.8


@dataclass(frozen=True)
class Shape:
    """What is counted of the tree."""

    files: Mapping[str, int]
    """Modules by folder."""
    package_cycles: tuple[tuple[str, ...], ...]
    """Top-level packages that import each other."""
    file_cycles: tuple[tuple[str, ...], ...]
    """Modules that import each other, also inside functions and for type checkers only, but for
    `SANCTIONED` imports."""
    refusals: tuple[str, ...]
    """Classes that say why something is not done."""
    target_tests: Mapping[str, int]
    """Decisions by a target's name, by module outside `targets`."""
    operator_sets: Mapping[str, frozenset[str]]
    """Sets of operators that stand outside `operators`, by module and line. What they say is a
    choice or what an implementation can do; facts are asked of the table of operators."""

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
        meant = (" -> ".join(pair) for pair in SANCTIONED)
        yield f"    not counted                   {', '.join(meant)}".replace("ortkit.", "")
        yield from (f"    {len(each)}: {', '.join(each[:4])} ..." for each in self.file_cycles)
        yield f"types of refusals                 {len(self.refusals)}: {', '.join(self.refusals)}"
        total, folders = sum(self.target_tests.values()), len(self.target_tests)
        yield f"tests of a target by its name     {total} in {folders} modules outside targets"
        yield f"tables of operator facts          1: operators, {len(CATALOG)} rows"
        yield f"sets that choose operators        {len(self.operator_sets)}"
        yield f"    that say the same twice       {len(self.repeated_sets)}"
        yield from (f"    {first} and {second}" for first, second in self.repeated_sets)

    @property
    def repeated_sets(self) -> list[tuple[str, str]]:
        """Pairs of sets of operators that have nearly all names in common."""
        return [
            (first, second)
            for (first, one), (second, other) in itertools.combinations(
                self.operator_sets.items(), 2
            )
            if len(one & other) >= _ALIKE * len(one | other)
        ]


@cache
def measure() -> Shape:
    """Count the tree as it lies on disk."""
    files = {name: imported(name) for name in modules()}
    packages: dict[str, set[str]] = {package_of(name).partition("/")[0]: set() for name in files}
    for name, others in files.items():
        package = package_of(name).partition("/")[0]
        packages[package] |= {package_of(other).partition("/")[0] for other in others} - {package}
    refusals: list[str] = []
    tests: dict[str, int] = {}
    sets: dict[str, frozenset[str]] = {}
    for name, path in modules().items():
        parsed, short = tree(path), name.removeprefix("ortkit.")
        refusals += (f"{short}.{each}" for each in _refusals(parsed))
        if count := target_tests(name, parsed):
            tests[name] = count
        if not name.startswith("ortkit.operators."):
            sets |= {f"{short}:{line}": names for line, names in operator_sets(parsed)}
    return Shape(
        files=Counter(map(package_of, modules())),
        package_cycles=cycles(packages),
        file_cycles=cycles(without_sanctioned(files)),
        refusals=tuple(sorted(refusals)),
        target_tests=tests,
        operator_sets=sets,
    )


def imported(name: str) -> set[str]:
    """Return the modules of ours that a module imports."""
    return {other for other in imports(name) if other in modules() and other != name}


def without_sanctioned(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports but those that may close a cycle."""
    return {
        name: {other for other in others if (name, other) not in SANCTIONED}
        for name, others in graph.items()
    }


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


def _refusals(parsed: ast.Module) -> Iterator[str]:
    """Yield classes whose name speaks of a refusal, but for the exception that carries one."""
    for node in ast.walk(parsed):
        is_type = isinstance(node, ast.ClassDef) and "Refus" in node.name
        if is_type and not node.name.endswith("Error"):
            yield node.name


def operator_sets(parsed: ast.Module) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the sets, tuples and lists that hold names of operators and nothing else."""
    known = _operators()
    for node in ast.walk(parsed):
        if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
            names = frozenset(map(_text, node.elts))
            if len(names) >= _LEAST_NAMES and names <= known:
                yield node.lineno, names


@cache
def _operators() -> frozenset[str]:
    standard = {schema.name for schema in onnx.defs.get_all_schemas()}
    return frozenset(standard | {op_type for _, op_type in CATALOG})


def target_tests(name: str, parsed: ast.Module) -> int:
    """Count where a module decides by a target's name.

    That is a comparison or a `case` with a name, a table with a column for each, and a type of its
    own of all names.
    """
    if name.startswith("ortkit.targets."):
        return 0
    return sum(map(_names_compared, ast.walk(parsed)))


def _names_compared(node: ast.AST) -> int:
    match node:
        case ast.Compare():
            return sum(map(_names, (node.left, *node.comparators)))
        case ast.match_case():
            return _names(node.pattern)
        case ast.Dict(keys=keys):
            return len(keys) if {_text(key) for key in keys} >= _KINDS else 0
        case ast.Subscript(value=ast.Name(id="Literal")):
            return int(_names(node.slice) >= len(_KINDS))
    return 0


def _names(node: ast.AST) -> int:
    return sum(_text(each) in _KINDS for each in ast.walk(node))


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


if __name__ == "__main__":
    print("\n".join(measure().lines()))  # noqa: T201

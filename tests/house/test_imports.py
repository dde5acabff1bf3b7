"""Imports go one way through the packages; heavy packages are imported where they are used."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest
from import_table import EVERYWHERE, FACE, KNOWN_EXCEPTIONS, MAY_IMPORT

from tests.import_graph import imports, modules, package_of

#: Only at the place of use: each costs more than everything of ours together.
HEAVY = {"onnxruntime", "tvm", "triton", "torch", "transformers", "onnxscript"}
#: Written as users write theirs, and loaded where what they import is used.
EXAMPLES = "custom_ops/examples"
LIGHT = EVERYWHERE | {"__init__", "__main__", "cli"}
Edges = dict[tuple[str, str], set[tuple[str, str]]]


@cache
def edges() -> Edges:
    """Return (importing module, imported module) by their packages."""
    found: Edges = defaultdict(set)
    for name in modules():
        for other in imports(name):
            if other in modules() and package_of(other) != package_of(name):
                found[package_of(name), package_of(other)].add((name, other))
    return found


def permits(row: str, package: str) -> bool:
    """Say whether a row of `MAY_IMPORT` names a package."""
    return any(
        entry in ("*", package)
        or (entry.endswith("/*") and f"{package}/".startswith(entry.removesuffix("*")))
        for entry in row.split()
    )


def last(name: str) -> str:
    return name.rpartition(".")[2]


def test_every_package_has_a_row() -> None:
    packages = set(map(package_of, modules())) - EVERYWHERE
    assert packages == MAY_IMPORT.keys()
    named = {entry.removesuffix("/*") for row in MAY_IMPORT.values() for entry in row.split()}
    assert named - {"*"} <= packages


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_go_one_way(package: str) -> None:
    for (importing, imported), pairs in edges().items():
        if importing != package or imported in EVERYWHERE:
            continue
        if permits(MAY_IMPORT[package], imported):
            continue
        known = KNOWN_EXCEPTIONS.get((importing, imported), "").split()
        new = sorted(pair for pair in pairs if last(pair[0]) not in known)
        assert not new, f"{importing} must not import {imported}"


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_what_all_import_imports_nothing_else(name: str) -> None:
    assert {imported for importing, imported in edges() if importing == name} <= EVERYWHERE


def test_exceptions_are_still_needed() -> None:
    for (importing, imported), names in KNOWN_EXCEPTIONS.items():
        assert not permits(MAY_IMPORT[importing], imported), (importing, imported)
        doing = {last(name) for name, _ in edges()[importing, imported]}
        assert set(names.split()) == doing, (importing, imported)


def test_others_import_through_the_face() -> None:
    for (importing, imported), pairs in edges().items():
        if "/" not in imported or importing.split("/")[0] == imported.split("/")[0]:
            continue
        face = FACE.get(imported, "").split()
        assert not {last(other) for _, other in pairs} - {*face}, f"{importing} -> {imported}"


def test_faces_are_modules() -> None:
    for package, names in FACE.items():
        inside = {last(name) for name in modules() if package_of(name) == package}
        assert set(names.split()) <= inside, package


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    assert {name: found for name in modules() if (found := imported_too_early(name))} == {}


def imported_too_early(name: str) -> set[str]:
    """Return the packages that a module imports as it is loaded, and should not."""
    if package_of(name).startswith(EXAMPLES) or name.endswith("_kernel"):
        return set()
    found = {other.split(".")[0] for other in imports(name, top_level_only=True)}
    is_light = package_of(name).split("/")[0] in LIGHT
    return found & (HEAVY | {"onnx", "onnx_ir", "numpy", "rich"} if is_light else HEAVY)

"""Which test files a change concerns, by imports: `python -m tests.selection [COMMIT]`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.import_graph import catalog_entries, imports, imports_of_file, modules

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
#: A test file is concerned if this many imports at most lie between it and what is changed.
_DISTANCE = 2
#: Run with every change; they take seconds.
_ALWAYS = ("tests/house/test_imports.py", "tests/house/test_words.py")
#: By the start of a path, the tests of a module that no test file imports; else the folder in
#: tests/ that is called like its package.
_FOLDERS = {
    "ortkit/kernels/triton": "tests/kernels/triton",
    "ortkit/ops": "tests/passes",
    "custom_ops/triton": "tests/kernels/triton",
    "custom_ops/tvm": "tests/kernels",
    "custom_ops": "tests/extend",
}
#: By the start of a path, what is run for files that no Python file imports.
_OTHER = {
    "custom_ops/native/": ("tests/native", "tests/kernels/test_library.py"),
    "docs/guides/deploy": ("tests/native/test_deploy_guide.py", "tests/house"),
    "docs/": ("tests/house",),
    "action.yml": ("tests/distribution",),
    "Dockerfile": ("tests/distribution",),
    "scripts/release": ("tests/distribution",),
    "README": ("tests/house",),
    "tests/golden/": ("tests/golden",),
    "tests/baseline/": ("tests/house",),
}


def changed_files(commit: str = "HEAD") -> list[str]:
    """Return the files that differ from a commit, also those that git does not track yet.

    Raises:
        SystemExit: git knows no such commit.
    """
    commands = (
        ("diff", "--name-only", commit, "--"),
        ("ls-files", "--others", "--exclude-standard"),
    )
    found: set[str] = set()
    for command in commands:
        done = subprocess.run(
            ("git", *command), cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"error: {done.stderr.strip().splitlines()[0]}")
        found.update(done.stdout.splitlines())
    return sorted(found)


def pick_tests(files: Iterable[str]) -> list[str]:
    """Return the test files and folders that a change of these files concerns, nearest first."""
    nearest: dict[str, int] = {}
    for file in files:
        for test, distance in _tests_for(file).items():
            nearest[test] = min(distance, nearest.get(test, distance))
    ordered = sorted(nearest, key=lambda test: (nearest[test], test))
    return [*ordered, *(test for test in _ALWAYS if test not in nearest)]


def _tests_for(file: str) -> dict[str, int]:
    """Return test files with the number of imports between them and a file."""
    path = ROOT / file
    if file.startswith("tests/") and file.endswith(".py"):
        return _tests_for_test(path)
    if (module := _module(path)) is not None:
        found = _tests_for_module(module)
        return found if 0 in found.values() else {**found, _folder(file): 1}
    others = (tests for start, tests in _OTHER.items() if file.startswith(start))
    return dict.fromkeys(next(others, ()), 0)


def _tests_for_test(path: Path) -> dict[str, int]:
    """Return a test file itself, the tests beside a conftest, or those that use a helper."""
    if path.name.startswith("test_"):
        return {_relative(path): 0} if path.exists() else {}
    if path.name == "conftest.py":
        return {_relative(path.parent): 0}
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = {".".join(parts), ".".join(parts[:-1]), path.stem}
    users = (test for test, imported in _test_imports().items() if names & imported)
    return {_relative(test): 1 for test in users}


def _tests_for_module(module: str) -> dict[str, int]:
    """Return the tests that import a module, through few others, or are called like it."""
    distances = {module: 0}
    waiting = [module]
    for each in waiting:
        if distances[each] == _DISTANCE or _is_catalog(each):
            continue
        for user in _importers()[each]:
            if user not in distances:
                distances[user] = distances[each] + 1
                waiting.append(user)
    found: dict[str, int] = {}
    name = module.rpartition(".")[2]
    called = re.compile(rf"(^|_){re.escape(name)}(_|$)")
    for test, imported in _test_imports().items():
        reached = [distances[each] for each in imported if each in distances]
        if called.search(test.stem):
            reached.append(0)
        if reached:
            found[_relative(test)] = min(reached)
    return found


@cache
def _importers() -> defaultdict[str, set[str]]:
    """Return the modules that import a module or name it in a catalog."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name in modules():
        for other in (*imports(name), *catalog_entries(name)):
            found[other].add(name)
    return found


@cache
def _is_catalog(name: str) -> bool:
    """Say whether a module lists others by name: who imports it does not import those."""
    return len(set(catalog_entries(name))) > 2


def _folder(file: str) -> str:
    """Return the folder of the tests that belong to a module."""
    starts = [start for start in _FOLDERS if file.startswith(f"{start}/")]
    if starts:
        return _FOLDERS[max(starts)]
    own = f"tests/{Path(file).parts[1].removesuffix('.py')}"
    return own if (ROOT / own).is_dir() else "tests"


@cache
def _test_imports() -> dict[Path, set[str]]:
    """Return what test files import, also through helpers that they share."""
    return {path: _with_helpers(path) for path in sorted(TESTS.rglob("test_*.py"))}


@cache
def _with_helpers(path: Path) -> set[str]:
    found: set[str] = set()
    for name in imports_of_file(path):
        found.add(name)
        helper = (ROOT / Path(*name.split("."))).with_suffix(".py")
        if name.startswith("tests.") and helper.is_file():
            found |= _with_helpers(helper)
    return found


@cache
def _module(path: Path) -> str | None:
    return next((name for name, file in modules().items() if file == path), None)


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    print("\n".join(pick_tests(changed_files(*sys.argv[1:2]))))  # noqa: T201

"""Imports go one way through the rooms; heavy packages are imported where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ortkit

SOURCE = Path(ortkit.__file__).parent
#: Modules that import nothing of ortkit, and that every room may import.
EVERYWHERE = {"private_folder", "parent", "temporary"}
#: Room -> rooms it may import from, besides itself and those.
MAY_IMPORT = {
    "errors": set(),
    "env": set(),
    "private_folder": set(),
    "parent": set(),
    "temporary": {"errors"},
    "graph": {"errors", "env"},
    "rewrite": {"errors", "env", "graph"},
    "ops": {"errors", "env", "graph", "rewrite"},
    "passes": {"errors", "env", "graph", "rewrite", "ops"},
    "precision": {"errors", "env", "graph", "rewrite", "kernels", "runtime", "verify"},
    "kernels": {"errors", "env"},
    "report": {"errors", "env", "graph", "rewrite", "verify", "measure", "precision"},
    "fusion": {"errors", "env", "graph", "rewrite", "ops", "kernels", "report"},
    "runtime": {"errors", "env", "graph", "kernels"},
    "verify": {"errors", "env", "graph", "kernels", "runtime"},
    "measure": {"errors", "env", "graph", "kernels", "runtime", "verify"},
    "comparison": {"errors", "env", "graph", "kernels", "runtime", "verify", "measure"},
    "trial": {
        "errors",
        "env",
        "graph",
        "runtime",
        "verify",
        "measure",
        "optimization",
        "options",
        "report",
    },
    "tune": {
        "errors",
        "env",
        "graph",
        "kernels",
        "fusion",
        "runtime",
        "measure",
        "optimization",
        "options",
    },
    "provider": {
        "errors",
        "env",
        "graph",
        "rewrite",
        "ops",
        "passes",
        "kernels",
        "fusion",
        "runtime",
        "verify",
        "measure",
        "optimization",
        "options",
    },
    "doctor": {"errors", "env", "kernels", "runtime", "provider"},
    "extend": {
        "errors",
        "env",
        "graph",
        "rewrite",
        "ops",
        "passes",
        "kernels",
        "fusion",
        "runtime",
        "verify",
    },
}
#: Only at the place of use: each costs more than everything of ours together.
HEAVY = {"onnxruntime", "tvm", "triton", "torch", "transformers", "onnxscript"}
LIGHT_ROOMS = (
    "cli", "__main__.py", "__init__.py", "errors.py", "env.py", "private_folder.py", "parent.py",
    "temporary.py",
)  # fmt: skip


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path, *, top_level_only: bool) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room not in MAY_IMPORT:
        return
    for name in imports(path, top_level_only=False):
        if not name.startswith("ortkit."):
            continue
        other = name.split(".")[1]
        allowed = MAY_IMPORT[room] | EVERYWHERE | {room, "custom_ops"}
        assert other in allowed, f"{room} must not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    found = {name.split(".")[0] for name in imports(path, top_level_only=True)}
    assert not found & HEAVY
    if path.relative_to(SOURCE).parts[0] in LIGHT_ROOMS:
        assert not found & {"onnx", "onnx_ir", "numpy", "rich"}

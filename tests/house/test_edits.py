"""Passes and regions edit graphs through `Scope`, which can then undo what they did."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "ortkit"
PLACES = ("passes", "fusion")
#: Methods of onnx-ir that change a graph.
METHODS = frozenset(
    {"insert_after", "insert_before", "register_initializer", "replace_all_uses_with",
     "replace_input_with", "resize_inputs", "resize_outputs"}
)  # fmt: skip
#: Containers of a graph or a node, and what changes them.
CONTAINERS = frozenset({"attributes", "graph", "initializers", "inputs", "outputs", "root"})
CHANGES = frozenset({"add", "append", "clear", "extend", "insert", "pop", "remove", "update"})
#: What is set of nodes and values.
FIELDS = frozenset({"const_value", "doc_string", "domain", "name", "op_type", "shape", "type"})

#: A file's edits that stay, each with its reason.
EXCEPTIONS = {
    "passes/inline_branches.py": (
        "nodes move out of a graph that goes; its names may be in use elsewhere",
        {"value.name", "branch.outputs.clear", "branch.initializers", "branch.remove",
         "value.replace_all_uses_with", "graph.insert_before"},
    ),
    "fusion/kept.py": (
        "the same call of the same body, whose name changes", {"kept_node.node.op_type"}
    ),
    "fusion/regions/lower.py": (
        "a FunctionProto that is no graph yet", {"proto.domain", "proto.name"}
    ),
}  # fmt: skip


def raw_edits(source: str) -> Iterator[str]:
    """Yield what is changed by other ways than those of `Scope`, as the source spells it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, method = node.func.value, node.func.attr
            if method in METHODS or (method in CHANGES and _is_container(owner)):
                yield ast.unparse(node.func)
        for target in _targets(node):
            is_field = isinstance(target, ast.Attribute) and target.attr in FIELDS
            if is_field and ast.unparse(target.value) != "self":
                yield ast.unparse(target)
            elif isinstance(target, ast.Subscript) and _is_container(target.value):
                yield ast.unparse(target.value)


def _is_container(owner: ast.expr) -> bool:
    """Say whether an expression is what a node or a graph holds; local lists are none."""
    if isinstance(owner, ast.Name):
        return owner.id in ("graph", "branch", "root")
    if not isinstance(owner, ast.Attribute) or owner.attr not in CONTAINERS:
        return False
    return ast.unparse(owner.value) != "self"


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else (target,)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def test_graphs_are_edited_through_the_scope() -> None:
    found: dict[str, set[str]] = {}
    for place in PLACES:
        for file in sorted((ROOT / place).rglob("*.py")):
            if edits := set(raw_edits(file.read_text(encoding="utf-8"))):
                found[str(file.relative_to(ROOT))] = edits
    # A missing one is to be taken off the list.
    assert found == {file: edits for file, (_, edits) in EXCEPTIONS.items()}


@pytest.mark.parametrize(
    "line",
    [
        "node.replace_input_with(0, value)",
        "node.graph.remove(node, safe=True)",
        "graph.remove([one, other])",
        "graph.insert_before(node, made)",
        "node.attributes['axis'] = made",
        "node.attributes.pop('axis')",
        "del graph.initializers[name]",
        "scope.root.register_initializer(value)",
        "one.name, other.name = other.name, one.name",
        "graph.outputs[0] = value",
        "value.type = made",
    ],
)
def test_raw_edits_are_found(line: str) -> None:
    assert list(raw_edits(line))


@pytest.mark.parametrize(
    "line",
    [
        "self.name = name",
        "self.inputs.append(one)",
        "found.append(node)",
        "attributes['axis'] = 1",
        "edits.remove(one)",
    ],
)
def test_what_edits_no_graph_is_not(line: str) -> None:
    assert not list(raw_edits(line))

"""Sizes of values that are packed: what reads these reads them from an input of the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.ops.padding.pack import Plan
from ortkit.ops.padding.proof import Proof
from ortkit.rewrite.scope import Scope


def source_of_sizes(proof: Proof) -> ir.Value | None:
    """Return an input [samples, positions, ...] other than the flag, else the flag, or None."""
    inputs = inputs_of_tokens(proof)
    flag = proof.flag.value
    return inputs[0] if inputs else flag if flag.is_graph_input() else None


def inputs_of_tokens(proof: Proof) -> list[ir.Value]:
    """Return the inputs [samples, positions, ...] that are read, but for the flag."""
    return [
        value
        for value in proof.scope.root.inputs
        if value is not proof.flag.value
        and value.uses()
        and (proof.scope.shapes.shape(value) or ())[:2] == proof.flag.grid.sizes
    ]


def reads_sizes(node: ir.Node) -> bool:
    """Say whether a node reads nothing but the sizes of its input."""
    return (node.domain, node.op_type) == ("", "Shape")


def precedes(proof: Proof, plan: Plan) -> bool:
    """Say whether the flag and all masks are computed before what is packed.

    They say which tokens are packed. Sizes of packed values are no matter where an input has them.
    """
    packed = set(plan.nodes)
    has_source = source_of_sizes(proof) is not None
    pending = [proof.flag.value, *(site.mask for site in proof.attention.values())]
    seen: set[ir.Node] = set()
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen:
            continue
        if node in packed:
            return False
        seen.add(node)
        is_size = has_source and reads_sizes(node)
        pending += [each for each in node.inputs if not is_size or _maker(each) not in packed]
    return True


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def write_sizes(proof: Proof, source: ir.Value, node: ir.Node, shape: tuple[object, ...]) -> None:
    """Let sizes of a packed value be those it had before: of tokens, those of an input.

    Args:
        proof: Says where tokens are in the value.
        source: [samples, positions, ...]
        node: The Shape.
        shape: The value's shape before.
    """
    scope, value = proof.scope, node.inputs[0]
    assert value is not None, "a Shape has an input"
    tokens = proof.tokens[value]
    name = f"{node.outputs[0].name}/sizes"
    both = [_size(scope, node, source, axis, name) for axis in (0, 1)]
    sizes = [
        scope.constant(np.array([size if isinstance(size, int) else 1]), f"{name}/const", node)
        for size in shape
    ]
    if tokens.are_merged:
        sizes[tokens.samples.axis] = scope.insert(node, "Mul", both, name=name)[0]
    else:
        sizes[tokens.samples.axis], sizes[tokens.positions.axis] = both
    start, end = (node.attributes.get_int(each, d) for each, d in (("start", 0), ("end", None)))
    chosen = sizes[start:end]
    if not chosen:
        chosen = [scope.constant(np.zeros(0, np.int64), f"{name}/const", node)]
    made = scope.insert(node, "Concat", chosen, {"axis": 0}, name=name)[0]
    scope.replace(node.outputs[0], made)


def _size(scope: Scope, before: ir.Node, source: ir.Value, axis: int, name: str) -> ir.Value:
    sizes = scope.insert(before, "Shape", [source], name=name)[0]
    at = scope.constant(np.array([axis], np.int64), f"{name}/const", before)
    return scope.insert(before, "Gather", [sizes, at], {"axis": 0}, name=name)[0]

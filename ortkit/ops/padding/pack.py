"""What is computed for tokens alone: which nodes, and what they read instead.

Packed nodes stay as they are: they see one sample, whose positions are the tokens that are kept,
of all samples in order. So [samples, positions, ...] becomes [1, tokens, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.ops.padding.proof import Proof
from ortkit.ops.padding.tokens import Step, Tokens
from ortkit.rewrite.scope import Scope

#: Work that grows with tokens.
_PRODUCTS = frozenset(
    {"FusedGemm", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulNBits"}
)
_ELEMENTWISE = where(access="elementwise")
_TARGETS = frozenset({"Expand", "Reshape"})


@dataclass(frozen=True)
class Plan:
    """What is packed, and the shapes that packed nodes are told.

    Args:
        nodes: Packed nodes, in order.
        targets: By node, the shape that it reads as an input.
    """

    nodes: tuple[ir.Node, ...]
    targets: Mapping[ir.Node, tuple[int, ...]]

    @property
    def is_worth_it(self) -> bool:
        """Whether products are among them."""
        return any(node.op_type in _PRODUCTS for node in self.nodes)


def plan_of(proof: Proof) -> Plan:
    """Choose all nodes that compute tokens of which padding is unread."""
    nodes: list[ir.Node] = []
    targets: dict[ir.Node, tuple[int, ...]] = {}
    for node in proof.scope.root:
        step = proof.steps.get(node)
        if step is None or not _is_unread(proof, node) or not _can_pack(proof, step):
            continue
        if step.is_target:
            target = packed_target(proof.scope, node, step.outputs[0])
            if target is None:
                continue
            targets[node] = target
        nodes.append(node)
    return Plan(tuple(_with_products(nodes)), targets)


def _with_products(nodes: list[ir.Node]) -> list[ir.Node]:
    """Return the nodes that hang together with a product: others are not worth a Gather."""
    inside, found = set(nodes), set[ir.Node]()
    pending = [node for node in nodes if node.op_type in _PRODUCTS]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        before = (value.producer() for value in node.inputs if value is not None)
        after = (use.node for value in node.outputs for use in value.uses())
        pending += [each for each in (*before, *after) if each is not None and each in inside]
    return [node for node in nodes if node in found]


def _is_unread(proof: Proof, node: ir.Node) -> bool:
    read = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    return bool(read) and all(value in proof.unread for value in read)


def _can_pack(proof: Proof, step: Step) -> bool:
    """Say whether a node computes kept tokens as it computes all."""
    forms = (*step.inputs.values(), *step.outputs)
    if not all(form.are_separate or form.are_merged for form in forms):
        return False
    sources = [step.node.inputs[index] for index in step.inputs]
    if not all(_can_move(proof, value) for value in (*sources, *step.node.outputs)):
        return False
    if step.is_target and step.node.op_type not in _TARGETS:
        return False
    if step.by_sample:
        return False
    return all(_differs_by_position_alone(proof, step, *each) for each in step.by_position)


def _can_move(proof: Proof, value: ir.Value | None) -> bool:
    """Say whether tokens of a value can be taken and put back: their sizes are known."""
    if value is None:
        return False
    shape, tokens = proof.scope.shapes.shape(value), proof.tokens.get(value)
    return shape is not None and tokens is not None and rest_of(shape, tokens) is not None


def rest_of(shape: tuple[Size, ...], tokens: Tokens) -> tuple[int, ...] | None:
    """Return the sizes of all axes without tokens, None if some are no numbers."""
    axes = (tokens.samples.axis, tokens.positions.axis)
    found = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    numbers = tuple(size for size in found if isinstance(size, int) and size > 0)
    return numbers if len(numbers) == len(found) else None


def _size(proof: Proof, step: Step, index: int, axis: int) -> Size | None:
    value = step.node.inputs[index]
    shape = None if value is None else proof.scope.shapes.shape(value)
    return None if shape is None else shape[axis]


def _differs_by_position_alone(proof: Proof, step: Step, index: int, axis: int) -> bool:
    """Say whether an input has a number for each position, for all samples alike."""
    if step.node.op_type not in _ELEMENTWISE or not step.outputs[0].are_separate:
        return False
    return _size(proof, step, index, axis) == proof.flag.grid.positions


def packed_target(scope: Scope, node: ir.Node, tokens: Tokens) -> tuple[int, ...] | None:
    """Return the shape that a Reshape or Expand reads when it is packed."""
    shape = scope.shapes.shape(node.outputs[0])
    if shape is None or rest_of(shape, tokens) is None:
        return None
    found = [size if isinstance(size, int) else 0 for size in shape]
    if tokens.are_separate:
        found[tokens.samples.axis] = 1
    found[tokens.positions.axis] = 1 if node.op_type == "Expand" else -1
    return tuple(found)

"""Where a chain of blocks enters and leaves NHWC, and the Transposes that are there already."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC


@dataclass(frozen=True)
class Borders:
    """What changes its layout around a chain.

    Args:
        changed: Values that a new Transpose brings into NHWC or out of it.
        spared: Transposes of the graph that nothing reads once the chain is put back: the chain
            reads what they read, or computes what they make.
    """

    changed: tuple[ir.Value, ...]
    spared: tuple[ir.Node, ...] = ()


def borders(blocks: Sequence[Block], *, spares: bool = True) -> Borders:
    """Return what changes its layout around a chain, but for values that have one layout.

    Args:
        blocks: The chain's.
        spares: Whether Transposes of the graph may go away.
    """
    made = {value for block in blocks for value in block.results}
    inside = frozenset(node for block in blocks for node in block.nodes)
    entering = dict.fromkeys(
        value
        for block in blocks
        for value in block.operands
        if value not in made and not (block.is_planar and value is block.source)
    )
    leaving = dict.fromkeys(
        value
        for block in blocks
        if not block.is_pixel
        for value in block.results
        if is_read_outside(value, inside)
    )
    if not spares:
        return Borders(tuple(entering | leaving))
    gone = dict[ir.Node, None]()
    changed = dict[ir.Value, None]()
    for value in entering:
        node = value.producer()
        if node is None or nhwc_of(value) is None:
            changed[value] = None
        elif not is_read_outside(value, inside):
            gone[node] = None
    for value in leaving:
        transposes = to_nhwc(value, inside)
        gone.update(dict.fromkeys(transposes))
        if is_read_outside(value, inside | frozenset(transposes)):
            changed[value] = None
    return Borders(tuple(changed), tuple(gone))


def nhwc_of(value: ir.Value) -> ir.Value | None:
    """Return the NHWC value that this one is a Transpose of, if it is one."""
    node = value.producer()
    return node.inputs[0] if node is not None and _permutes(node, TO_NCHW) else None


def to_nhwc(value: ir.Value, inside: Collection[ir.Node]) -> list[ir.Node]:
    """Return the Transposes to NHWC that read a value, but for those `inside`."""
    producer = value.producer()
    graph = None if producer is None else producer.graph
    return [
        node
        for node in value.consumers()
        if node not in inside
        and node.graph is graph
        and _permutes(node, TO_NHWC)
        and not node.outputs[0].is_graph_output()
    ]


def is_read_outside(value: ir.Value, inside: Collection[ir.Node]) -> bool:
    """Say whether anything reads a result but the nodes `inside`."""
    readers = (use.node for use in value.uses())
    return value.is_graph_output() or not all(node in inside for node in readers)


def _permutes(node: ir.Node, perm: Sequence[int]) -> bool:
    """Say whether a node is the Transpose by a stated permutation."""
    if (node.domain, node.op_type) != ("", "Transpose") or "perm" not in node.attributes:
        return False
    attribute = node.attributes["perm"]
    return not attribute.is_ref() and list(attribute.as_ints()) == list(perm)

"""Joining a 1x1 convolution with the depthwise one that alone reads its result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load

#: Say of what is between both, and of the second one's window, whether they are worth joining.
_PAYS = "ortkit.custom_ops.tvm.conv.expand_depthwise:pays"
_CUDA_PAYS = "ortkit.custom_ops.triton.conv.expand_depthwise:pays"


def join_expansions(
    scope: Scope, blocks: Sequence[Block], separate: frozenset[ir.Node]
) -> list[Block]:
    """Return the blocks with each pair that is worth it as one, in the place of the second.

    Args:
        scope: The graph's.
        blocks: In order.
        separate: 1x1 convolutions that are not joined.
    """
    firsts = {
        block.output: block
        for block in blocks
        if _may_be_first(block) and block.convs[0] not in separate
    }
    joined = {
        block.output: _join(firsts[block.source], block)
        for block in blocks
        if block.source in firsts and _may_be_second(scope, firsts[block.source], block)
    }
    gone = {block.parts[0].output for block in joined.values()}
    return [joined.get(block.output, block) for block in blocks if block.output not in gone]


def _may_be_first(block: Block) -> bool:
    if block.kind == "conv":
        plain = not block.is_planar and block.windows[0].is_point
    else:
        plain = block.kind == "pointwise_conv"
    plain = plain and block.gate is None and not block.extras
    return plain and len(block.output.uses()) == 1 and not block.output.is_graph_output()


def _may_be_second(scope: Scope, first: Block, block: Block) -> bool:
    if block.kind != "depthwise_conv" or block.extras:
        return False
    window = block.windows[0]
    sizes = tuple(scope.shapes.shape(block.source) or ())
    if not scope.traits.is_host:
        source, made = (scope.shapes.shape(value) or () for value in (first.source, block.output))
        depth = source[1] if len(source) == len(made) == 4 else None
        return bool(load(_CUDA_PAYS)(sizes, tuple(made), depth, window))
    image = [size for size in sizes[1:] if isinstance(size, int)]
    if len(image) != 3 or window.dilations != (1, 1):
        return False
    return bool(load(_PAYS)(image, window.kernel, window.strides))


def _join(first: Block, second: Block) -> Block:
    return Block(
        "expand_depthwise",
        first.convs + second.convs,
        first.windows + second.windows,
        first.nodes + second.nodes,
        first.source,
        second.output,
        pooled=second.pooled,
        parts=(first, second),
    )

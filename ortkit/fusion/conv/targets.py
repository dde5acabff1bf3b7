"""What convolution nets are on each kind of target: their blocks, bodies and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.conv import cost, cuda_cost
from ortkit.fusion.conv.bf16 import ProductWriter
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.blocks import CpuBlockFinder
from ortkit.fusion.conv.bodies import BodyWriter, Described
from ortkit.fusion.conv.borders import Borders
from ortkit.fusion.conv.byte_blocks import ByteBlockFinder
from ortkit.fusion.conv.cost import ChainCost
from ortkit.fusion.conv.int8 import describe_quantized
from ortkit.fusion.conv.join import join_expansions
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load

_Nodes = frozenset[ir.Node]


@dataclass(frozen=True)
class ConvTarget:
    """One kind of target.

    Args:
        find: Given a scope, its graph, the nodes that have no kernel and those that should not be
            joined with others: the blocks, in order.
        block_cost: What a block costs before and after.
        border_cost: Nanoseconds that a value takes that changes its layout.
        spares: Whether Transposes of the graph around a chain go away with it.
    """

    find: Callable[[Scope, ir.Graph, _Nodes, _Nodes], list[Block]]
    block_cost: Callable[[Scope, Block], ChainCost]
    border_cost: Callable[[Scope, ir.Value], float]
    spares: bool = False

    def chain_cost(self, scope: Scope, blocks: Sequence[Block], around: Borders) -> ChainCost:
        """Return what `blocks` cost, with what changes its layout around them."""
        costs = [self.block_cost(scope, block) for block in blocks]
        spared = sum(self.border_cost(scope, node.outputs[0]) for node in around.spared)
        changed = sum(self.border_cost(scope, value) for value in around.changed)
        return ChainCost(
            sum(one.before for one in costs) + spared, sum(one.after for one in costs) + changed,
            min(item.least for item in costs),
        )  # fmt: skip


def target_of(scope: Scope) -> ConvTarget:
    """Return what holds for the target of a scope."""
    found = load(scope.traits.convolutions)
    assert isinstance(found, ConvTarget)
    return found


def describe_block(scope: Scope, block: Block) -> Described:
    """Return the signature and weights of a block."""
    if isinstance(block.anchor, ImageAnchor):
        made: Described = load(block.anchor.blocks)(scope, block).describe()
        return made
    if block.kind == "bf16_conv":
        return ProductWriter(scope, block).product()
    if block.kind == "int8_conv":
        return describe_quantized(scope, block)
    return BodyWriter(scope, block).convolutions()


class CudaBlockFinder(ByteBlockFinder):
    """What kernels for CUDA take: half precision, bytes, and poolings of what blocks make."""

    dtypes = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
    other_dtype = "it is not in half precision"
    most_extras = 1
    begins_with_images = False
    needs_sizes = True


def _find(scope: Scope, graph: ir.Graph, refused: _Nodes, separate: _Nodes) -> list[Block]:
    return join_expansions(scope, CpuBlockFinder.find(scope, graph, refused), separate)


def _find_cuda(scope: Scope, graph: ir.Graph, refused: _Nodes, separate: _Nodes) -> list[Block]:
    return join_expansions(scope, CudaBlockFinder.find(scope, graph, refused), separate)


ON_CPU = ConvTarget(_find, cost.block_cost, cost.border_cost, spares=True)
ON_CUDA = ConvTarget(_find_cuda, cuda_cost.block_cost, cuda_cost.border_cost)

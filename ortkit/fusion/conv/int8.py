"""Int8 convolutions as blocks: their sizes and signatures."""

from __future__ import annotations

from dataclasses import replace

from ortkit.analysis.quantization import is_op
from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import Described
from ortkit.fusion.conv.sizes import image_shape
from ortkit.fusion.int8.convolution_chain import ConvolutionChain
from ortkit.fusion.int8.filters import Filters, find_convolution
from ortkit.fusion.int8.products import IntegerProduct, is_rounded
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.rewrite.scope import Scope


def quantized_sizes(scope: Scope, found: IntegerProduct) -> ConvSizes:
    """Return the sizes of an int8 convolution."""
    filters = found.matrix
    assert isinstance(filters, Filters)
    window = filters.window
    return ConvSizes(
        image_shape(scope, found.x), image_shape(scope, found.end), filters.sizes,
        window.strides, window.dilations, window.pads, filters.groups,
    )  # fmt: skip


def sizes_in_block(scope: Scope, block: Block) -> ConvSizes:
    """Return the sizes of the convolution of a block, and how much follows it there."""
    found, node = find_convolution(scope, block.convs[0]), block.convs[0]
    assert isinstance(found, IntegerProduct)
    is_whole = node.op_type == "QLinearConv" or is_rounded(node.outputs[0])
    others = [item for item in block.nodes if item is not node]
    steps = sum(1 for other in others if not is_whole or is_op(other, "QuantizeLinear"))
    return replace(quantized_sizes(scope, found), steps=steps, is_rounded=is_whole)


def describe_quantized(scope: Scope, block: Block) -> Described:
    """Return the signature and weights of a block."""
    found = find_convolution(scope, block.convs[0])
    if not isinstance(found, IntegerProduct) or not isinstance(block.anchor, ConvAnchor):
        raise InternalError("an int8 convolution that is none any more")
    chain = ConvolutionChain.of(scope, found, block.anchor)
    end = next(item for item in chain.ends if item.value is block.output)
    region, signature = chain.region(end)
    constants = (value.const_value for value in region.inputs[len(block.operands) :])
    return Described(
        signature, tuple(constant.numpy() for constant in constants if constant is not None)
    )

"""The signature of an int8 convolution, with what follows it."""

from __future__ import annotations

from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import Described
from ortkit.fusion.int8.filters import ConvolutionChain, find_convolution
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.rewrite.scope import Scope


def describe_quantized(scope: Scope, block: Block) -> Described:
    """Return the signature and weights of a block."""
    found = find_convolution(scope, block.convs[0])
    if not isinstance(found, IntegerProduct):
        raise InternalError("an int8 convolution that is none any more")
    chain = ConvolutionChain.of(scope, found)
    end = next(one for one in chain.ends if one.value is block.output)
    region, signature = chain.region(end)
    constants = (value.const_value for value in region.inputs[len(block.operands) :])
    return Described(signature, tuple(one.numpy() for one in constants if one is not None))

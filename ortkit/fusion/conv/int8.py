"""Int8 convolutions as blocks: their signatures, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ortkit.analysis.quantization import is_op
from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import Described
from ortkit.fusion.int8.filters import ConvolutionChain, Filters, find_convolution
from ortkit.fusion.int8.products import IntegerProduct, is_rounded
from ortkit.rewrite.scope import Scope


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        multiply: A multiply-add.
        depthwise: One of a depthwise convolution.
        output: An element that is rounded and written.
        step: One that goes through a further operator on bytes.
        gather: A place of the filter for a pixel of few channels, or for one of its groups, which
            is copied by itself.
    """

    multiply: float
    depthwise: float
    output: float
    step: float
    gather: float


#: One thread of an EPYC with Zen 4 (VNNI), onnxruntime 1.31.1, layers of resnet50 and
#: mobilenet_v2, 2026-11-28. Further operators of ONNX Runtime are passes over memory.
_RUNTIME = Rates(1 / 223, 0.035, 0.081, 0.147, 1.3)
_OURS = Rates(1 / 229, 0.029, 0.075, 0.09, 0.0)
#: Without a rounding behind it ONNX Runtime's convolution is one of float32, at 57 products a
#: nanosecond; what follows it is pointwise.
_RUNTIME_FLOAT = Rates(1 / 57, 0.05, 0.4, 0.5, 0.0)
_OURS_FLOAT = replace(_OURS, output=0.15, step=0.25)
#: Channels of a pixel up to which ONNX Runtime copies places one by one.
_FEW = 4


def quantized_cost(scope: Scope, block: Block, elements: int) -> tuple[float, float]:
    """Return nanoseconds of an int8 convolution: by ONNX Runtime's kernels, and by ours.

    Args:
        scope: The graph's.
        block: The convolution with what follows it.
        elements: Of the result.
    """
    found = find_convolution(scope, block.convs[0])
    assert isinstance(found, IntegerProduct)
    assert isinstance(found.matrix, Filters)
    node = block.convs[0]
    is_whole = node.op_type == "QLinearConv" or is_rounded(node.outputs[0])
    pair = (_RUNTIME, _OURS) if is_whole else (_RUNTIME_FLOAT, _OURS_FLOAT)
    before, after = (_cost(found.matrix, block, elements, rates) for rates in pair)
    return before, after


def _cost(filters: Filters, block: Block, elements: int, rates: Rates) -> float:
    columns, depth, *kernel = filters.sizes
    taps, is_ours = prod(kernel), rates in (_OURS, _OURS_FLOAT)
    depth = filters.depth if is_ours else depth
    work = taps * (rates.depthwise if filters.is_depthwise else depth * rates.multiply)
    if not filters.is_depthwise and (depth <= _FEW or filters.groups > 1):
        work += taps * rates.gather * filters.groups / columns
    if rates in (_RUNTIME_FLOAT, _OURS_FLOAT):
        steps = sum(1 for node in block.nodes if node not in block.convs)
    else:
        steps = sum(1 for node in block.nodes if is_op(node, "QuantizeLinear"))
    return elements * (work + rates.output + max(0, steps - 1) * rates.step)


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

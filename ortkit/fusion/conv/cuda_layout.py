"""Which layout ONNX Runtime's convolutions should have on CUDA: advice for sessions.

Its CUDA provider gives convolutions NHWC layout with `prefer_nhwc`. cuDNN's kernels for tensor
cores need that layout: without it each convolution of a ResNet50 in float16 transposes its source
and its result (154 of 559 microseconds, H100, onnxruntime-gpu 1.31.1, 2026-11). With
`fuse_conv_bias` in addition, biases and ReLUs become a part of them: 0.56 ms where it was 0.84.
Depthwise convolutions are slower so (EfficientNet-B0 0.98 where it was 0.66). `fuse_conv_bias`
alone fails at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.cost_model import nominal
from ortkit.kernels.metadata import CUDA_OPTIONS_KEY
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Fewer convolutions do not pay for the Transposes around them.
LEAST_CONVOLUTIONS = 4
#: Of all multiply-adds: what convolutions may have that are slower so, and must that gain.
MOST_GROUPED, LEAST_FITTING = 0.02, 0.75
#: Channels that a vector of tensor cores' kernels holds.
_VECTOR = 8
_HALF_DTYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
OPTIONS = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}


@dataclass(frozen=True)
class LayoutAdvice:
    """Session options for the convolutions that ONNX Runtime runs.

    Args:
        options: Of its CUDA provider; none if its defaults are best.
        reason: What decided it, one line.
    """

    options: dict[str, str]
    reason: str


def advise(scopes: Sequence[Scope], excluded: frozenset[ir.Node] = frozenset()) -> LayoutAdvice:
    """Decide by the shapes of the convolutions that are not `excluded` by kernels of ours."""
    found = [convolution for scope in scopes for convolution in _convolutions(scope, excluded)]
    if len(found) < LEAST_CONVOLUTIONS:
        return LayoutAdvice({}, f"{len(found)} convolutions are left to ONNX Runtime")
    total = sum(item.products for item in found)
    grouped = sum(one.products for one in found if one.is_grouped) / total
    fitting = sum(one.products for one in found if one.fits) / total
    if grouped > MOST_GROUPED or sum(one.is_grouped for one in found) * 10 > len(found):
        return LayoutAdvice({}, f"{100 * grouped:.0f} % of the work is in grouped convolutions")
    if fitting < LEAST_FITTING:
        reason = f"{100 * fitting:.0f} % of the work is in half precision over multiples of 8"
        return LayoutAdvice({}, f"only {reason} channels")
    return LayoutAdvice(
        dict(OPTIONS), f"{len(found)} convolutions of which {100 * fitting:.0f} % gain by it"
    )


def record_advice(model: ir.Model, advice: LayoutAdvice) -> None:
    """Let the model's metadata say what a session should tell the provider."""
    model.metadata_props.pop(CUDA_OPTIONS_KEY, None)
    if advice.options:
        text = ",".join(f"{name}={value}" for name, value in sorted(advice.options.items()))
        model.metadata_props[CUDA_OPTIONS_KEY] = text


def beside_convolutions(scope: Scope) -> frozenset[ir.Node]:
    """Return the pointwise nodes that read or feed convolutions.

    ONNX Runtime keeps them in the convolutions' layout, or makes them a part of them; around nodes
    of ours it would transpose in both directions.
    """
    if not isinstance(scope.root, ir.Graph):
        return frozenset()
    found = set()
    for node in scope.root:
        if access_of(node) != "elementwise" or scope.shapes.rank(node.outputs[0]) != 4:
            continue
        makers = {value.producer() for value in node.inputs if value is not None}
        readers = {use.node for value in node.outputs for use in value.uses()}
        if any(item is not None and item.op_type == "Conv" for item in (*makers, *readers)):
            found.add(node)
    return frozenset(found)


@dataclass(frozen=True)
class _Convolution:
    products: int
    is_grouped: bool
    fits: bool


def _convolutions(scope: Scope, excluded: frozenset[ir.Node]) -> Iterator[_Convolution]:
    if not isinstance(scope.root, ir.Graph):
        return
    shapes = scope.shapes
    for node in scope.root:
        if node.op_type != "Conv" or node.domain or node in excluded or node.inputs[1] is None:
            continue
        result, weight = shapes.shape(node.outputs[0]), shapes.shape(node.inputs[1])
        if result is None or weight is None or len(weight) != 4:
            continue
        groups = Site(scope, node, "").int("group", 1)
        sizes = [nominal(size) for size in (*result, *weight[1:])]
        is_half = shapes.dtype(node.outputs[0]) in _HALF_DTYPES
        filters = [nominal(size) for size in weight[:2]]
        fits = is_half and groups == 1 and all(size % _VECTOR == 0 for size in filters)
        yield _Convolution(prod(sizes), groups > 1, fits)

"""Regions of 1-D convolutions on CPUs: the node and what is done to its result by element.

Models of audio have them: vocoders, codecs, speech encoders. ONNX Runtime copies the places under
each filter before it multiplies, for each group of channels; in its blocked layout are only 2-D
ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import onnx_ir as ir

from ortkit.fusion.conv.finder import BlockFinder
from ortkit.fusion.regions.cost_model import CostModel, Prediction, nominal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.fusion.regions.ort_costs import ARITHMETIC_NS, ORT_NS
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

KIND = "conv_1d"
#: Multiply-adds a nanosecond of ONNX Runtime and of ours, by the channels of a group's result, at
#: least: one thread of an EPYC with AVX-512 (Zen 4), onnxruntime 1.31.1, 2026-11-27.
_RATES = (
    (96, 49.0, 49.0), (64, 44.0, 47.0), (32, 39.0, 48.0), (16, 32.0, 48.0), (8, 22.5, 48.0),
    (4, 14.6, 42.0), (2, 8.2, 36.0), (0, 6.4, 25.0),
)  # fmt: skip


def family(search: Search) -> Iterator[Candidate]:
    """Yield a candidate for each 1-D convolution of one graph."""
    scope = search.scope
    finder = BlockFinder(scope, search.graph, frozenset())
    finder.excluded = search.taken
    for node in search.nodes():
        if (node.domain, node.op_type) != ("", "Conv") or not _is_one_axis(scope, node):
            continue
        epilogue, _, _ = finder.epilogue(node)
        lengths = range(len(epilogue), -1, -1)
        found = search.first(([node, *epilogue[:count]] for count in lengths), KIND)
        if not isinstance(found, Candidate):
            region, signature = found
            prediction = _predict(scope, region.nodes)
            found = search.priced(_held(search, region), signature, prediction)
        yield found


def _held(search: Search, region: FusedRegion) -> FusedRegion:
    """Let a session hold the filter where nodes do not stay: it may be as large as a library."""
    weight = region.nodes[0].inputs[1]
    if search.in_place or weight is None or weight.const_value is None:
        return region
    held = search.constant((KIND, weight), f"{weight.name}/held", weight.const_value)
    inputs = [held if value is weight else value for value in region.inputs]
    return replace(region, inputs=tuple(inputs))


def _is_one_axis(scope: Scope, conv: ir.Node) -> bool:
    x, weight = conv.inputs[:2]
    if x is None or weight is None or not scope.is_constant(weight):
        return False
    known = scope.shapes.shape(weight), scope.shapes.shape(conv.outputs[0])
    is_float = scope.shapes.dtype(x) == ir.DataType.FLOAT
    return scope.shapes.rank(x) == 3 and None not in known and is_float


def _predict(scope: Scope, nodes: tuple[ir.Node, ...]) -> Prediction:
    """Return what a convolution and its epilogue take before and after, on one thread."""
    conv, *epilogue = nodes
    calibration, site = load_calibration(), Site(scope, conv, KIND)
    columns, *others = (nominal(size) for size in site.shape(site.input(1)) or ())
    made = prod(nominal(size) for size in site.shape(site.output) or ())
    own = columns // site.int("group", 1)
    theirs, ours = next(rates for least, *rates in _RATES if own >= least)
    before = calibration.node_ns + made * prod(others) / theirs
    after = calibration.kernel_ns + made * prod(others) / ours
    for number, node in enumerate(epilogue):
        # An activation right behind it is a part of its node.
        if number or node.op_type not in RUNTIME_APPLIES:
            before += calibration.node_ns + made * ORT_NS.get(node.op_type, ARITHMETIC_NS)
        after += made * CostModel.operations(node) * calibration.operation_ns
    return Prediction(before, after)

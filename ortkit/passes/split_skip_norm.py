"""split-skip-norm: residual sums and norms as nodes of their own, where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

SKIPS = (
    "com.microsoft::SkipLayerNormalization",
    "com.microsoft::SkipSimplifiedLayerNormalization",
)
EMBED = "com.microsoft::EmbedLayerNormalization"
#: What ONNX Runtime's skip and embedding norms add where no epsilon is given.
SKIP_EPSILON = 1e-12
LAYER_NORM_SINCE, RMS_NORM_SINCE, SHAPE_RANGE_SINCE = 17, 23, 15


@dataclass(frozen=True)
class SplitSkipNorm(NodePass):
    """Keep sums apart from the norms that read them, on the CPU below level 3.

    Before:
        y, , , s = SkipLayerNormalization(x, skip, w, b)
        y = LayerNormalization(Add(x, skip), w, b)              # w: [n]
    After:
        s = Add(x, skip);  y = LayerNormalization(s, w, b)
        y = LayerNormalization(Add(x, skip), w, b)              # w: [1, n]

    ONNX Runtime 1.31.1 runs SkipLayerNormalization on the CPU 4 to 8 times slower than its parts.
    It makes the node at load of a sum and a norm whose scale has one axis. With two it computes
    the same, as fast as with one, and is left alone.

    Skips:
        * Other element types than float32, where sums would be rounded in between.
        * Means and deviations that are read, and the mask index of an embedding.

    Source:
        ONNX Runtime 1.31.1: contrib ops SkipLayerNormalization, EmbedLayerNormalization.
    """

    name: ClassVar[str] = "split-skip-norm"
    ops: ClassVar[Sequence[str]] = (*SKIPS, EMBED, "LayerNormalization")

    def rewrite(self, site: Site) -> None:
        if site.traits.has_fast_skip_norm or site.scope.options.level >= 3:
            return
        if site.node.domain == "":
            _part(site)
            return
        if site.dtype(site.output) != ir.DataType.FLOAT:
            site.miss("a sum in half precision would be rounded before the norm")
            return
        if site.node.op_type == "EmbedLayerNormalization":
            _split_embedding(site)
        else:
            _split_skip(site)


def _part(site: Site) -> None:
    """Give the scale of a norm after a sum a second axis."""
    total, scale = site.input(0), site.input(1)
    add = site.producer(total, "Add")
    if add is None or total is None or not site.only_use(total) or site.rank(total) != 3:
        return
    if site.int("axis", -1) not in (-1, 2) or scale is None or site.rank(scale) != 1:
        return
    array = site.array(scale)
    if array is None:
        site.miss("its scale is not constant: ONNX Runtime takes it into a slower node")
        return
    if site.claim("apart"):
        site.set_input(1, site.constant(array.reshape(1, -1), f"{scale.name}_row"))


def _split_skip(site: Site) -> None:
    is_rms = site.node.op_type.startswith("SkipSimplified")
    weights = [site.input(2), None if is_rms else site.input(3)]
    bias = site.input(3 if is_rms else 4)
    outputs = site.node.outputs
    if any(_is_read(value) for value in outputs[1:3]):
        site.miss("its mean or deviation is read")
        return
    if not _raise(site, is_rms) or not site.claim("parts"):
        return
    total = site.op("Add", [site.input(0), site.input(1)], name=f"{site.output.name}/sum")
    if bias is not None:
        total = site.op("Add", [total, bias], name=f"{site.output.name}/sum")
    if len(outputs) > 3 and _is_read(outputs[3]):
        site.replace(total, outputs[3])
    _finish(site, total, weights, is_rms)


def _split_embedding(site: Site) -> None:
    ids, segments, words, positions, kinds = (site.input(index) for index in range(5))
    weights, given = [site.input(5), site.input(6)], site.input(8)
    outputs = site.node.outputs
    if len(outputs) > 1 and _is_read(outputs[1]):
        site.miss("its mask index is read")
        return
    if site.opset < SHAPE_RANGE_SINCE and not site.scope.require_opset(SHAPE_RANGE_SINCE):
        return
    if not _raise(site, is_rms=False) or not site.claim("embedding"):
        return
    rows = f"{site.output.name}/rows"
    if given is not None:
        row_ids = site.op("Gather", [positions, given], name=rows)
    else:
        # The first rows, one for each token.
        length = site.op("Shape", [ids], {"start": 1, "end": 2}, name=rows)
        zero = site.constant([0])
        row_ids = site.op("Slice", [positions, zero, length, zero], name=rows)
    total = site.op("Add", [site.op("Gather", [words, ids], name=rows), row_ids], name=rows)
    if segments is not None and kinds is not None:
        total = site.op("Add", [total, site.op("Gather", [kinds, segments], name=rows)], name=rows)
    if len(outputs) > 2 and _is_read(outputs[2]):
        site.replace(total, outputs[2])
    _finish(site, total, weights, is_rms=False)


def _raise(site: Site, is_rms: bool) -> bool:
    """Say whether the model may hold the norm that is to be emitted."""
    since = RMS_NORM_SINCE if is_rms else LAYER_NORM_SINCE
    if site.opset >= since or site.scope.require_opset(since) or is_rms:
        return True
    site.miss(f"it needs opset {since}")
    return False


def _finish(site: Site, total: ir.Value, weights: Sequence[ir.Value | None], is_rms: bool) -> None:
    kind = "LayerNormalization"
    if is_rms:
        has_op = site.opset >= RMS_NORM_SINCE
        kind = "RMSNormalization" if has_op else "SimplifiedLayerNormalization"
    inputs = [total, *(value for value in weights if value is not None)]
    attributes = {"axis": -1, "epsilon": site.float("epsilon", SKIP_EPSILON)}
    site.replace(site.op(kind, inputs, attributes))


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()

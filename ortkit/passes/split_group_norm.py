"""split-group-norm: GroupNormalization as what ONNX Runtime has a kernel for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

PER_CHANNEL_SINCE = 21
#: Weights of that many groups are written; models have up to a few thousand channels.
MOST_GROUPS = 1 << 16


@dataclass(frozen=True)
class SplitGroupNorm(NodePass):
    """Write GroupNormalization as InstanceNormalization of reshaped groups, below level 3.

    Before:
        y = GroupNormalization(x, w, b)
    After:
        g = InstanceNormalization(Reshape(x, [0, groups, -1]), ones, zeros)
        y = Add(Mul(Reshape(g, shape of x), w), b)

    ONNX Runtime 1.31.1 has no kernel for the op: it runs its body of 29 nodes, in twice the time.

    Skips:
        * Other element types than float32: ONNX Runtime's CPU kernel has only that.
        * Data of unknown rank.

    Source:
        ONNX GroupNormalization-18 (weights per group) and -21 (weights per channel).
    """

    name: ClassVar[str] = "split-group-norm"
    ops: ClassVar[Sequence[str]] = ("GroupNormalization",)

    def rewrite(self, site: Site) -> None:
        if site.scope.options.level >= 3:
            return
        shape, groups = site.shape(site.input(0)), site.int("num_groups", 0)
        if shape is None or len(shape) < 3 or groups < 1:
            site.miss("the rank of its data is not known")
            return
        if isinstance(shape[1], int) and (shape[1] == 0 or shape[1] % groups):
            site.miss("its groups do not divide the channels")
            return
        if groups > MOST_GROUPS:
            site.miss("it has more groups than weights are written for")
            return
        if site.dtype(site.input(0)) != ir.DataType.FLOAT:
            site.miss("only float32 has an InstanceNormalization kernel")
            return
        if not site.claim("parts"):
            return
        name, x = site.output.name, site.input(0)
        rows = site.op("Reshape", [x, site.constant([0, groups, -1], f"{name}/groups")])
        scale, shift = site.input(1), site.input(2)
        per_channel = site.opset >= PER_CHANNEL_SINCE
        weights: list[ir.Value | None] = [scale, shift]
        if per_channel:
            weights = [
                site.constant(np.full(groups, number, np.float32), f"{name}/plain")
                for number in (1.0, 0.0)
            ]
        attributes = {"epsilon": site.float("epsilon", 1e-5)}
        normed = site.op("InstanceNormalization", [rows, *weights], attributes)
        made = site.op("Reshape", [normed, _shape(site, shape)])
        if per_channel:
            wide = [-1, *(1 for _ in shape[2:])]
            made = site.op("Mul", [made, _column(site, scale, wide)])
            made = site.op("Add", [made, _column(site, shift, wide)])
        site.replace(made)


def _shape(site: Site, shape: Sequence[Size]) -> ir.Value:
    """Return the shape to go back to; the first axis is that of what is reshaped."""
    sizes = [size if isinstance(size, int) else -1 for size in shape[1:]]
    if sizes.count(-1) > 1:
        return site.op("Shape", [site.input(0)])
    return site.constant([0, *sizes], f"{site.output.name}/shape")


def _column(site: Site, value: ir.Value | None, wide: Sequence[int]) -> ir.Value:
    """Return weights along the second axis, [c, 1, ...]."""
    array = site.array(value)
    if array is not None:
        return site.constant(array.reshape(wide), f"{site.output.name}/weight")
    return site.op("Reshape", [value, site.constant(wide)])

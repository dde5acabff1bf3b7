"""fuse-group-norm: Reshape, InstanceNormalization and Reshape back as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import Channels, can_drop, chain_after, drop_chain
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: From this version on scale and bias are one number per channel; before, per group.
PER_CHANNEL_SINCE = 21


@dataclass(frozen=True)
class FuseGroupNorm(NodePass):
    """Recognize GroupNorm as exporters write it, at level 3.

    Before:
        g = InstanceNormalization(Reshape(x, [0, groups, -1]), ones, zeros)
        y = Add(Mul(Reshape(g, shape of x), w), b)             # w, b: [c, 1, 1]
    After:
        y = GroupNormalization(x, w, b)

    Below level 3 the written form stays: ONNX Runtime 1.31.1 has no kernel for the op and takes
    twice the time.

    Skips:
        * Groups that are not the second axis, or that do not divide the channels.
        * Weights that are not constant.
        * A result in between that others read, or that a graph returns.

    Source:
        Wu and He, "Group Normalization" (2018); ONNX GroupNormalization-21.
    """

    name: ClassVar[str] = "fuse-group-norm"
    ops: ClassVar[Sequence[str]] = ("InstanceNormalization",)

    def rewrite(self, site: Site) -> None:
        before = site.producer(site.input(0), "Reshape")
        if site.scope.options.level < 3 or before is None or not site.only_use(site.output):
            return
        x, after = before.inputs[0], next(iter(site.output.consumers()))
        shape, rows = site.shape(x), site.shape(site.input(0))
        if after.op_type != "Reshape" or after.domain or after.graph is not site.node.graph:
            return
        if x is None or shape is None or rows is None or site.shape(after.outputs[0]) != shape:
            return
        channels, groups = (shape[1] if len(shape) > 2 else 0), rows[1]
        if not isinstance(channels, int) or not isinstance(groups, int) or rows[0] != shape[0]:
            site.miss("its groups are not parts of the second axis")
            return
        if channels == 0 or groups == 0 or channels % groups:
            return
        scale, shift = (site.array(value) for value in site.node.inputs[1:3])
        if scale is None or shift is None or not scale.shape == shift.shape == (groups,):
            site.miss("its weights are not constant, or not one number for each group")
            return
        if site.opset < PER_CHANNEL_SINCE:
            if not site.scope.require_opset(PER_CHANNEL_SINCE):
                site.miss(f"it needs opset {PER_CHANNEL_SINCE}")
            elif site.node.graph is not None:
                self.rewrite(site)  # nodes were converted
            return
        back = Site(site.scope, after, self.name)
        self._fuse(site, back, x, Channels(1, len(shape), channels), [scale, shift])

    def _fuse(
        self, site: Site, back: Site, x: ir.Value, channels: Channels, weights: list[np.ndarray]
    ) -> None:
        chain = chain_after(back, channels)
        if chain.far or not can_drop(back, chain):
            chain = type(chain)(type(chain.affine)(np.array(1.0), np.array(0.0)), ())
        repeats = channels.size // weights[0].size
        scale, shift = (np.repeat(each.astype(np.float64), repeats) for each in weights)
        shift = shift * chain.affine.scale + chain.affine.shift
        rounded_pair = [
            rounded(np.broadcast_to(each, scale.shape), weights[0])
            for each in (scale * chain.affine.scale, shift)
        ]
        if rounded_pair[0] is None or rounded_pair[1] is None:
            site.miss("the folded weights would not fit their type")
            return
        if not site.claim("groups"):
            return
        node = back if not chain.near else Site(site.scope, chain.near[-1], self.name)
        inputs = [x, node.constant(rounded_pair[0]), node.constant(rounded_pair[1])]
        attributes = {"num_groups": weights[0].size, "epsilon": site.float("epsilon", 1e-5)}
        made = node.op("GroupNormalization", inputs, attributes, name=f"{node.output.name}/groups")
        drop_chain(back, chain, made)
        if not chain.near:
            back.replace(made)

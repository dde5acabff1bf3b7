"""fuse-conv-activation: FusedConv for a convolution and the activation after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site
from ortkit.targets.cpu import CPU

#: Those that some target fuses; a target that does not says so.
ACTIVATIONS = CPU.fused_conv_activations
#: Below this level what ONNX Runtime does by itself is left to it.
LEVEL = 3


@dataclass(frozen=True)
class FuseConvActivation(NodePass):
    """Let a convolution apply its activation, as one node.

    Before:
        y = Clip(Conv(x, W, b), 0, 6)
    After:
        y = FusedConv<activation = "Clip", activation_params = [0, 6]>(x, W, b)

    ONNX Runtime does the same at load, so this is emitted at level 3 only. A residual Add
    between the two stays: as an input of FusedConv it would keep ONNX Runtime 1.31.1 from its
    blocked convolutions.

    Skips:
        * Results in between that others read, or that a graph returns.
        * Clip with limits that vary; element types other than float32.
        * Dequantized weights, whose group stays whole.

    Source:
        com.microsoft FusedConv-1, as ONNX Runtime 1.31.1 runs it; ONNX Conv-1 ... 22.
    """

    name: ClassVar[str] = "fuse-conv-activation"
    ops: ClassVar[Sequence[str]] = ("Conv",)

    def rewrite(self, site: Site) -> None:
        end = _activation(site)
        if end is None or site.opset < 6:
            return
        if site.scope.options.level < LEVEL:
            site.miss("ONNX Runtime fuses it at load")
            return
        params = _params(site, end)
        if isinstance(params, str):
            site.miss(params)
            return
        last = Site(site.scope, end, self.name)
        if not last.can_replace(site.output) or not site.claim(end.op_type.lower()):
            return
        site.scope.import_domain("com.microsoft", 1)
        attributes = {key: value.value for key, value in site.node.attributes.items()}
        attributes["activation"] = end.op_type
        if params:
            attributes["activation_params"] = params
        made = last.op("FusedConv", site.node.inputs, attributes, domain="com.microsoft")
        last.replace(made)


def _activation(site: Site) -> ir.Node | None:
    """Return the activation that alone reads the convolution."""
    if not site.only_use(site.output):
        if any(node.op_type in ACTIVATIONS for node in site.output.consumers()):
            site.miss("others read the convolution")
        return None
    node, index = next(iter(site.output.uses()))
    fits = node.domain == "" and node.op_type in ACTIVATIONS and index == 0
    return node if fits and node.graph is site.node.graph else None


def _params(site: Site, end: ir.Node) -> tuple[float, ...] | str:
    """Return the activation's parameters, or the reason why it cannot be fused."""
    if site.dtype(site.output) != ir.DataType.FLOAT:
        return "FusedConv takes float32 only"
    if site.producer(site.input(1), "DequantizeLinear") is not None:
        return "its weight is dequantized, and the group stays whole"
    if end.op_type not in site.traits.fused_conv_activations:
        return f"FusedConv has no {end.op_type} on {site.traits.title}"
    at_end = Site(site.scope, end, site.pass_name)
    match end.op_type:
        case "LeakyRelu":
            return (at_end.float("alpha", 0.01),)
        case "HardSigmoid":
            return (at_end.float("alpha", 0.2), at_end.float("beta", 0.5))
        case "Clip":
            return _limits(at_end)
    return ()


def _limits(clip: Site) -> tuple[float, ...] | str:
    lowest = float(np.finfo(np.float32).min)
    if clip.opset < 11:
        return clip.float("min", lowest), clip.float("max", -lowest)
    low = lowest if clip.input(1) is None else clip.scalar(clip.input(1))
    high = -lowest if clip.input(2) is None else clip.scalar(clip.input(2))
    return "the limits of its Clip vary" if low is None or high is None else (low, high)

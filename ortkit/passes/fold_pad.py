"""fold-pad: a Pad goes into the padding of the convolution or pooling that reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Ops whose results are never below zero.
NOT_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")


@dataclass(frozen=True)
class FoldPad(NodePass):
    """Let Conv, AveragePool and MaxPool pad by themselves.

    Before:
        t = Pad(x, [0, 0, 1, 1, 0, 0, 2, 2]);  y = Conv(t, W)
    After:
        y = Conv<pads = [1, 1, 2, 2]>(x, W)

    An AveragePool then counts the padding. A MaxPool pads with the lowest number, which gives
    the same where the Pad does so too, or pads with zero what cannot be negative.

    Skips:
        * Modes other than constant, other numbers, amounts that are unknown or negative, and
          padding of the batch or the channels.
        * auto_pad = SAME_*, which depends on the padded size.
        * Pooling with ceil_mode, dilations or indices, or padding as wide as its kernel: the
          windows would not be the same, or ONNX Runtime refuses it.
        * An AveragePool that already pads and does not count that.
        * A Pad that others read, or that a graph returns.

    Source:
        ONNX Pad-2 ... 25, Conv-1 ... 22, AveragePool-7 ... 22, MaxPool-1 ... 22.
    """

    name: ClassVar[str] = "fold-pad"
    ops: ClassVar[Sequence[str]] = ("Conv", "AveragePool", "MaxPool")

    def rewrite(self, site: Site) -> None:
        pad = site.producer(site.input(0), "Pad")
        if pad is None or pad.graph is not site.node.graph:
            return
        at_pad = Site(site.scope, pad, self.name)
        amounts = _amounts(at_pad, site.rank(pad.outputs[0]))
        reason = _refusal(site, at_pad, amounts)
        if reason is not None or amounts is None:
            site.miss(reason or "the amounts of the Pad are not known")
            return
        if not site.claim("pad"):
            return
        own = site.ints("pads") or (0,) * len(amounts)
        site.set_attribute("auto_pad", None)
        site.set_attribute("pads", [a + b for a, b in zip(own, amounts, strict=True)])
        if site.node.op_type == "AveragePool":
            site.set_attribute("count_include_pad", 1)
        site.set_input(0, pad.inputs[0])


def _amounts(pad: Site, rank: int | None) -> tuple[int, ...] | None:
    """Return the spatial padding, begins then ends; None where it is not only that."""
    if pad.input(1) is None:
        flat = pad.ints("pads") or pad.ints("paddings")
    else:
        array = pad.array(pad.input(1), 64)
        flat = None if array is None else tuple(int(amount) for amount in array.reshape(-1))
    if flat is None:
        return None
    half = len(flat) // 2
    axes: Sequence[int] = range(half)
    if pad.input(3) is not None:
        array = pad.array(pad.input(3), 64)
        if array is None or rank is None:
            return None
        axes, half = [int(axis) % rank for axis in array.reshape(-1)], rank
    begins, ends = [0] * half, [0] * half
    for index, axis in enumerate(axes):
        begins[axis], ends[axis] = flat[index], flat[index + len(flat) // 2]
    if any((*begins[:2], *ends[:2])) or min((*begins, *ends), default=0) < 0:
        return None
    return (*begins[2:], *ends[2:])


def _refusal(site: Site, pad: Site, amounts: tuple[int, ...] | None) -> str | None:
    """Return why the Pad must stay, None if it may go."""
    if amounts is None:
        return "the Pad is not a known one of spatial axes"
    if pad.string("mode", "constant") != "constant":
        return "the Pad does not pad with a constant"
    if not site.only_use(pad.output):
        return "others read the padded value"
    if site.string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return "auto_pad depends on the padded size"
    own = site.ints("pads") or (0,) * len(amounts)
    if len(own) != len(amounts):
        return "its pads are of another rank"
    number = pad.float("value", 0.0) if pad.input(2) is None else pad.scalar(pad.input(2))
    if site.node.op_type == "Conv":
        return None if number == 0 else "a convolution pads with zero"
    total = tuple(a + b for a, b in zip(own, amounts, strict=True))
    return _pooling_refusal(site, pad, total, number)


def _pooling_refusal(
    site: Site, pad: Site, amounts: tuple[int, ...], number: float | None
) -> str | None:
    kernel = site.ints("kernel_shape") or ()
    if 2 * len(kernel) != len(amounts):
        return "its kernel is of another rank"
    if any(amount >= size for amount, size in zip(amounts, (*kernel, *kernel), strict=True)):
        return "ONNX Runtime refuses pooling that pads as much as its kernel is wide"
    if site.int("ceil_mode", 0) or any(step != 1 for step in site.ints("dilations") or ()):
        return "with ceil_mode or dilations the windows would differ"
    if site.node.op_type == "AveragePool":
        if number != 0:
            return "an AveragePool pads with zero"
        if any(site.ints("pads") or ()) and not site.int("count_include_pad", 0):
            return "it does not count its own padding, and would have to count the Pad's"
        return None
    if any(value.uses() or value.is_graph_output() for value in site.node.outputs[1:]):
        return "the indices it returns count the padded elements"
    if number == -math.inf or (number == 0 and _is_not_negative(site, pad.input(0))):
        return None
    return "a MaxPool pads with the lowest number"


def _is_not_negative(site: Site, value: ir.Value | None) -> bool:
    if site.producer(value, *NOT_NEGATIVE) is not None:
        return True
    clip = site.producer(value, "Clip")
    if clip is None:
        return False
    at_clip = Site(site.scope, clip, site.pass_name)
    low = at_clip.scalar(at_clip.input(1)) if len(clip.inputs) > 1 else at_clip.float("min", -1.0)
    return low is not None and low >= 0

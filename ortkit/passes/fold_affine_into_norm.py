"""fold-affine-into-norm: scales and shifts after a norm go into its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import Channels, can_drop, chain_after, drop_chain
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.operators import where
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

ROW_NORMS = tuple(sorted(where(row_norm=True)))


@dataclass(frozen=True)
class FoldAffineIntoNorm(NodePass):
    """Fold Mul, Add, Sub, Div and Neg by constants into the norm before them.

    Before:
        y = Add(Mul(LayerNormalization(x, ones), w), b)        # w, b: [n] or one number
    After:
        y = LayerNormalization(x, w, b)

    Norms that their module gave no weights, or that a runtime's own op computes, get those that
    follow them. The chain is collected in float64 and rounded once.

    Skips:
        * Weights that are not constant; constants that are not per column, or per channel of
          an InstanceNormalization.
        * Shifts after a norm that has none.
        * A result in between that others read, or that a graph returns.

    Source:
        ONNX LayerNormalization-17, RMSNormalization-23, InstanceNormalization-6 ... 22.
    """

    name: ClassVar[str] = "fold-affine-into-norm"
    ops: ClassVar[Sequence[str]] = (*ROW_NORMS, "InstanceNormalization")

    def rewrite(self, site: Site) -> None:
        channels = _channels(site)
        scale = site.array(site.input(1))
        if channels is None or scale is None or scale.size != channels.size:
            return
        chain = chain_after(site, channels)
        if not len(chain):
            return
        has_shift = site.node.op_type in ("LayerNormalization", "InstanceNormalization")
        if chain.affine.shifts and not has_shift:
            site.miss("the norm takes no shift")
            return
        old = None if site.input(2) is None else site.array(site.input(2))
        if site.input(2) is not None and (old is None or old.size != channels.size):
            site.miss("its shift is not constant, or not one number for each channel")
            return
        if not can_drop(site, chain):
            return
        exact = scale.astype(np.float64).reshape(-1) * chain.affine.scale.reshape(-1)
        new_scale = rounded(exact.reshape(scale.shape), scale)
        moved = np.zeros(channels.size) if old is None else old.astype(np.float64).reshape(-1)
        new_shift = rounded(moved * chain.affine.scale + chain.affine.shift, scale)
        if new_scale is None or new_shift is None:
            site.miss("the folded weights would not fit their type")
            return
        if not site.claim("after"):
            return
        name = site.output.name
        inputs: list[ir.Value | None] = [site.input(0), site.constant(new_scale, f"{name}/scale")]
        if has_shift and (old is not None or new_shift.any()):
            like = new_shift if old is None else new_shift.reshape(old.shape)
            inputs.append(site.constant(like, f"{name}/shift"))
        _set_weights(site, inputs)
        drop_chain(site, chain, site.output)


def _channels(site: Site) -> Channels | None:
    """Return where the weights are: one number for each channel."""
    shape = site.shape(site.input(0))
    if shape is None:
        return None
    is_row = site.node.op_type in ROW_NORMS
    axis = len(shape) - 1 if is_row else 1
    if not 0 <= axis < len(shape) or (is_row and site.int("axis", -1) not in (-1, axis)):
        return None
    size = shape[axis]
    return Channels(axis, len(shape), size) if isinstance(size, int) else None


def _set_weights(site: Site, inputs: Sequence[ir.Value | None]) -> None:
    site.scope.set_inputs(site.node, [*inputs, *site.node.inputs[len(inputs) :]])

"""fold-affine-into-conv: scales and shifts around a convolution go into its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.rewrite.affine import (
    Channels,
    can_drop,
    chain_after,
    chain_before,
    drop_chain,
    growth,
    neighbours,
    rounded,
)
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class FoldAffineIntoConv(NodePass):
    """Fold BatchNormalization, Mul, Add, Sub, Div and Neg by constants into a convolution.

    Before:
        y = BatchNormalization(Conv(Mul(x, c), W, b), gamma, beta, mean, variance)
    After:
        y = Conv(x, W', b')

    A whole chain is collected in float64 and rounded once. A factor that is one number is found
    beyond Reshape, Transpose and their like as well.

    Skips:
        * BatchNormalization in training mode; constants that are not per channel.
        * A result in between that others read, or that a graph returns.
        * A shift before a convolution that pads, and before every ConvTranspose: at the border
          it would not be the same everywhere.
        * A factor before it that follows a product: it may be a part of GELU or a norm.
        * Weights that are not constant (dequantized ones are not).
        * A weight shared with other nodes, if its changed copy exceeds `limit` bytes.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks" (2018), section 3.2; ONNX
        Conv-1 ... 22, ConvTranspose-1 ... 22, BatchNormalization-7 ... 15.
    """

    name: ClassVar[str] = "fold-affine-into-conv"
    ops: ClassVar[Sequence[str]] = ("Conv", "ConvTranspose")

    limit: int = 1 << 20
    """Bytes by which the model may grow where a weight is shared."""

    def rewrite(self, site: Site) -> None:
        form = _form(site)
        if form is not None and not self._fold_after(site, form):
            self._fold_before(site, form)

    def _fold_after(self, site: Site, form: _Form) -> bool:
        chain = chain_after(site, Channels(1, form.rank, form.outputs))
        if not len(chain) or not can_drop(site, chain):
            return False
        bias = _bias(site, form)
        if bias is None:
            return False
        scale = np.broadcast_to(chain.affine.scale, form.outputs)
        weight = form.by_output(scale) if chain.affine.scales else None
        if not self._store(site, form, weight, scale * bias + chain.affine.shift, "after"):
            return False
        drop_chain(site, chain, site.output)
        return True

    def _fold_before(self, site: Site, form: _Form) -> None:
        channels = Channels(1, form.rank, form.inputs)
        chain, source = chain_before(site, channels, shifts=form.pads_nothing)
        if chain.blocked:
            site.miss(chain.blocked)
        if not chain.near or (bias := _bias(site, form)) is None:
            return
        scale = np.broadcast_to(chain.affine.scale, form.inputs)
        weight = form.by_input(scale) if chain.affine.scales else None
        shift = bias + form.reach(np.broadcast_to(chain.affine.shift, form.inputs))
        if self._store(site, form, weight, shift, "before"):
            site.set_input(0, source)

    def _store(
        self, site: Site, form: _Form, weight: np.ndarray | None, bias: np.ndarray, rule: str
    ) -> bool:
        """Claim, and give the convolution these exact weights; False if it cannot have them."""
        new_weight = None if weight is None else rounded(weight, form.data)
        new_bias = rounded(bias, form.data)
        if new_bias is None or (weight is not None and new_weight is None):
            site.miss("the folded weights would not fit their type")
            return False
        if new_weight is not None and growth(form.weight, new_weight) > self.limit:
            site.miss(f"others read its weight, and a copy adds {new_weight.nbytes:,} bytes")
            return False
        if not site.claim(rule):
            return False
        if new_weight is not None:
            site.set_input(1, site.constant(new_weight, f"{form.weight.name}/folded"))
        if bias.any() or site.input(2) is not None:
            site.node.resize_inputs(3)
            site.set_input(2, site.constant(new_bias, f"{site.output.name}/bias"))
        return True


@dataclass(frozen=True)
class _Form:
    """A convolution's constant weight, with its groups as an axis of its own."""

    weight: ir.Value
    data: np.ndarray
    groups: int
    transposed: bool
    pads_nothing: bool

    @property
    def rank(self) -> int:
        return self.data.ndim

    @property
    def outputs(self) -> int:
        return int(self.data.shape[1] * self.groups if self.transposed else self.data.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.data.shape[0] if self.transposed else self.data.shape[1] * self.groups)

    def _grouped(self) -> np.ndarray:
        """Return the weight as float64 [groups, first, second, kernel]."""
        shape = self.data.shape
        split = (self.groups, shape[0] // self.groups, shape[1], -1)
        return np.asarray(self.data, np.float64).reshape(split)

    def by_output(self, scale: np.ndarray) -> np.ndarray:
        """Return the weight with output channel i multiplied by `scale[i]`."""
        wide = (self.groups, 1, -1, 1) if self.transposed else (self.groups, -1, 1, 1)
        return np.reshape(self._grouped() * scale.reshape(wide), self.data.shape)

    def by_input(self, scale: np.ndarray) -> np.ndarray:
        """Return the weight with input channel i multiplied by `scale[i]`."""
        wide = (self.groups, -1, 1, 1) if self.transposed else (self.groups, 1, -1, 1)
        return np.reshape(self._grouped() * scale.reshape(wide), self.data.shape)

    def reach(self, shift: np.ndarray) -> np.ndarray:
        """Return what a constant `shift[i]` in input channel i adds to each output channel."""
        if self.transposed:
            return np.zeros(self.outputs)
        shifts = shift.reshape(self.groups, -1)
        return np.asarray(np.einsum("goik,gi->go", self._grouped(), shifts)).reshape(-1)


def _form(site: Site) -> _Form | None:
    """Read the convolution's weight, None where it is not constant."""
    weight = site.input(1)
    data = site.array(weight)
    if weight is None or data is None:
        if neighbours(site, "BatchNormalization"):
            site.miss("its weight is not constant")
        return None
    transposed = site.node.op_type == "ConvTranspose"
    groups = site.int("group", 1)
    if data.ndim < 3 or data.shape[0] % groups:
        return None
    pads = any(site.ints("pads") or ()) or site.string("auto_pad", "NOTSET").startswith("SAME")
    return _Form(weight, data, groups, transposed, not pads and not transposed)


def _bias(site: Site, form: _Form) -> np.ndarray | None:
    """Return the bias as float64 [outputs], None where it is not constant."""
    value = site.input(2)
    if value is None:
        return np.zeros(form.outputs)
    data = site.array(value, form.outputs)
    if data is None:
        site.miss("its bias is not constant")
        return None
    return np.asarray(data, np.float64)

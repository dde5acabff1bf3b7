"""fold-affine-into-conv: scales and shifts around a convolution go into its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import (
    Channels,
    can_drop,
    chain_after,
    chain_before,
    constant_shape,
    drop_chain,
    growth,
    neighbours,
    why_separate,
)
from ortkit.analysis.weight_arithmetic import rounded, scaled
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
        if not len(chain):
            if reason := why_separate(site):
                site.miss(reason)
            return False
        if not can_drop(site, chain):
            return False
        bias = _bias(site, form)
        if bias is None:
            return False
        scale = np.broadcast_to(chain.affine.scale, form.outputs)
        weight = form.by_output(scale) if chain.affine.scales else form.data
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
        weight = form.by_input(scale) if chain.affine.scales else form.data
        shift = bias + form.reach(np.broadcast_to(chain.affine.shift, form.inputs))
        if self._store(site, form, weight, shift, "before"):
            site.set_input(0, source)

    def _store(
        self, site: Site, form: _Form, weight: np.ndarray | None, bias: np.ndarray, rule: str
    ) -> bool:
        """Claim, and give the convolution these weights; False if it cannot have them."""
        new_bias = rounded(bias, form.data)
        if new_bias is None or weight is None:
            site.miss("the folded weights would not fit their type")
            return False
        is_new = weight is not form.data
        if is_new and growth(form.weight, weight) > self.limit:
            site.miss(f"others read its weight, and a copy adds {weight.nbytes:,} bytes")
            return False
        if not site.claim(rule):
            return False
        if is_new:
            site.set_input(1, site.constant(weight, f"{form.weight.name}/folded"))
        if bias.any() or site.input(2) is not None:
            site.set_input(2, site.constant(new_bias, f"{site.output.name}/bias"))
        return True


@dataclass(frozen=True)
class _Form:
    """A convolution's constant weight, with its groups as an axis of its own."""

    site: Site
    weight: ir.Value
    shape: tuple[int, ...]
    groups: int
    transposed: bool
    pads_nothing: bool

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def outputs(self) -> int:
        return self.shape[1] * self.groups if self.transposed else self.shape[0]

    @property
    def inputs(self) -> int:
        return self.shape[0] if self.transposed else self.shape[1] * self.groups

    @cached_property
    def data(self) -> np.ndarray:
        """The weight; read only when something folds."""
        data = self.site.array(self.weight)
        assert data is not None, "the weight is constant"
        return data

    def _grouped(self) -> np.ndarray:
        """Return the weight as [groups, first, second, kernel]."""
        return self.data.reshape(self.groups, self.shape[0] // self.groups, self.shape[1], -1)

    def by_output(self, scale: np.ndarray) -> np.ndarray | None:
        """Return the weight with output channel i multiplied by `scale[i]`."""
        wide = (self.groups, 1, -1, 1) if self.transposed else (self.groups, -1, 1, 1)
        made = scaled(self._grouped(), scale.reshape(wide))
        return None if made is None else made.reshape(self.shape)

    def by_input(self, scale: np.ndarray) -> np.ndarray | None:
        """Return the weight with input channel i multiplied by `scale[i]`."""
        wide = (self.groups, -1, 1, 1) if self.transposed else (self.groups, 1, -1, 1)
        made = scaled(self._grouped(), scale.reshape(wide))
        return None if made is None else made.reshape(self.shape)

    def reach(self, shift: np.ndarray) -> np.ndarray:
        """Return what a constant `shift[i]` in input channel i adds to each output channel."""
        if self.transposed or not shift.any():
            return np.zeros(self.outputs)
        weight = np.asarray(self._grouped(), np.float64)
        shifts = shift.reshape(self.groups, -1)
        return np.asarray(np.einsum("goik,gi->go", weight, shifts)).reshape(-1)


def _form(site: Site) -> _Form | None:
    """Look at the convolution's weight, None where it is not constant."""
    weight, shape = site.input(1), constant_shape(site, site.input(1))
    if weight is None or shape is None:
        if neighbours(site, "BatchNormalization"):
            site.miss("its weight is not constant")
        return None
    transposed = site.node.op_type == "ConvTranspose"
    groups = site.int("group", 1)
    if len(shape) < 3 or groups < 1 or shape[0] % groups:
        return None
    pads = any(site.ints("pads") or ()) or site.string("auto_pad", "NOTSET").startswith("SAME")
    return _Form(site, weight, shape, groups, transposed, not pads and not transposed)


def _bias(site: Site, form: _Form) -> np.ndarray | None:
    """Return the bias as float64 [outputs], None where it is not constant."""
    value = site.input(2)
    if value is None:
        return np.zeros(form.outputs)
    data = site.array(value, form.outputs)
    if data is None or data.shape != (form.outputs,):
        site.miss("its bias is not constant")
        return None
    return np.asarray(data, np.float64)

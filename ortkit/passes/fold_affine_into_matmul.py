"""fold-affine-into-matmul: scales and shifts around MatMul and Gemm go into their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import (
    Chain,
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

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class FoldAffineIntoMatmul(NodePass):
    """Fold BatchNormalization, Mul, Add, Sub, Div and Neg by constants into MatMul and Gemm.

    Before:
        y = Mul(Add(MatMul(x, W), b), c)          # b, c: [n] or one number
    After:
        y = Add(MatMul(x, W * c), b * c)          # Gemm: one node

    A whole chain is collected in float64 and rounded once. A factor that is one number is found
    beyond Reshape, Transpose and their like as well: the scale of attention scores, for one.

    Skips:
        * BatchNormalization in training mode; constants that are not per column.
        * A result in between that others read, or that a graph returns.
        * A factor before it that follows a product: it may be a part of GELU or a norm.
        * Weights that are not constant (dequantized ones are not) or stand on the left.
        * A shift before a MatMul with no bias to take it, if the product is wider than its input.
        * A weight shared with other nodes, if its changed copy exceeds `limit` bytes.

    Source:
        (x s + t) W = x (s W) + t W; ONNX MatMul-1 ... 13, Gemm-7 ... 13.
    """

    name: ClassVar[str] = "fold-affine-into-matmul"
    ops: ClassVar[Sequence[str]] = ("MatMul", "Gemm")

    limit: int = 1 << 20
    """Bytes by which the model may grow where a weight is shared."""

    def rewrite(self, site: Site) -> None:
        form = _form(site)
        if form is not None and not self._fold_after(site, form):
            self._fold_before(site, form)

    def _fold_after(self, site: Site, form: _Form) -> bool:
        chain = chain_after(site, _columns(site, form))
        if _is_settled(form, chain):
            if not len(chain) and (reason := why_separate(site)):
                site.miss(reason)
            return False
        if not can_drop(site, chain):
            return False
        bias = _bias(site, form)
        if bias is None:
            return False
        weight = form.by_column(chain.affine.scale) if chain.affine.scales else form.data
        new = self._new(
            site, form, weight, bias * chain.affine.scale + chain.affine.shift, "after"
        )
        if new is None:
            return False
        end = site.output
        _set_weight(site, form, new)
        if form.is_gemm:
            _set_bias(site, new)
        elif new.bias.any():
            last = Site(site.scope, chain.near[-1], self.name)
            end = last.op("Add", [end, last.constant(new.bias)], name=f"{site.output.name}/bias")
        drop_chain(site, chain, end)
        if end is not site.output and new.weight is not None:
            site.scope.give_up_name(site.output)
        return True

    def _fold_before(self, site: Site, form: _Form) -> None:
        shape = site.shape(site.input(0))
        if shape is None or form.transposes_left:
            return
        channels = Channels(len(shape) - 1, len(shape), form.rows)
        chain, source = chain_before(site, channels, shifts=True)
        if chain.blocked:
            site.miss(chain.blocked)
        if not chain.near:
            return
        if not form.is_gemm and chain.affine.shifts and not _takes_shift(site, form):
            site.miss("it has no bias to take the shift, and its product is wider than its input")
            return
        bias = _bias(site, form)
        if bias is None:
            return
        weight = form.by_row(chain.affine.scale) if chain.affine.scales else form.data
        new = self._new(site, form, weight, bias + form.reach(chain.affine.shift), "before")
        if new is None:
            return
        _set_weight(site, form, new)
        if form.is_gemm:
            _set_bias(site, new)
            site.set_input(0, source)
        elif not new.bias.any():
            site.set_input(0, source)
        else:
            product = site.op("MatMul", [source, site.input(1)])
            site.replace(site.op("Add", [product, site.constant(new.bias)]))

    def _new(
        self, site: Site, form: _Form, weight: np.ndarray | None, bias: np.ndarray, rule: str
    ) -> _New | None:
        """Round the bias and claim; None if the node cannot have these weights."""
        new_bias = rounded(bias, form.data)
        if new_bias is None or weight is None:
            site.miss("the folded weights would not fit their type")
            return None
        is_new = weight is not form.data
        if is_new and growth(form.weight, weight) > self.limit:
            site.miss(f"others read its weight, and a copy adds {weight.nbytes:,} bytes")
            return None
        return _New(weight if is_new else None, new_bias) if site.claim(rule) else None


@dataclass(frozen=True)
class _New:
    """Rounded weights; `weight` None: it stays as it is."""

    weight: np.ndarray | None
    bias: np.ndarray


@dataclass(frozen=True)
class _Form:
    """A constant right operand, [rows, columns] or, transposed, [columns, rows]."""

    site: Site
    weight: ir.Value
    shape: tuple[int, ...]
    is_gemm: bool
    alpha: float = 1.0
    beta: float = 1.0
    transposes_left: bool = False
    transposed: bool = False

    @property
    def rows(self) -> int:
        return self.shape[1 if self.transposed else 0]

    @property
    def columns(self) -> int:
        return self.shape[0 if self.transposed else 1]

    @cached_property
    def data(self) -> np.ndarray:
        """The weight; read only when something folds."""
        data = self.site.array(self.weight)
        assert data is not None, "the weight is constant"
        return data

    def by_column(self, scale: np.ndarray) -> np.ndarray | None:
        """Return the weight with column i multiplied by `scale[i]`."""
        wide = scale.reshape(-1, 1) if self.transposed and scale.ndim else scale
        return scaled(self.data, wide)

    def by_row(self, scale: np.ndarray) -> np.ndarray | None:
        """Return the weight with row i multiplied by `scale[i]`."""
        wide = scale.reshape(-1, 1) if scale.ndim and not self.transposed else scale
        return scaled(self.data, wide)

    def reach(self, shift: np.ndarray) -> np.ndarray:
        """Return what a constant `shift[i]` in input i adds to each column."""
        if not shift.any():
            return np.zeros(())
        matrix = np.asarray(self.data, np.float64)
        row = np.broadcast_to(shift, self.rows)
        return self.alpha * (matrix @ row if self.transposed else row @ matrix)


def _form(site: Site) -> _Form | None:
    """Look at the right operand, None where it is no constant matrix of floats."""
    weight, shape = site.input(1), constant_shape(site, site.input(1))
    if weight is None or shape is None:
        if neighbours(site, "BatchNormalization"):
            site.miss("its right operand is not constant")
        return None
    if len(shape) != 2 or site.dtype(weight) not in FLOATS:
        return None
    if site.node.op_type == "MatMul":
        return _Form(site, weight, shape, is_gemm=False)
    return _Form(
        site,
        weight,
        shape,
        True,
        site.float("alpha", 1.0),
        site.float("beta", 1.0),
        bool(site.int("transA", 0)),
        bool(site.int("transB", 0)),
    )


def _bias(site: Site, form: _Form) -> np.ndarray | None:
    """Return the bias as float64 [columns] or [], None where it is not constant."""
    value = site.input(2)
    if value is None:
        return np.zeros(())
    data = site.array(value, form.columns)
    row = None if data is None else Channels(1, 2, form.columns).per_channel(data)
    if row is None:
        site.miss("its bias is not constant, or not one row")
        return None
    return row * form.beta


def _is_settled(form: _Form, chain: Chain) -> bool:
    """Say whether nothing is left to fold; a MatMul's bias stays as one Add."""
    if len(chain) == 1 and chain.near and not form.is_gemm:
        return chain.near[0].op_type in ("Add", "Sub")
    return not len(chain)


def _takes_shift(site: Site, form: _Form) -> bool:
    if form.columns <= form.rows:
        return True
    return bool(chain_after(site, _columns(site, form)).near)


def _columns(site: Site, form: _Form) -> Channels:
    shape = site.shape(site.output)
    if shape is None:
        return Channels(0, None, form.columns)
    return Channels(len(shape) - 1, len(shape), form.columns)


def _set_weight(site: Site, form: _Form, new: _New) -> None:
    if new.weight is not None:
        site.set_input(1, site.constant(new.weight, f"{form.weight.name}/folded"))


def _set_bias(site: Site, new: _New) -> None:
    if not new.bias.any() and site.input(2) is None:
        return
    if "beta" in site.node.attributes:
        site.set_attribute("beta", 1.0)
    site.set_input(2, site.constant(new.bias, f"{site.output.name}/bias"))

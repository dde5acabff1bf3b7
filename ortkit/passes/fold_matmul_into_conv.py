"""fold-matmul-into-conv: one convolution for it and the product of the tokens that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.pointwise_conv import is_pointwise, with_channels
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class FoldMatmulIntoConv(NodePass):
    """Multiply a 1x1 convolution's weight by the matrix of the tokens that become its image.

    Before:
        t = Transpose<perm = [0, 2, 1]>(Add(MatMul(x, V), c))     # V: [k, j]
        y = Conv(Reshape(t, [n, j, h, w]), W, b)                  # W: [f, j, 1, 1]
    After:
        y = Conv(Reshape(Transpose<perm = [0, 2, 1]>(x), [n, k, h, w]), W Vt, W c + b)

    The products of the weights are taken in float64 and rounded once.

    Skips:
        * k f >= k j + j f: a narrow middle makes the pair less work than one.
        * Values in between that others read; weights and biases that are not constant.
        * Groups, strides, padding, and a Reshape that does more than split the tokens.

    Source:
        W (x V + c) + b = x (V W) + (W c + b), for each pixel.
    """

    name: ClassVar[str] = "fold-matmul-into-conv"
    ops: ClassVar[Sequence[str]] = ("Conv",)

    def rewrite(self, site: Site) -> None:
        reshape = site.producer(site.input(0), "Reshape")
        transposed = None if reshape is None else site.producer(reshape.inputs[0], "Transpose")
        if reshape is None or transposed is None:
            return
        total = site.producer(transposed.inputs[0], "Add", "MatMul")
        product, offset = _product(site, total)
        if product is None or total is None or not is_pointwise(site):
            return
        between = {node.outputs[0] for node in (product, total, transposed, reshape)}
        if not all(site.only_use(value) for value in between):
            site.miss("others read a value in between")
            return
        matrix, weight = site.array(product.inputs[1]), site.array(site.input(1))
        bias = _row(site, site.input(2)), _row(site, offset)
        if (
            matrix is None
            or weight is None
            or matrix.ndim != 2
            or bias[0] is None
            or bias[1] is None
        ):
            site.miss("a weight or a bias is not constant")
            return
        (k, j), f = matrix.shape, weight.shape[0]
        if weight.shape[1] != j or not _splits_tokens(site, transposed, reshape, j):
            return
        if k * f >= k * j + j * f:
            site.miss(f"one product of {k} x {f} is more work than {k} x {j} and {j} x {f}")
            return
        wide = np.asarray(weight, np.float64).reshape(f, j)
        joined = rounded(wide @ np.asarray(matrix, np.float64).T, weight)
        offsets = rounded(wide @ np.broadcast_to(bias[1], j) + bias[0], weight)
        if joined is None or offsets is None:
            site.miss("the product of the weights would not fit their type")
            return
        if not site.claim("product"):
            return
        image = site.op("Transpose", [product.inputs[0]], {"perm": [0, 2, 1]})
        sizes = reshape.inputs[1]
        assert sizes is not None, "a Reshape has a shape"
        rank = weight.ndim
        attributes = {name: value.value for name, value in reshape.attributes.items()}
        image = site.op("Reshape", [image, with_channels(site, sizes, k, rank)], attributes)
        filters = site.constant(
            joined.reshape(f, k, *weight.shape[2:]), f"{site.output.name}/weight"
        )
        site.set_input(1, filters)
        if offsets.any() or site.input(2) is not None:
            shape = np.broadcast_to(offsets, f)
            site.set_input(
                2, site.constant(np.ascontiguousarray(shape), f"{site.output.name}/bias")
            )
        site.set_input(0, image)


def _product(site: Site, total: ir.Node | None) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the MatMul and what is added to it."""
    if total is None or total.op_type == "MatMul":
        return total, None
    for index in (0, 1):
        product = site.producer(total.inputs[index], "MatMul")
        if product is not None:
            return product, total.inputs[1 - index]
    return None, None


def _row(site: Site, value: ir.Value | None) -> np.ndarray | None:
    """Return a bias as float64 [channels] or [1], None where it is not constant or no row."""
    if value is None:
        return np.zeros(1)
    data = site.array(value)
    if data is None or data.size != (data.shape[-1] if data.ndim else 1):
        return None
    return np.asarray(data, np.float64).reshape(-1)


def _splits_tokens(site: Site, transposed: ir.Node, reshape: ir.Node, channels: int) -> bool:
    """Say whether [n, h w, j] becomes [n, j, h, w]."""
    if Site(site.scope, transposed, site.pass_name).perm() != (0, 2, 1):
        return False
    before, after = site.shape(transposed.outputs[0]), site.shape(reshape.outputs[0])
    if before is None or after is None:
        return False
    return len(after) > 2 and before[:2] == after[:2] and after[1] == channels

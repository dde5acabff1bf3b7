"""merge-linear: one matrix product for two with constant matrices, where that is less work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import Channels
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class MergeLinear(NodePass):
    """Multiply the weights of two MatMuls or two Gemms in a row.

    Before:
        y = MatMul(MatMul(x, V), W)                 # V: [k, j], W: [j, n]
    After:
        y = MatMul(x, V W)

    The product of the weights is taken in float64 and rounded once.

    Skips:
        * k n >= k j + j n: a narrow middle makes the pair less work, and smaller, than one.
        * A result in between or weights that others read; biases that are not one row.
        * A MatMul and a Gemm: what stands between them is folded first.

    Source:
        (x V + c) W + b = x (V W) + (c W + b).
    """

    name: ClassVar[str] = "merge-linear"
    ops: ClassVar[Sequence[str]] = ("Gemm", "MatMul")

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), site.node.op_type)
        if inner is None:
            return
        if not site.only_use(inner.outputs[0]):
            site.miss("others read the first product")
            return
        at_inner = Site(site.scope, inner, self.name)
        if inner.graph is not site.node.graph or not _is_plain(site) or not _is_plain(at_inner):
            return
        first, second = _matrix(at_inner), _matrix(site)
        if first is None or second is None or first.shape[1] != second.shape[0]:
            return
        (k, j), n = first.shape, second.shape[1]
        if k * n >= k * j + j * n:
            site.miss(f"one product of {k} x {n} is more work than {k} x {j} and {j} x {n}")
            return
        biases = (_bias(at_inner, j), _bias(site, n))
        if biases[0] is None or biases[1] is None:
            site.miss("a bias is not constant, or not one row")
            return
        wide = np.asarray(second, np.float64)
        weight = rounded(np.asarray(first, np.float64) @ wide, second)
        bias = rounded(np.broadcast_to(biases[0], j) @ wide + biases[1], second)
        if weight is None or bias is None:
            site.miss("the product of the weights would not fit their type")
            return
        if site.claim("product"):
            self._store(site, inner, weight, bias)

    def _store(self, site: Site, inner: ir.Node, weight: np.ndarray, bias: np.ndarray) -> None:
        has_bias = bool(bias.any())
        site.set_input(1, site.constant(weight, f"{site.output.name}/weight"))
        if site.node.op_type == "Gemm":
            site.set_attribute("transB", 0)
            site.set_attribute("alpha", 1.0)
            site.set_attribute("beta", 1.0)
            if has_bias or site.input(2) is not None:
                site.set_input(2, site.constant(bias, f"{site.output.name}/bias"))
        site.set_input(0, inner.inputs[0])


def _is_plain(site: Site) -> bool:
    """Say whether the node does nothing to its left operand and scales nothing."""
    return (
        not site.int("transA", 0)
        and site.float("alpha", 1.0) == 1
        and site.float("beta", 1.0) == 1
    )


def _matrix(site: Site) -> np.ndarray | None:
    """Return the right operand as [rows, columns] where it is constant and read here only."""
    value = site.input(1)
    if value is None or not site.only_use(value):
        return None
    data = site.array(value)
    if data is None or data.ndim != 2 or data.dtype.kind in "biu":
        return None
    return data.T if site.int("transB", 0) else data


def _bias(site: Site, columns: int) -> np.ndarray | None:
    """Return the bias as float64 [columns] or [], None where it is not constant."""
    value = site.input(2)
    if value is None:
        return np.zeros(())
    data = site.array(value, columns)
    return None if data is None else Channels(1, 2, columns).per_channel(data)

"""fuse-skip-norm: a residual sum and the norm of it as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

DOMAIN = "com.microsoft"
EPSILON = 1e-5


@dataclass(frozen=True)
class FuseSkipNorm(NodePass):
    """Fuse a sum of two values, and a bias before it, into the norm that reads the sum.

    Before:
        s = Add(Add(x, bias), skip);  y = LayerNormalization(s, w, b)
    After:
        y, , , s = SkipLayerNormalization(x, skip, w, b, bias)

    RMSNormalization becomes SkipSimplifiedLayerNormalization. On CUDA that is one pass over the
    rows where there were two or three; on the CPU it is slower, and done at level 3 only, for
    fewer nodes.

    Skips:
        * The CPU below level 3.
        * Ranks other than 2 and 3, rows that are not the last axis, weights that are computed.
        * A skip that is repeated along rows, or within them.
        * Means and deviations that are read.

    Source:
        ONNX Runtime 1.31.1: contrib ops SkipLayerNormalization, SkipSimplifiedLayerNormalization.
    """

    name: ClassVar[str] = "fuse-skip-norm"
    ops: ClassVar[Sequence[str]] = tuple(sorted(where(row_norm=True)))

    def rewrite(self, site: Site) -> None:
        if not site.traits.has_fast_skip_norm and site.scope.options.level < 3:
            return
        total = site.input(0)
        add = site.producer(total, "Add")
        if add is None or total is None or add.graph is not site.node.graph:
            return
        reason = _why_not(site, total)
        shape = site.shape(total)
        operands = None if shape is None else _operands(site, add, shape)
        weights = _weights(site)
        if reason or operands is None or weights is None:
            site.miss(reason or _no_operands(operands is None))
            return
        if not site.claim("residual"):
            return
        self._emit(site, add, *operands, weights)

    def _emit(
        self, site: Site, add: ir.Node, x: ir.Value, skip: ir.Value, weights: Sequence[ir.Value]
    ) -> None:
        is_rms = site.node.op_type != "LayerNormalization"
        x, skip, bias = _biased(site, add, x, skip)
        rows = [
            value
            if site.rank(value) == 1
            else site.constant(np.asarray(site.array(value)).reshape(-1), f"{value.name}_flat")
            for value in weights
        ]
        inputs: list[ir.Value | None] = [x, skip, *rows]
        if bias is not None:
            inputs += [None] * ((3 if is_rms else 4) - len(inputs)) + [bias]
        total = add.outputs[0]
        is_shared = len(total.uses()) > 1 or total.is_graph_output()
        site.scope.import_domain(DOMAIN, 1)
        # Where the sum is, since others may read it before the norm.
        made = site.scope.insert(
            add,
            "SkipSimplifiedLayerNormalization" if is_rms else "SkipLayerNormalization",
            inputs,
            {"epsilon": site.float("epsilon", EPSILON)},
            domain=DOMAIN,
            outputs=4 if is_shared else 1,
            name=f"{site.output.name}/residual",
        )
        for unread in made[1:3]:
            site.scope.leave_out(unread)
        site.replace(made[0])
        if is_shared:
            site.scope.replace(total, made[3])


def _why_not(site: Site, total: ir.Value) -> str:
    rank = site.rank(total)
    if any(value.uses() or value.is_graph_output() for value in site.node.outputs[1:]):
        return "its mean or deviation is read"
    if not site.has_kernel("SkipLayerNormalization", site.dtype(total)) or site.dtype(
        site.output
    ) != site.dtype(total):
        return "no kernel takes its element type"
    if rank not in (2, 3):
        return "what it reads has not two or three axes"
    if site.int("axis", -1) not in (-1, rank - 1):
        return "its rows are not the last axis"
    return ""


def _no_operands(is_sum: bool) -> str:
    if is_sum:
        return "what is added is repeated along rows or within them"
    return "its weights are computed, or of another type or shape than one row"


def _operands(site: Site, add: ir.Node, shape: Sequence[Size]) -> tuple[ir.Value, ir.Value] | None:
    """Return the value of the sum's shape and the skip, which may lack the first axis."""
    shapes = [tuple(shape)]
    if len(shape) == 3:
        shapes += [tuple(shape[1:]), (1, *shape[1:])]
    left, right = add.inputs
    for x, skip in ((left, right), (right, left)):
        if x is None or skip is None or site.shape(x) != shapes[0]:
            continue
        if site.shape(skip) in shapes:
            return x, skip
    return None


def _weights(site: Site) -> list[ir.Value] | None:
    """Return scale and shift if they are there before the sum is, one number per column each."""
    shape, found = site.shape(site.input(0)), []
    for value in site.node.inputs[1:3]:
        if value is None:
            continue
        mine = site.shape(value)
        if mine is None or shape is None or value.producer() is not None:
            return None
        if [size for size in mine if size != 1] != [shape[-1]] or mine[-1] != shape[-1]:
            return None
        if len(mine) > 1 and site.array(value) is None:
            return None
        if site.dtype(value) != site.dtype(site.input(0)):
            return None
        found.append(value)
    return found or None


def _biased(
    site: Site, add: ir.Node, x: ir.Value, skip: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Return the two values of a sum, and a bias of one number per column added to one of them."""
    for one, other in ((x, skip), (skip, x)):
        inner, shape = site.producer(one, "Add"), site.shape(x)
        if inner is None or shape is None or site.shape(one) != shape:
            continue
        if inner.graph is not add.graph or not site.only_use(one):
            continue
        for value, bias in (tuple(inner.inputs), tuple(reversed(inner.inputs))):
            if value is None or bias is None or site.shape(value) != shape:
                continue
            if site.shape(bias) == (shape[-1],) and site.scope.is_constant(bias):
                # The other one may lack the first axis, and is then the skip.
                return value, other, bias
    return x, skip, None

"""From the Softmax up to the product of queries and keys: scale, cap and masks between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS
from ortkit.ops.attention.core import (
    LAYOUT,
    LONGEST,
    MASKED,
    Bias,
    Choice,
    Core,
    Floor,
    MaskStep,
    measures,
    readers,
)
from ortkit.ops.attention.trace import scalar_factor
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site, describe

#: Scores that are raised to this at least are masked.
FLOOR = -1e30


@dataclass
class _Walk:
    """What has been read on the way up."""

    value: ir.Value
    factor: float = 1.0
    """The Softmax reads this times `value`, plus what was collected."""
    softcap: float = 0.0
    gains: tuple[Bias, ...] = ()
    steps: tuple[MaskStep, ...] = ()
    precision: ir.DataType | None = None
    masks_in_precision: bool = False
    measured: tuple[ir.Node, ...] = ()


def read_scores(site: Site, source: ir.Value) -> Core:
    walk = _Walk(source)
    for _ in range(LONGEST):
        node = walk.value.producer()
        if node is None or node.graph is not site.node.graph:
            raise RefusedError("its scores are no matrix product")
        if walk.value.is_graph_output() or len(readers(walk.value)) != 1:
            raise RefusedError(f"others read its scores {walk.value.name!r}")
        walk.measured = (*walk.measured, *measures(walk.value))
        if node.domain == "" and node.op_type == "MatMul":
            return _core(site, node, walk)
        _step(site, node, walk)
    raise RefusedError("its scores are too far from a matrix product")


def _core(site: Site, product: ir.Node, walk: _Walk) -> Core:
    query, key = product.inputs
    if query is None or key is None:
        raise RefusedError("a product lacks an operand")
    if any(site.producer(value, "DequantizeLinear") for value in (query, key)):
        raise RefusedError("its operands are dequantized, and the group stays whole")
    return Core(
        softmax=site.node,
        query=query,
        key=key,
        value=key,
        scores=product.outputs[0],
        result=site.output,
        is_value_lhs=False,
        dtype=site.dtype(product.outputs[0]) or ir.DataType.FLOAT,
        scale=walk.factor,
        gains=walk.gains,
        softcap=walk.softcap,
        steps=walk.steps,
        precision=walk.precision,
        masks_in_precision=walk.masks_in_precision,
        measured=walk.measured,
    )


def _step(site: Site, node: ir.Node, walk: _Walk) -> None:
    """Take `node`, which makes `walk.value`, into the walk."""
    kind = node.op_type if node.domain == "" else ""
    factor = scalar_factor(site, node)
    if factor is not None:
        walk.factor *= factor
        varying = [v for v in node.inputs if not site.scope.is_constant(v)]
        _go(walk, varying[0])
    elif kind in LAYOUT:
        before, after = site.shape(node.inputs[0]), site.shape(node.outputs[0])
        if not before or not after or before[-1] != after[-1]:
            raise RefusedError(f"{describe(node)} may part or join rows of scores")
        _go(walk, node.inputs[0])
    elif kind == "Cast":
        _cast(site, node, walk)
    elif kind in ("Add", "Sub", "Sum"):
        _bias(site, node, walk)
    elif kind in ("Mul", "Div"):
        _gain(site, node, walk)
    elif kind == "Where":
        _choice(site, node, walk)
    elif kind == "Tanh":
        if walk.softcap or walk.gains:
            raise RefusedError("its scores are capped twice, or scaled per head afterwards")
        # c tanh(x) is -c tanh(-x): the sign is that of the scale.
        walk.softcap = abs(walk.factor)
        _go(walk, node.inputs[0])
    elif kind in ("Max", "Clip") and (floor := _floor(site, node)) is not None:
        value, number = floor
        if walk.softcap or walk.gains or not number * walk.factor <= FLOOR:
            raise RefusedError("its scores are raised to a number before they are scaled")
        walk.steps = (Floor(number * walk.factor), *walk.steps)
        _go(walk, value)
    else:
        raise RefusedError(f"{describe(node)} is between its product and its Softmax")


def _go(walk: _Walk, value: ir.Value | None) -> None:
    if value is None:
        raise RefusedError("an input of its scores is absent")
    walk.value = value


def _cast(site: Site, node: ir.Node, walk: _Walk) -> None:
    here, before = site.dtype(walk.value), site.dtype(node.inputs[0])
    if here not in FLOATS or before not in FLOATS:
        raise RefusedError("its scores are cast to or from a type that is no float")
    if walk.precision not in (None, here):
        raise RefusedError("its scores are cast more than once")
    walk.precision = here
    walk.masks_in_precision = bool(walk.steps)
    _go(walk, node.inputs[0])


def _floor(site: Site, node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return what is kept above a number, and the number."""
    if len(node.inputs) != 2 or not node.outputs:
        return None
    for index in (1, 0) if node.op_type == "Max" else (1,):
        number, kept = site.scalar(node.inputs[index]), node.inputs[1 - index]
        if number is not None and kept is not None:
            return kept, float(number)
    return None


def _bias(site: Site, node: ir.Node, walk: _Walk) -> None:
    if len(node.inputs) != 2:
        raise RefusedError(f"{describe(node)} adds more than one thing to its scores")
    index = _scores_side(site, node)
    scores, other = node.inputs[index], node.inputs[1 - index]
    if scores is None or other is None or not _keeps_shape(site, scores, node.outputs[0]):
        raise RefusedError(f"what {describe(node)} adds may be wider than its scores")
    sign = -1.0 if node.op_type == "Sub" else 1.0
    factor = walk.factor * sign
    if node.op_type == "Sub" and index == 1:
        walk.factor, factor = -walk.factor, walk.factor
    if walk.softcap or walk.gains:
        raise RefusedError("something is added to its scores before they are capped or scaled")
    walk.steps = (Bias(other, factor, node.outputs[0]), *walk.steps)
    _go(walk, node.inputs[index])


def _gain(site: Site, node: ir.Node, walk: _Walk) -> None:
    """Take a factor per head or batch, which may as well scale the query."""
    index = _scores_side(site, node)
    other = node.inputs[1 - index]
    shape = site.shape(other)
    if node.op_type == "Div" or shape is None or other is None or len(shape) < 2:
        raise RefusedError(f"{describe(node)} scales its scores by more than a number")
    scores = node.inputs[index]
    if shape[-1] != 1 or shape[-2] != 1 or scores is None:
        raise RefusedError(f"{describe(node)} scales single scores")
    if site.shape(scores) != site.shape(node.outputs[0]):
        raise RefusedError(f"what {describe(node)} multiplies with may be wider than its scores")
    walk.gains = (*walk.gains, Bias(other, 1.0, node.outputs[0]))
    _go(walk, node.inputs[index])


def _choice(site: Site, node: ir.Node, walk: _Walk) -> None:
    condition, yes, no = node.inputs
    for keeps, kept, other in ((True, yes, no), (False, no, yes)):
        fill = site.scalar(other)
        if fill is None or kept is None or condition is None:
            continue
        dtype = site.dtype(node.outputs[0]) or ir.DataType.FLOAT
        with np.errstate(over="ignore"):
            fill = float(dtype.numpy().type(float(fill) * walk.factor))
        if not fill <= MASKED:
            raise RefusedError(f"{describe(node)} sets scores to {fill:g}, which masks nothing")
        if walk.softcap or walk.gains:
            raise RefusedError("its scores are masked before they are capped or scaled per head")
        if not _keeps_shape(site, kept, node.outputs[0]):
            raise RefusedError(
                f"the condition of {describe(node)} does not broadcast to its scores"
            )
        walk.steps = (Choice(condition, keeps, fill, node.outputs[0]), *walk.steps)
        _go(walk, kept)
        return
    raise RefusedError(f"{describe(node)} chooses between scores and no number")


def _scores_side(site: Site, node: ir.Node) -> int:
    """Return which of two operands comes from a product; the mask may hold products too."""
    found = [i for i, value in enumerate(node.inputs[:2]) if _leads_to_product(site, value)]
    if len(found) != 1:
        raise RefusedError(
            f"neither operand of {describe(node)} is a product"
            if not found
            else f"both operands of {describe(node)} come from products"
        )
    return found[0]


def _leads_to_product(site: Site, value: ir.Value | None) -> bool:
    """Say whether pointwise steps, each read once, lead from `value` up to a MatMul."""
    for _ in range(LONGEST):
        node = None if value is None else value.producer()
        if node is None or value is None or node.domain != "" or value.is_graph_output():
            return False
        if len(readers(value)) != 1:
            return False
        if node.op_type == "MatMul":
            return True
        onward = _onward(site, node)
        if len(onward) > 1:
            return any(_leads_to_product(site, each) for each in onward)
        value = onward[0] if onward else None
    return False


def _onward(site: Site, node: ir.Node) -> list[ir.Value]:
    """Return the inputs that scores may come through."""
    if node.op_type in (*LAYOUT, "Cast", "Tanh", "Neg", "Clip"):
        return [value for value in node.inputs[:1] if value is not None]
    if node.op_type == "Where":
        inputs = node.inputs[1:]
    elif node.op_type in ("Add", "Sub", "Mul", "Div", "Sum", "Max"):
        inputs = node.inputs
    else:
        return []
    return [v for v in inputs if v is not None and not site.scope.is_constant(v)]


def _keeps_shape(site: Site, scores: ir.Value, made: ir.Value) -> bool:
    """Say whether `made` has the shape of the scores that it is made from.

    The last axis need not be looked at: it is multiplied with the keys' axis of the values, so
    it cannot have been widened in a run that succeeds.
    """
    before, after = site.shape(scores), site.shape(made)
    return before is not None and after is not None and before[:-1] == after[:-1]

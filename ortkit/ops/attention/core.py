"""Softmax outward to the two matrix products: what is between them, and what it means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.ops.attention.trace import scalar_factor
from ortkit.rewrite.sample import FLOATS
from ortkit.rewrite.site import Site, describe

#: What a masked score is set to, at most: exp of it is 0 next to any other score.
MASKED = -1e4
#: Nodes followed between a product and its Softmax.
LONGEST = 24
LAYOUT = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Bias:
    """What is added to the scores: `factor` times a value that broadcasts to them."""

    value: ir.Value
    factor: float
    scores: ir.Value
    """The scores that it is added to, in their shape at that place."""


@dataclass(frozen=True)
class Choice:
    """Where scores are kept, and what stands in the place of the others."""

    condition: ir.Value
    keeps: bool
    """Whether a score is kept where the condition is true."""
    fill: float
    """In units of the scores that reach the Softmax."""
    scores: ir.Value


@dataclass(frozen=True)
class Core:
    """softmax(scale * Q K^T, capped, masked) V as it is written."""

    softmax: ir.Node
    query: ir.Value
    """[..., S, D]"""
    key: ir.Value
    """[..., D, T]"""
    value: ir.Value
    """[..., T, Dv]"""
    scores: ir.Value
    """[..., S, T], as the product gives them."""
    result: ir.Value
    """[..., S, Dv]"""
    is_flipped: bool
    """Whether the result is written as V^T P^T: `value` is [..., Dv, T], `result` [..., Dv, S]."""
    scale: float = 1.0
    gains: tuple[Bias, ...] = ()
    """Factors that are no numbers, one per head or so."""
    softcap: float = 0.0
    biases: tuple[Bias, ...] = ()
    choices: tuple[Choice, ...] = ()
    zeroes_nan: bool = False
    """Whether NaN, which rows without any kept score give, becomes zero."""
    precision: ir.DataType | None = None
    """The type that the Softmax works in where it is not that of the scores."""
    measured: tuple[ir.Node, ...] = ()
    """Shape nodes that read scores or probabilities."""


@dataclass
class RefusalError(Exception):
    """Why something that looks like attention is none, or is not taken."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def find_core(site: Site) -> Core:
    """Read the attention around the site's Softmax.

    Raises:
        RefusalError: With the condition that fails.
    """
    rank = site.rank(site.output)
    source = site.input(0)
    if rank is None or source is None:
        raise RefusalError("the rank of its scores is unknown")
    axis = site.int("axis", -1 if site.opset >= 13 else 1)
    if axis % rank != rank - 1:
        raise RefusalError("its Softmax is not over the last axis")
    core = _above(site, source)
    return _below(site, core)


# ---- from the Softmax up to the product -------------------------------------------------


@dataclass
class _Walk:
    """What has been read on the way up."""

    value: ir.Value
    factor: float = 1.0
    """The Softmax reads this times `value`, plus what was collected."""
    softcap: float = 0.0
    gains: tuple[Bias, ...] = ()
    biases: tuple[Bias, ...] = ()
    choices: tuple[Choice, ...] = ()
    precision: ir.DataType | None = None
    measured: tuple[ir.Node, ...] = ()


def _above(site: Site, source: ir.Value) -> Core:
    walk = _Walk(source)
    for _ in range(LONGEST):
        node = walk.value.producer()
        if node is None or node.graph is not site.node.graph:
            raise RefusalError("its scores are no matrix product")
        if walk.value.is_graph_output() or len(_uses(walk.value)) != 1:
            raise RefusalError(f"others read its scores {walk.value.name!r}")
        walk.measured = (*walk.measured, *_measures(walk.value))
        if node.domain == "" and node.op_type == "MatMul":
            return _core(site, node, walk)
        _step(site, node, walk)
    raise RefusalError("its scores are too far from a matrix product")


def _core(site: Site, product: ir.Node, walk: _Walk) -> Core:
    query, key = product.inputs
    if query is None or key is None:
        raise RefusalError("a product lacks an operand")
    if any(site.producer(value, "DequantizeLinear") for value in (query, key)):
        raise RefusalError("its operands are dequantized, and the group stays whole")
    return Core(
        softmax=site.node,
        query=query,
        key=key,
        value=key,
        scores=product.outputs[0],
        result=site.output,
        is_flipped=False,
        scale=walk.factor,
        gains=walk.gains,
        softcap=walk.softcap,
        biases=walk.biases,
        choices=walk.choices,
        precision=walk.precision,
        measured=walk.measured,
    )


def _measures(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read the shape of `value` and nothing else of it."""
    return [
        node
        for node in dict.fromkeys(value.consumers())
        if node.domain == "" and node.op_type == "Shape"
    ]


def _uses(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read elements of `value`, once for each input that does."""
    return [use.node for use in value.uses() if use.node.domain or use.node.op_type != "Shape"]


def _step(site: Site, node: ir.Node, walk: _Walk) -> None:
    """Take `node`, which makes `walk.value`, into the walk."""
    kind = node.op_type if node.domain == "" else ""
    factor = scalar_factor(site, node)
    if factor is not None:
        walk.factor *= factor
        varying = [v for v in node.inputs if not site.scope.is_constant(v)]
        _go(walk, varying[0])
    elif kind in LAYOUT:
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
            raise RefusalError("its scores are capped twice, or scaled per head afterwards")
        walk.softcap, walk.factor = walk.factor, walk.factor
        _go(walk, node.inputs[0])
    elif kind in ("Max", "Clip") and (floor := _floor(site, node)) is not None:
        _go(walk, floor)
    else:
        raise RefusalError(f"{describe(node)} is between its product and its Softmax")


def _go(walk: _Walk, value: ir.Value | None) -> None:
    if value is None:
        raise RefusalError("an input of its scores is absent")
    walk.value = value


def _cast(site: Site, node: ir.Node, walk: _Walk) -> None:
    here, before = site.dtype(walk.value), site.dtype(node.inputs[0])
    if here not in FLOATS or before not in FLOATS:
        raise RefusalError("its scores are cast to or from a type that is no float")
    if walk.biases or walk.choices:
        raise RefusalError("its mask is added in another precision than its product's")
    if walk.precision is None:
        walk.precision = here
    _go(walk, node.inputs[0])


def _floor(site: Site, node: ir.Node) -> ir.Value | None:
    """Return what is kept above a number that masks anyway."""
    inputs = [value for value in node.inputs if value is not None]
    if len(inputs) != 2:
        return None
    for index in (1, 0) if node.op_type == "Max" else (1,):
        number = site.scalar(inputs[index])
        if number is not None and number <= -1e30:
            return inputs[1 - index]
    return None


def _bias(site: Site, node: ir.Node, walk: _Walk) -> None:
    if len(node.inputs) != 2:
        raise RefusalError(f"{describe(node)} adds more than one thing to its scores")
    index = _scores_side(site, node)
    scores, other = node.inputs[index], node.inputs[1 - index]
    if scores is None or other is None or not _keeps_shape(site, scores, node.outputs[0]):
        raise RefusalError(f"what {describe(node)} adds may be wider than its scores")
    sign = -1.0 if node.op_type == "Sub" else 1.0
    factor = walk.factor * sign
    if node.op_type == "Sub" and index == 1:
        walk.factor, factor = -walk.factor, walk.factor
    if walk.softcap:
        raise RefusalError("something is added to its scores before they are capped")
    walk.biases = (*walk.biases, Bias(other, factor, node.outputs[0]))
    _go(walk, node.inputs[index])


def _gain(site: Site, node: ir.Node, walk: _Walk) -> None:
    """Take a factor per head or batch, which may as well scale the query."""
    index = _scores_side(site, node)
    other = node.inputs[1 - index]
    shape = site.shape(other)
    if node.op_type == "Div" or shape is None or other is None or len(shape) < 2:
        raise RefusalError(f"{describe(node)} scales its scores by more than a number")
    scores = node.inputs[index]
    if shape[-1] != 1 or shape[-2] != 1 or scores is None:
        raise RefusalError(f"{describe(node)} scales single scores")
    if site.shape(scores) != site.shape(node.outputs[0]):
        raise RefusalError(f"what {describe(node)} multiplies with may be wider than its scores")
    walk.gains = (*walk.gains, Bias(other, 1.0, node.outputs[0]))
    _go(walk, node.inputs[index])


def _choice(site: Site, node: ir.Node, walk: _Walk) -> None:
    condition, yes, no = node.inputs
    for keeps, kept, other in ((True, yes, no), (False, no, yes)):
        fill = site.scalar(other)
        if fill is None or kept is None or condition is None:
            continue
        fill = float(fill) * walk.factor
        if not fill <= MASKED:
            raise RefusalError(f"{describe(node)} sets scores to {fill:g}, which masks nothing")
        if walk.softcap:
            raise RefusalError("its scores are masked before they are capped")
        if not _keeps_shape(site, kept, node.outputs[0]):
            raise RefusalError(
                f"the condition of {describe(node)} does not broadcast to its scores"
            )
        choice = Choice(condition, keeps, fill, node.outputs[0])
        walk.choices = (*walk.choices, choice)
        _go(walk, kept)
        return
    raise RefusalError(f"{describe(node)} chooses between scores and no number")


def _scores_side(site: Site, node: ir.Node) -> int:
    """Return which of two operands comes from a product; the mask may hold products too."""
    found = [i for i, value in enumerate(node.inputs[:2]) if _leads_to_product(site, value)]
    if len(found) != 1:
        raise RefusalError(
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
        if len(_uses(value)) != 1:
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


# ---- from the Softmax down to the product -----------------------------------------------


def _below(site: Site, core: Core) -> Core:
    value = site.output
    dtype = site.dtype(core.scores)
    for _ in range(LONGEST):
        reader = _reader(site, value)
        node = reader.node
        core = replace(core, measured=(*core.measured, *_measures(value)))
        if reader.is_guard:
            core = replace(core, zeroes_nan=True)
        elif node.op_type == "MatMul" and node.domain == "":
            return _product(site, node, value, core, is_flipped=False)
        elif node.op_type == "Transpose" and _swaps_last(site, node):
            below = _reader(site, node.outputs[0]).node
            if below.op_type != "MatMul":
                raise RefusalError("its probabilities are transposed and not multiplied")
            return _product(site, below, node.outputs[0], core, is_flipped=True)
        elif node.op_type == "Cast" and site.dtype(node.outputs[0]) != dtype:
            raise RefusalError("its probabilities are cast to another type than its scores had")
        elif node.op_type not in (*LAYOUT, "Cast"):
            raise RefusalError(f"{describe(node)} reads its probabilities")
        value = node.outputs[0]
    raise RefusalError("no product reads its probabilities")


@dataclass(frozen=True)
class _Reader:
    node: ir.Node
    is_guard: bool = False


def _reader(site: Site, value: ir.Value) -> _Reader:
    """Return the one node that reads `value`, or the Where that replaces its NaN by zero."""
    if value.is_graph_output():
        raise RefusalError(f"its probabilities {value.name!r} are an output of the graph")
    uses = _uses(value)
    nodes = list(dict.fromkeys(uses))
    if len(uses) == 1:
        if nodes[0].graph is not site.node.graph:
            raise RefusalError("another graph reads its probabilities")
        return _Reader(nodes[0])
    checks = [node for node in nodes if node.domain == "" and node.op_type == "IsNaN"]
    choices = [node for node in nodes if node.domain == "" and node.op_type == "Where"]
    if len(nodes) == 2 and len(checks) == 1 and len(choices) == 1 and len(uses) == 2:
        test, where = checks[0].outputs[0], choices[0]
        if (
            where.inputs[0] is test
            and where.inputs[2] is value
            and site.only_use(test)
            and site.scalar(where.inputs[1]) == 0
        ):
            return _Reader(where, is_guard=True)
    others = ", ".join(sorted(describe(node) for node in nodes)[:3])
    raise RefusalError(f"its probabilities are read by {others}")


def _product(
    site: Site, node: ir.Node, weights: ir.Value, core: Core, *, is_flipped: bool
) -> Core:
    left, right = node.inputs
    value = left if is_flipped else right
    if value is None or (right if is_flipped else left) is not weights or left is right:
        raise RefusalError("its probabilities are not on the left of their product")
    if site.producer(value, "DequantizeLinear"):
        raise RefusalError("its operands are dequantized, and the group stays whole")
    if site.rank(node.outputs[0]) != site.rank(weights):
        raise RefusalError("its probabilities and its values have different ranks")
    return replace(core, value=value, result=node.outputs[0], is_flipped=is_flipped)


def _swaps_last(site: Site, node: ir.Node) -> bool:
    perm = Site(site.scope, node, site.pass_name).ints("perm")
    rank = site.rank(node.outputs[0])
    if rank is None or rank < 2:
        return False
    wanted = (*range(rank - 2), rank - 1, rank - 2)
    return (perm or tuple(reversed(range(rank)))) == wanted

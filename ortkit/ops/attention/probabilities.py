"""From the Softmax down to the product of probabilities and values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS
from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.core import LAYOUT, LONGEST, Bias, Choice, Core, measures, readers
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site, describe

#: How scores of relative positions get to those of keys.
MOVES = (*LAYOUT, "Cast", "Concat", "Gather", "GatherElements", "Pad", "Slice", "Transpose")


def read_probabilities(site: Site, core: Core) -> Core:
    value = site.output
    dtype = site.dtype(core.scores)
    for _ in range(LONGEST):
        reader = _reader(site, value)
        node = reader.node
        core = replace(core, measured=(*core.measured, *measures(value)))
        if reader.is_guard:
            core = replace(core, zeroes_nan=True)
        elif node.op_type == "Where" and node.domain == "":
            core = _without_masked(site, node, value, core)
        elif node.op_type == "MatMul" and node.domain == "":
            return _product(site, node, value, core, is_value_lhs=False)
        elif node.op_type == "Transpose" and _swaps_last(site, node):
            below = _reader(site, node.outputs[0]).node
            if below.op_type != "MatMul":
                raise RefusedError("its probabilities are transposed and not multiplied")
            return _product(site, below, node.outputs[0], core, is_value_lhs=True)
        elif node.op_type == "Cast" and site.dtype(node.outputs[0]) != dtype:
            raise RefusedError("its probabilities are cast to another type than its scores had")
        elif node.op_type not in (*LAYOUT, "Cast"):
            raise RefusedError(f"{describe(node)} reads its probabilities")
        elif _ends(site, value) != _ends(site, node.outputs[0]):
            raise RefusedError(f"{describe(node)} may part or join rows of probabilities")
        value = node.outputs[0]
    raise RefusedError("no product reads its probabilities")


def _without_masked(site: Site, node: ir.Node, value: ir.Value, core: Core) -> Core:
    """Take a Where that sets to zero what the last mask step masks.

    Next to a score that is kept this changes nothing, and queries that see no key give zero. So
    they do where what is masked is -inf, and NaN becomes zero. Other masks are not dropped with
    it, so that nothing else is added but what products make.
    """
    condition, yes, no = node.inputs
    last = core.steps[-1] if core.steps else None
    kept, other = (yes, no) if yes is value else (no, yes)
    if (
        not isinstance(last, Choice)
        or last.condition is not condition
        or last.keeps != (kept is yes)
        or kept is not value
        or site.scalar(other) != 0
        or site.shape(value) != site.shape(last.scores)
        or site.shape(value) != site.shape(node.outputs[0])
        or not all(isinstance(step, Bias) and _is_product(step.value) for step in core.steps[:-1])
    ):
        raise RefusedError(f"{describe(node)} reads its probabilities")
    steps = (*core.steps[:-1], replace(last, fill=-math.inf))
    return replace(core, steps=steps, zeroes_nan=True)


def _is_product(value: ir.Value | None, left: int = LONGEST) -> bool:
    """Say whether elements of a matrix product are what `value` holds, in some order."""
    node = None if value is None or not left else value.producer()
    if node is None or node.domain != "":
        return False
    sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type == "MatMul" or (
        node.op_type in MOVES and any(_is_product(source, left - 1) for source in sources)
    )


@dataclass(frozen=True)
class _Reader:
    node: ir.Node
    is_guard: bool = False


def _reader(site: Site, value: ir.Value) -> _Reader:
    """Return the one node that reads `value`, or the Where that replaces its NaN by zero."""
    if value.is_graph_output():
        raise RefusedError(f"its probabilities {value.name!r} are an output of the graph")
    uses = readers(value)
    nodes = list(dict.fromkeys(uses))
    if len(uses) == 1:
        if nodes[0].graph is not site.node.graph:
            raise RefusedError("another graph reads its probabilities")
        return _Reader(nodes[0])
    choices = [node for node in nodes if node.domain == "" and node.op_type == "Where"]
    if len(nodes) == 2 and len(choices) == 1 and len(uses) == 2:
        where = choices[0]
        if (
            _tests_nan(site, where.inputs[0], value)
            and where.inputs[2] is value
            and site.scalar(where.inputs[1]) == 0
        ):
            return _Reader(where, is_guard=True)
    others = ", ".join(sorted(describe(node) for node in nodes)[:3])
    raise RefusedError(f"its probabilities are read by {others}")


def _tests_nan(site: Site, test: ir.Value | None, value: ir.Value) -> bool:
    """Say whether `test` is read once and holds where `value`, in any float type, is NaN."""
    if test is None or not site.only_use(test):
        return False
    check = site.producer(test, "IsNaN")
    tested = None if check is None else check.inputs[0]
    cast = site.producer(tested, "Cast")
    if cast is None or tested is None or not site.only_use(tested):
        return tested is value
    return cast.inputs[0] is value and site.dtype(tested) in FLOATS


def _product(
    site: Site, node: ir.Node, weights: ir.Value, core: Core, *, is_value_lhs: bool
) -> Core:
    left, right = node.inputs
    value = left if is_value_lhs else right
    if value is None or (right if is_value_lhs else left) is not weights or left is right:
        raise RefusedError("its probabilities are not on the left of their product")
    if site.producer(value, "DequantizeLinear"):
        raise RefusedError("its operands are dequantized, and the group stays whole")
    if site.rank(node.outputs[0]) != site.rank(weights):
        raise RefusedError("its probabilities and its values have different ranks")
    return replace(core, value=value, result=node.outputs[0], is_value_lhs=is_value_lhs)


def _ends(site: Site, value: ir.Value) -> tuple[Size, ...]:
    return (site.shape(value) or ())[-2:]


def _swaps_last(site: Site, node: ir.Node) -> bool:
    perm = Site(site.scope, node, site.pass_name).ints("perm")
    rank = site.rank(node.outputs[0])
    if rank is None or rank < 2:
        return False
    wanted = (*range(rank - 2), rank - 1, rank - 2)
    return (perm or tuple(reversed(range(rank)))) == wanted

"""An input set that is as long as a model's own limits: windows of attention, tables of positions.

The usual lengths end at `LONGEST`. A model that compares positions with a larger number, or reads
a table by them, computes otherwise beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from ortkit.graph.analysis.cost import model_cost
from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inlined
from ortkit.graph.shapes.infer import Shapes
from ortkit.operators import where
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.input_semantics import input_use
from ortkit.verify.inputs.plans import Plan, Style, styled
from ortkit.verify.inputs.sizes import AIMED_ELEMENTS, LONGEST, elements_of

#: Operations of the set at most, and bytes that all nodes read and write, weights included: some
#: 0.2 s a run on two cores.
_MOST_OPERATIONS, _MOST_BYTES = 20_000_000_000, 1 << 31
#: Longer sets are for `--inputs`.
_MOST_LENGTH = 1 << 13
#: What is beyond a limit: a few positions.
_BEYOND = 5
#: Comparisons that say which of two numbers is larger.
ORDERED = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
#: Operators that treat a number below a constant and one above it differently.
TESTS = ORDERED | {"Clip", "Max", "Min", "Mod"}
#: Operators whose results count or order what their inputs do.
_COUNTS = (
    where(access="elementwise") | where(moves_only=True) | {"Cast", "CumSum", "Gather", "Range"}
)
_MEANINGS = ("position", "last key", "total length")
#: By domain and operator, the tables that are read by positions.
_TABLES = {
    ("", "RotaryEmbedding"): (1, 2),
    ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
}


def long_plan(
    maker: FeedMaker, model: ir.Model, seed: int, candidate: ir.Model | None = None
) -> Plan | None:
    """Plan a set beyond the largest limit that takes no more than a part of a second to reach.

    Args:
        maker: Makes up inputs of the model.
        model: Read, not changed.
        seed: Seeds the random numbers.
        candidate: A model that is compared with it and may have limits of its own.

    Returns:
        None where no length is free, no limit is beyond the usual lengths, or all cost too much.
    """
    names = maker.pasts or maker.lengths
    if not names or maker.is_heavy:
        return None
    model = inlined(model)
    plans = maker.covering("quick", seed)
    usual = max(plan.sizes.get(name, 0) for plan in plans for name in names)
    short = maker.completed(maker.sized(dict.fromkeys(maker.batches, 1)))
    new = (short.new or 0) if maker.pasts else 0
    sizes = [*_lengths(model, new), *(() if candidate is None else _lengths(candidate, new))]
    wanted = {size for size in sizes if usual < size <= _MOST_LENGTH}
    for size in sorted(wanted, reverse=True):
        numbers = {**short.sizes, **dict.fromkeys(names, size)}
        plan = maker.completed(Plan(numbers, seed))
        if elements_of(maker.shapes, plan.sizes) > AIMED_ELEMENTS:
            continue
        if is_affordable(model, plan.sizes):
            return styled(replace(plan, past=None, new=None), Style("normal", "holes", edges=True))
    return None


def is_affordable(model: ir.Model, sizes: Mapping[str, int]) -> bool:
    """Say whether a run with sizes is one of a part of a second."""
    cost = model_cost(model, sizes)
    return cost.flops <= _MOST_OPERATIONS and cost.bytes <= _MOST_BYTES


def length_tests(model: ir.Model) -> dict[ir.Node, int]:
    """Return what compares lengths or positions with a constant beyond the usual lengths.

    Returns:
        By node, the constant.
    """
    counts = counts_of(model)
    found: dict[ir.Node, int] = {}
    for node in model.graph:
        if node.domain or node.op_type not in TESTS or not counts & {*node.inputs}:
            continue
        numbers = (_number(value) for value in node.inputs)
        largest = max((each for each in numbers if each is not None), default=0)
        if largest > LONGEST:
            found[node] = largest
    return found


def is_length_test(node: ir.Node) -> bool:
    """Say whether a node of `length_tests` gives a condition."""
    return node.op_type in ORDERED


def _lengths(model: ir.Model, new: int) -> Iterator[int]:
    """Yield lengths at which all of a limit is met.

    Args:
        model: The model, left as it is.
        new: Positions that follow those.
    """
    model = inlined(model)
    for end in _ends(model):
        yield end + _BEYOND
    for limit in length_tests(model).values():
        yield limit + _BEYOND
    counts = counts_of(model)
    for node in model.graph:
        window = node.attributes.get_int("local_window_size", 0)
        if window > LONGEST:
            yield window + _BEYOND
        at: tuple[int, ...] = _TABLES.get((node.domain, node.op_type), ())
        if not node.domain and node.op_type in ("Gather", "Slice"):
            at = (0,) if counts & {*node.inputs[1:]} else ()
        for value in (node.inputs[index] for index in at if index < len(node.inputs)):
            rows = _rows(value)
            # Some models count positions from 2 on.
            yield rows - 2 - new


def _ends(model: ir.Model) -> Iterator[int]:
    """Yield where slices of axes without a number end, if that is beyond the usual lengths."""
    shapes: Shapes | None = None
    for node in model.graph:
        if node.domain or node.op_type != "Slice" or len(node.inputs) < 3:
            continue
        data, _, given, *rest = node.inputs
        ends = constant_array(given, limit=16) if given is not None else None
        if data is None or ends is None or not (LONGEST < ends.max(initial=0) <= _MOST_LENGTH):
            continue
        shapes = Shapes.infer(model) if shapes is None else shapes
        axes = constant_array(rest[0], limit=16) if rest and rest[0] is not None else None
        shape = shapes.shape(data)
        for at, end in enumerate(ends.reshape(-1).tolist()):
            axis = at if axes is None else int(axes.reshape(-1)[at])
            if LONGEST < end <= _MOST_LENGTH and shape and not isinstance(shape[axis], int):
                yield end


def _rows(value: ir.Value | None) -> int:
    """Return the rows of a constant table: of the axis of positions, which is the longest."""
    if value is None or value.const_value is None or len(value.const_value.shape) < 2:
        return 0
    return max(size for size in value.const_value.shape[:-1] if isinstance(size, int))


def counts_of(model: ir.Model) -> set[ir.Value]:
    """Return the values of the main graph that are made of sizes, positions and constants."""
    found: set[ir.Value] = {
        value
        for value in model.graph.inputs
        if not value.is_initializer() and input_use(value, model).meaning in _MEANINGS
    }
    for node in model.graph:
        if node.domain:
            continue
        is_size = node.op_type in ("Shape", "Size")
        read = [each for each in node.inputs if each is not None and not _is_constant(each)]
        if is_size or (node.op_type in _COUNTS and read and all(each in found for each in read)):
            found.update(node.outputs)
    return found


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    if node is not None and node.op_type == "Constant":
        return True
    return value.const_value is not None and not value.is_graph_input()


def _number(value: ir.Value | None) -> int | None:
    array = constant_array(value, limit=1) if value is not None else None
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = float(array.reshape(-1)[0])
    return int(number) if abs(number) < 1 << 31 else None

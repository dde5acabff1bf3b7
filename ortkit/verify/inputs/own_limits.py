"""Input sets at the numbers that only a candidate compares something with.

The sets of an original lie on both sides of its own limits. A candidate may have others: a Clip,
a kernel's special case of 37 positions, a mask that ends at 256. Its comparisons with numbers that
the original does not name are met on both sides where input sets can do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inlined
from ortkit.verify.budget import Budget
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.guard_coverage import Side, give_probes
from ortkit.verify.inputs.guard_sets import FAR_STYLES, Probes
from ortkit.verify.inputs.guards import guards_of
from ortkit.verify.inputs.long import ORDERED, TESTS, counts_of, is_affordable
from ortkit.verify.inputs.plans import Plan, Style, styled
from ortkit.verify.inputs.sets import InputSet
from ortkit.verify.inputs.sizes import AIMED_ELEMENTS, elements_of
from ortkit.verify.steps import prune
from ortkit.verify.widening import widened

_COMPARISONS = ORDERED | {"Equal"}
#: By operator, what is asked of its first input: the constant is a bound on that side.
_BOUNDS = {"Clip": ("Less", "Greater"), "Max": ("Less",), "Min": ("Greater",)}
#: Operators through which a constant is followed.
_MOVES = frozenset({"Cast", "CastLike", "Identity", "Unsqueeze", "Squeeze", "Reshape"})
#: Numbers that sizes are compared with, at most, and the largest.
_MOST_NUMBERS, _MOST_SIZE = 8, 1 << 13
_MOST_SETS = 6
#: Larger numbers are no limits, but what stands for infinity.
_SENTINEL = 1e30


@dataclass(frozen=True)
class _Test:
    """A comparison with a constant."""

    node: ir.Node
    numbers: tuple[float, ...]
    is_of_sizes: bool
    """Whether it compares what is made of sizes and positions alone."""

    @property
    def keys(self) -> set[tuple[bool, float]]:
        return {(self.is_of_sizes, number) for number in self.numbers}


def own_limit_sets(
    maker: FeedMaker,
    original: ir.Model,
    candidate: ir.Model,
    feeds: Sequence[Path],
    budget: Budget,
    folder: Path,
    custom_ops: tuple[Path, ...] = (),
) -> tuple[InputSet, ...]:
    """Make input sets that meet the candidate's own comparisons on sides that others do not.

    Args:
        maker: Of the original.
        original: Read, not changed.
        candidate: Read, not changed.
        feeds: Folders of the input sets that there are.
        budget: The time that is left.
        folder: For files; made here if there is something to do.
        custom_ops: Libraries that the candidate needs to load at all.
    """
    known = {key for test in _tests(inlined(original)) for key in test.keys}
    if not any(test.keys - known for test in _tests(inlined(candidate))):
        return ()
    probed = widened(candidate)
    tests = [test for test in _tests(probed) if test.keys - known]
    numbers = {key for test in tests for key in test.keys - known}
    conditions = [each for test in tests for each in _conditions(test)]
    if not conditions:
        return ()
    give_probes(probed, conditions)
    prune(probed)
    probes = Probes.of(probed, len(conditions), budget, folder, custom_ops)
    met = set[Side]().union(*probes.met(feeds))
    wanted = {(at, side) for at in range(len(conditions)) for side in (True, False)}
    if met >= wanted:
        return ()
    sets = list(_sets_near(maker, original, candidate, numbers))
    found: list[InputSet] = []
    for each, sides in zip(sets, probes.met(probes.written(sets, "more")), strict=True):
        if not sides <= met and len(found) < _MOST_SETS:
            met |= sides
            found.append(each)
    return tuple(found)


def _tests(model: ir.Model) -> Iterator[_Test]:
    """Yield the comparisons of the main graph with single numbers."""
    counts: set[ir.Value] | None = None
    for node in model.graph:
        if node.domain or node.op_type not in TESTS | {"Equal"}:
            continue
        read = [value for value in node.inputs if value is not None]
        numbers = {value: number for value in read if (number := _number(value)) is not None}
        own = [node.attributes.get_float(each, 0.0) for each in ("min", "max")
               if each in node.attributes]  # fmt: skip
        if len(numbers) == len(read) or not (numbers or own):
            continue
        counts = counts_of(model) if counts is None else counts
        of_sizes = all(value in counts for value in read if value not in numbers)
        yield _Test(node, (*numbers.values(), *own), of_sizes)


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element, which may be cast and reshaped."""
    node = value.producer() if value is not None else None
    while node is not None and not node.domain and node.op_type in _MOVES:
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    array = constant_array(value, limit=1) if value is not None else None
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = float(array.reshape(-1)[0])
    return number if abs(number) < _SENTINEL else None


def _conditions(test: _Test) -> Iterator[ir.Value]:
    """Yield what a comparison decides, as booleans that are computed beside it."""
    node, graph = test.node, test.node.graph
    if node.op_type in _COMPARISONS:
        yield node.outputs[0]
        return
    if graph is None or node.inputs[0] is None:
        return
    added: list[ir.Node] = []
    if node.op_type == "Mod":
        zero = ir.node("Sub", [node.outputs[0], node.outputs[0]])
        added += [zero, ir.node("Equal", [node.outputs[0], zero.outputs[0]])]
        yield added[-1].outputs[0]
    elif node.op_type in ("Max", "Min"):
        values = [v for v in node.inputs if v is not None and _number(v) is None]
        bounds = [v for v in node.inputs if v is not None and _number(v) is not None]
        if len(values) == 1 and bounds:
            added += [ir.node(_BOUNDS[node.op_type][0], [values[0], bounds[0]])]
            yield added[-1].outputs[0]
    else:
        for op, bound in zip(_BOUNDS["Clip"], node.inputs[1:], strict=False):
            if bound is not None:
                added.append(ir.node(op, [node.inputs[0], bound]))
                yield added[-1].outputs[0]
    graph.insert_after(node, added)


def _sets_near(
    maker: FeedMaker, original: ir.Model, candidate: ir.Model, numbers: set[tuple[bool, float]]
) -> Iterator[InputSet]:
    """Make sets with sizes and floats near numbers, and with floats far from them."""
    sizes = sorted(int(number) for of_sizes, number in numbers if of_sizes)[:_MOST_NUMBERS]
    plans = [plan for size in sizes for plan in _sized(maker, original, size)]
    values = tuple(number for of_sizes, number in numbers if not of_sizes)
    if values:
        guards = tuple(
            (*values, *guards_of(value, candidate), *known)
            for value, known in zip(maker.inputs, maker.guards, strict=True)
        )
        maker = replace(maker, guards=guards)
        base = maker.sized({})
        edged = [replace(base, seed=seed) for seed in range(2)]
        plans += [styled(plan, Style(edges=True)) for plan in edged]
        plans += [styled(base, style) for style in FAR_STYLES]
    for plan in plans:
        try:
            yield InputSet.of(maker, plan)
        except ModelError:  # a size such as `n - 8` is negative
            continue


def _sized(maker: FeedMaker, model: ir.Model, number: int) -> Iterator[Plan]:
    """Plan sets in which lengths, caches or batches are a number, or beside it."""
    base = maker.sized({})
    free = base.sizes.keys() - maker.fixed.keys() - maker.related.keys()
    new = maker.completed(base).new or 0
    for size in (number, number + 1, number - 1):
        groups = [(free - maker.batches - maker.pasts, size), (maker.batches, size)]
        groups += [(maker.pasts, size), (maker.pasts, size - new)] if maker.pasts else []
        for names, wanted in groups:
            least = 0 if names == maker.pasts else 1
            if not names or not least <= wanted <= _MOST_SIZE:
                continue
            plan = maker.sized(dict.fromkeys(names, wanted))
            full = maker.completed(plan)
            is_small = elements_of(maker.shapes, full.sizes) <= AIMED_ELEMENTS
            if is_small and is_affordable(model, full.sizes):
                yield plan

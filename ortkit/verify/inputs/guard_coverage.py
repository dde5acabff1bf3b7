"""Which guards of a model are met on both sides, on the inputs that it is verified on.

A guard decides by values: a comparison, the condition of a Where or an If, a bound of a Clip. What
only sizes decide is no guard, but for an If and for a comparison of lengths or positions with a
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, roots, subgraphs
from ortkit.operators import where
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.inputs.long import is_length_test, length_tests
from ortkit.verify.steps import captured, computed_values

_COMPARISONS = where(access="elementwise", dtype="bool", broadcasts=True)
_CHOICES = frozenset({"Where", "If"})
_KINDS = _COMPARISONS | _CHOICES | {"Clip"}
#: Operators behind which a condition is the same one.
_CARRIERS = (where(keeps_all=True) - {"Concat"}) | {"Cast", "Not"}
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
#: A bound at the end of a type is no bound: the largest numbers of float16, bfloat16 and float32.
_LARGEST = frozenset({65504.0, 3.3895313892515355e38, 3.4028234663852886e38})


@dataclass(frozen=True)
class Guard:
    """Something that a value decides."""

    node: str
    """The op type and the first output of the node."""
    test: str = ""
    """Which bound of a Clip it is; empty for others."""
    asks_for_nan: bool = False
    """Whether it asks for NaN or infinities, which usual numbers do not lead to."""
    of_input: bool = False
    """Whether it asks an input, moved at most."""

    @property
    def is_reachable(self) -> bool:
        """Whether some numbers lead to both of its sides: only an input can hold NaN."""
        return not self.asks_for_nan or self.of_input


Side: TypeAlias = tuple[int, bool]
"""The index of a guard, and whether its condition is true."""


@dataclass(frozen=True)
class MissedGuard:
    """A guard that was met on one side, or on none."""

    node: str
    test: str
    met: str
    """`true`, `false`, or `none` where the condition was empty."""


@dataclass(frozen=True)
class GuardCoverage:
    """How many guards were met on both sides."""

    guards: int
    missed: tuple[MissedGuard, ...] = ()
    in_bodies: int = 0
    """The guards in the bodies of If, Loop and Scan, which are not measured."""

    def __str__(self) -> str:
        """Say it in a few words; empty where there are no guards."""
        parts = []
        if self.guards:
            met = self.guards - len(self.missed)
            parts.append(f"{met} of {self.guards} seen true and false")
        if self.in_bodies:
            parts.append(f"{self.in_bodies} in bodies not measured")
        return f"conditions: {', '.join(parts)}" if parts else ""

    def to_json(self) -> dict[str, object]:
        """Return the fields, as JSON's types."""
        return asdict(self)


def add_probes(model: ir.Model, *, reachable_only: bool = False) -> list[Guard]:
    """Let a model give, for each guard, how often it is true and how often it is asked.

    Args:
        model: Changed in place. Its results are those numbers only, two for each guard.
        reachable_only: Whether guards are left out that usual numbers meet on one side only.
    """
    conditions = list(_conditions(model))
    if reachable_only:
        conditions = [each for each in conditions if each[0].is_reachable]
    give_probes(model, [value for _, value in conditions])
    return [guard for guard, _ in conditions]


def give_probes(model: ir.Model, conditions: Iterable[ir.Value]) -> None:
    """Let a model give how often conditions are true and how often they are asked.

    Args:
        model: Changed in place. Its results are those numbers only, two for each condition.
        conditions: Its booleans.
    """
    model.graph.outputs[:] = []
    for index, value in enumerate(conditions):
        cast = ir.node("Cast", [value], attributes={"to": ir.DataType.INT64})
        true = ir.node("ReduceSum", cast.outputs, attributes={"keepdims": 0})
        asked = ir.node("Size", [value])
        model.graph.extend((cast, true, asked))
        for node, name in ((true, _true(index)), (asked, _asked(index))):
            node.outputs[0].name = name
            node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
            model.graph.outputs.append(node.outputs[0])


def read_coverage(
    guards: Iterable[Guard], results: Iterable[Mapping[str, Value]], in_bodies: int
) -> GuardCoverage:
    """Return what the results of `add_probes` say, of all input sets together."""
    guards = list(guards)
    met = set[Side]().union(*(sides_met(len(guards), run) for run in results))
    missed = []
    for index, guard in enumerate(guards):
        sides = [side for side in (True, False) if (index, side) in met]
        if len(sides) < 2:
            side = "none" if not sides else "true" if sides[0] else "false"
            missed.append(MissedGuard(guard.node, guard.test, side))
    return GuardCoverage(len(guards), tuple(missed), in_bodies)


def sides_met(guards: int, run: Mapping[str, Value]) -> set[Side]:
    """Return the sides on which one input set meets guards; none if it did not run.

    Args:
        guards: The number of guards.
        run: The results of `add_probes`.
    """
    found: set[Side] = set()
    for index in range(guards if run else 0):
        true, asked = (int(np.asarray(run[name])) for name in (_true(index), _asked(index)))
        found |= {(index, True)} if true else set()
        found |= {(index, False)} if true < asked else set()
    return found


def guards_in_bodies(model: ir.Model) -> int:
    """Count the guards in the bodies of nodes."""
    bodies = (body for node in model.graph for body in subgraphs(node))
    return sum(_may_decide(node) for body in bodies for node in nodes_below(body))


def may_have_guards(model: ir.Model) -> bool:
    """Say whether some node of a model, or of its functions, is of a kind that guards are."""
    return any(_may_decide(node) for root in roots(model) for node in nodes_below(root))


def _may_decide(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _KINDS


def probe_names(guards: int) -> set[str]:
    """Return the names of the results of `add_probes`."""
    return {name(index) for index in range(guards) for name in (_true, _asked)}


def _true(index: int) -> str:
    return f"guard/{index}/true"


def _asked(index: int) -> str:
    return f"guard/{index}/asked"


def _conditions(model: ir.Model) -> Iterator[tuple[Guard, ir.Value]]:
    """Yield the guards of the main graph with their boolean values, each condition once."""
    computed, by_values = {*computed_values(model).values()}, _read_from_values(model)
    by_values |= {node.outputs[0] for node in length_tests(model) if is_length_test(node)}
    shapes: Shapes | None = None
    seen: set[ir.Value] = set()
    for node in list(model.graph):
        if node.domain or not node.inputs:
            continue
        name = f"{node.op_type} {node.outputs[0].name!r}"
        if node.op_type == "Clip" and node.inputs[0] in by_values:
            shapes = Shapes.infer(model) if shapes is None else shapes
            yield from ((Guard(name, test), value) for test, value in _bounds(node, shapes))
        condition = node.outputs[0] if node.op_type in _COMPARISONS else node.inputs[0]
        if node.op_type not in _COMPARISONS | _CHOICES or condition is None:
            continue
        decides = condition in by_values or (node.op_type == "If" and condition in computed)
        root = _root(condition)
        if decides and root not in seen:
            seen.add(root)
            source = root.producer()
            asks = source is not None and source.op_type in ("IsNaN", "IsInf")
            asked = source.inputs[0] if source is not None and asks else None
            of_input = asked is not None and _root(asked).is_graph_input()
            yield Guard(name, asks_for_nan=asks, of_input=of_input), condition


def _read_from_values(model: ir.Model) -> set[ir.Value]:
    """Return the inputs and what is computed from their elements, and not from their sizes."""
    found: set[ir.Value] = {each for each in model.graph.inputs if not each.is_initializer()}
    for node in model.graph:
        if node.op_type in ("Shape", "Size") and not node.domain:
            continue
        if any(value in found for value in (*node.inputs, *captured(node))):
            found.update(node.outputs)
    return found


def _root(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and node.op_type in _CARRIERS and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _bounds(node: ir.Node, shapes: Shapes) -> Iterator[tuple[str, ir.Value]]:
    """Compare the input of a Clip with its bounds; yields what says that each of them decides."""
    (value, *given), graph = node.inputs, node.graph
    if value is None or shapes.dtype(value) not in _FLOATS or graph is None:
        return
    for index, (op, side) in enumerate((("Less", "below"), ("Greater", "above"))):
        bound = given[index] if index < len(given) else None
        number = _number(node, bound, ("min", "max")[index])
        if number is not None and (abs(number) in _LARGEST or np.isinf(number)):
            continue
        if bound is None:
            if number is None:
                continue
            constant = ir.node(
                "Constant", [], attributes={"value": ir.tensor(np.array(number, np.float32))}
            )
            graph.insert_before(node, constant)
            bound = constant.outputs[0]
        test = ir.node(op, [value, bound])
        graph.insert_before(node, test)
        yield f"{side} {bound.name if number is None else f'{number:g}'}", test.outputs[0]


def _number(node: ir.Node, bound: ir.Value | None, attribute: str) -> float | None:
    """Return a bound that is constant; None for others, and where there is none."""
    if bound is not None:
        array = constant_array(bound, limit=1)
        return None if array is None else float(array.reshape(-1)[0])
    return node.attributes.get_float(attribute, None) if attribute in node.attributes else None

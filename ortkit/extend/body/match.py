"""Whether nodes of a graph are what a function body says: node by node, from the result back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.analysis.cones import POINTWISE
from ortkit.analysis.float64_eval import Array, as_sample
from ortkit.operators import where
from ortkit.rewrite.scope import Scope

_COMMUTATIVE = where(commutative=True)
#: Constants of a body beyond this many elements are not compared.
_MOST_ELEMENTS = 1 << 16
_TOLERANCE = 1e-6
#: This many ways to read the operands of commutative nodes are looked at, each of this many
#: operands.
_MOST_WAYS, _MOST_PERMUTED = 16, 3


@dataclass(frozen=True)
class Body:
    """A function body without attributes, by the names of its values."""

    inputs: tuple[str, ...]
    output: str
    nodes: tuple[ir.Node, ...]
    constants: Mapping[str, Array] = field(repr=False)

    @classmethod
    def of(cls, proto: onnx.FunctionProto, inputs: int, numbers: Mapping[str, float]) -> Body:
        """Read a function.

        Args:
            proto: Without references to attributes.
            inputs: How many of its inputs are the op's.
            numbers: What the others are.
        """
        function = ir.serde.deserialize_function(proto)
        constants: dict[str, Array] = {
            name: np.asarray(number) for name, number in numbers.items()
        }
        nodes = []
        for node in function:
            if node.op_type == "Constant" and not node.domain:
                tensor = ir.convenience.get_const_tensor(node.outputs[0])
                if tensor is not None:
                    constants[str(node.outputs[0].name)] = as_sample(tensor.numpy())  # type: ignore[assignment]
                    continue
            nodes.append(node)
        names = tuple(str(value.name) for value in function.inputs)
        return cls(names[:inputs], str(function.outputs[0].name), tuple(nodes), constants)

    def is_pointwise(self) -> bool:
        """Say whether each element of the result depends on one of each input."""
        is_scalar = all(constant.size == 1 for constant in self.constants.values())
        return is_scalar and all(
            node.op_type in POINTWISE and not node.domain and len(node.outputs) == 1
            for node in self.nodes
        )

    def names(self, node: ir.Node) -> tuple[str, ...]:
        """Return what a node reads; absent inputs are empty."""
        return tuple("" if value is None else str(value.name) for value in node.inputs)

    def output_of(self, node: ir.Node) -> str:
        """Return the name of a node's first output."""
        return str(node.outputs[0].name)


@dataclass(frozen=True)
class Matched:
    """Nodes that are a body."""

    inputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    """The one that makes the result first."""


_Found: TypeAlias = dict[str, ir.Value]


@dataclass
class Nearest:
    """The place where most of a body was found, and what it lacks there."""

    matched: int = 0
    """Nodes of the body that were found there."""
    has_node: bool = False
    """Whether there is a node, and not an input, where one of the body is not."""
    end: ir.Node | None = None
    """The node that would make the result."""
    lacks: str = ""

    def note(self, matched: int, end: ir.Node, lacks: str, *, has_node: bool) -> None:
        """Keep the place if it is nearer than those before."""
        if (matched, has_node) > (self.matched, self.has_node):
            self.matched, self.has_node, self.end, self.lacks = matched, has_node, end, lacks


def match_body(
    body: Body, scope: Scope, end: ir.Node, nearest: Nearest | None = None
) -> Iterator[Matched]:
    """Yield what the body's inputs may be if `end` makes its result.

    Operands of commutative nodes may stand either way, so there may be several. `nearest` is told
    how far each place goes.
    """
    producers = {body.output_of(node): node for node in body.nodes}
    if body.output not in producers or producers[body.output].op_type != end.op_type:
        return
    search = _Search(body, producers, scope, end, nearest or Nearest())
    for found in islice(search.match(body.output, end.outputs[0], {}), _MOST_WAYS):
        if any(name not in found for name in body.inputs):
            continue
        nodes = {end: None}
        for name in reversed(list(found)):
            node = found[name].producer() if name in producers else None
            if node is not None:
                nodes[node] = None
        yield Matched(tuple(found[name] for name in body.inputs), tuple(nodes))


@dataclass(frozen=True)
class _Search:
    """One call of `match_body`."""

    body: Body
    producers: Mapping[str, ir.Node]
    scope: Scope
    end: ir.Node
    nearest: Nearest

    def match(self, name: str, value: ir.Value, found: _Found) -> Iterator[_Found]:
        """Yield what else is known if `value` is what the body calls `name`; nothing if not."""
        if name in found:
            if found[name] is value:
                yield found
            else:
                self._lacks(found, f"{value.name!r} in the place of {found[name].name!r}")
            return
        if name in self.body.constants:
            if _is_constant(self.scope, value, self.body.constants[name]):
                yield found
            else:
                self._lacks(found, f"{value.name!r} in the place of a constant of the body")
            return
        if name not in self.producers:
            yield {**found, name: value}
            return
        written, node = self.producers[name], value.producer()
        given = [] if node is None else list(node.inputs)
        while given and given[-1] is None:
            given.pop()
        wanted = self.body.names(written)
        is_first = node is not None and value is node.outputs[0]
        if node is None or not is_first or not _is_alike(written, node):
            made = "an input" if node is None else node.op_type
            same = made == written.op_type
            differs = f"{made} with other attributes" if same else made
            self._lacks(
                found,
                f"{differs} ({value.name!r}) in the place of {written.op_type}",
                has_node=node is not None,
            )
            return
        if len(given) != len(wanted):
            self._lacks(found, f"{written.op_type} ({value.name!r}) with {len(given)} operands")
            return
        is_free = written.op_type in _COMMUTATIVE and len(given) <= _MOST_PERMUTED
        for operands in permutations(given) if is_free else [tuple(given)]:
            ways: list[_Found] = [{**found, name: value}]
            for inner, operand in zip(wanted, operands, strict=True):
                if operand is None:
                    ways = [] if inner else ways
                    continue
                ways = [longer for way in ways for longer in self.match(inner, operand, way)]
                del ways[_MOST_WAYS:]
            yield from ways

    def _lacks(self, found: _Found, what: str, *, has_node: bool = False) -> None:
        matched = sum(name in self.producers for name in found)
        self.nearest.note(matched, self.end, what, has_node=has_node)


def _is_alike(written: ir.Node, node: ir.Node) -> bool:
    if (written.op_type, written.domain) != (node.op_type, node.domain):
        return False
    return _attributes(written) == _attributes(node)


def _attributes(node: ir.Node) -> dict[str, object] | None:
    """Return a node's attributes with defaults filled in; None where one is a function's."""
    if any(one.is_ref() for one in node.attributes.values()):
        return None
    given = {
        name: tuple(item.value) if isinstance(item.value, list | tuple) else item.value
        for name, item in node.attributes.items()
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return given
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            given[name] = value.decode() if isinstance(value, bytes) else value
    return given


def _is_constant(scope: Scope, value: ir.Value, wanted: Array) -> bool:
    array = scope.array(value, _MOST_ELEMENTS)
    if array is None or array.dtype.kind in "SUO":
        return False
    found = as_sample(array)
    if found is None or (found.shape != wanted.shape and not found.size == wanted.size == 1):
        return False
    return bool(np.isclose(found.reshape(wanted.shape), wanted, rtol=_TOLERANCE, atol=0.0).all())

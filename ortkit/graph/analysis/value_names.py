"""Which values two models have in common: those of one name, where that is not in doubt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.walk import nodes_below, subgraphs

#: A value called `x/nhwc`, or `x/nhwc_1`, is x with its channels as the last axis: another value,
#: but the nodes before it are those of x.
CHANNELS_LAST = "/nhwc"
_CHANNELS_LAST_NAME = re.compile(re.escape(CHANNELS_LAST) + r"(_\d+)?$")
#: ONNX Runtime calls blocked convolutions `x_nchwc`, by the value whose place they take.
BLOCKED_DOMAIN, _BLOCKED = "com.microsoft.nchwc", "_nchwc"
#: Ops that give their first input back, as far as the meaning of a value goes.
_ALIASES = frozenset({"Identity", "Dropout", "Cast"})
_LONGEST_ALIAS = 64

Key = str | tuple[str, ...]
"""A value's name; where a model has it in several scopes, the way to it and the name."""


@dataclass
class Side:
    """One of two models, its subgraphs laid open."""

    nodes: list[ir.Node]
    labels: list[str]
    index: dict[ir.Node, int]
    holders: dict[ir.Graph, ir.Node]
    values: list[tuple[tuple[str, ...], ir.Value]]
    """Every value, with the way to its graph."""
    twice: set[str]
    keys: dict[ir.Value, Key] = field(default_factory=dict)

    @staticmethod
    def of(model: ir.Model) -> Side:
        """Read a model."""
        called = labels(model)
        nodes = list(called)
        side = Side(nodes, list(called.values()), {}, {}, [], set())
        side.index = {node: at for at, node in enumerate(nodes)}
        side._enter(model.graph)
        names = Counter(value.name for _, value in side.values)
        side.twice = {name for name, count in names.items() if name and count > 1}
        return side

    def _enter(self, root: ir.Graph) -> None:
        pending: list[tuple[tuple[str, ...], ir.Graph]] = [((), root)]
        while pending:
            way, graph = pending.pop()
            known = {*graph.inputs, *graph.initializers.values()}
            self.values += [(way, value) for value in known if value.name]
            for node in graph:
                self.values += [(way, value) for value in node.outputs if value.name]
                if not node.attributes:
                    continue
                first = next((value.name or "" for value in node.outputs), "")
                for number, body in enumerate(subgraphs(node)):
                    self.holders[body] = node
                    pending.append(((*way, first, str(number)), body))

    def keyed(self, is_twice: set[str]) -> dict[Key, ir.Value]:
        """Return every value by its key."""
        for way, value in self.values:
            name = value.name or ""
            self.keys[value] = (*way, name) if name in is_twice else name
        return {key: value for value, key in self.keys.items()}

    def adopt_layout_names(self, other: Side) -> frozenset[Key]:
        """Give the values that `other` has in another layout its keys; return those keys."""
        mine, theirs = set(self.keys.values()), set(other.keys.values())
        found: set[Key] = set()
        for value in self.keys:
            key = name_in_other_layout(value)
            if key in theirs and key not in mine:
                self.keys[value] = key
                found.add(key)
        return frozenset(found)

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes that read `value`; for the result of a subgraph also its holder."""
        yield from value.consumers()
        if value.is_graph_output() and value.graph in self.holders:
            yield self.holders[value.graph]


def name_in_other_layout(value: ir.Value) -> str:
    """Return the name of the value that this one holds in another layout, else nothing."""
    name = value.name or ""
    if found := _CHANNELS_LAST_NAME.search(name):
        return name[: found.start()]
    node = value.producer()
    if node is None or node.domain != BLOCKED_DOMAIN or value is not node.outputs[0]:
        return ""
    return (node.name or "").removesuffix(_BLOCKED)


@dataclass(frozen=True)
class Pair:
    """Both models, and their values by key."""

    before: Side
    after: Side
    left: Mapping[Key, ir.Value]
    right: Mapping[Key, ir.Value]


def shared_values(pair: Pair) -> frozenset[Key]:
    """Return the keys that mean the same value in both."""
    both = {
        key
        for key in pair.left.keys() & pair.right.keys()
        if _may_be_same(pair.left[key], pair.right[key])
    }
    reversed_pair = Pair(pair.after, pair.before, pair.right, pair.left)
    return frozenset(both.difference(_doubtful(pair), _doubtful(reversed_pair)))


def _may_be_same(one: ir.Value, other: ir.Value) -> bool:
    """Say whether the kinds of element are the same, and the ranks and sizes as far as known."""
    if one.dtype is not None and other.dtype is not None and _kind(one) != _kind(other):
        return False
    if one.shape is None or other.shape is None:
        return True
    if len(one.shape) != len(other.shape):
        return False
    pairs = zip(one.shape, other.shape, strict=True)
    return all(x == y for x, y in pairs if isinstance(x, int) and isinstance(y, int))


def _kind(value: ir.Value) -> str:
    """Return one word for all floats: models in half precision keep the names."""
    dtype = value.dtype
    if dtype is None:
        return ""
    if dtype.is_floating_point():
        return "float"
    return "integer" if dtype.is_integer() and dtype.bitwidth >= 32 else dtype.name


def _doubtful(pair: Pair) -> Iterator[Key]:
    """Yield names that in B seem to mean what another value, gone from B, means in A."""
    makers = {_first_key(pair.before, node): node for node in pair.before.nodes}
    for node in pair.after.nodes:
        old = makers.get(_first_key(pair.after, node))
        if old is None or old.op_identifier() != node.op_identifier():
            continue
        for was, now in zip(old.inputs, node.inputs, strict=False):
            if was is None or now is None:
                continue
            key = pair.after.keys.get(now, "")
            if not key or key == pair.before.keys.get(was) or key not in pair.left:
                continue
            if pair.before.keys.get(was, "") in pair.right or _is_alias(was, pair.left[key]):
                continue
            if not _is_made_alike(pair, pair.left[key], now):
                yield key


def _first_key(side: Side, node: ir.Node) -> Key:
    return next((side.keys[value] for value in node.outputs if value.name), "")


def _is_alias(value: ir.Value, of: ir.Value) -> bool:
    """Say whether `value` is `of`, passed through nodes that change nothing."""
    for _ in range(_LONGEST_ALIAS):
        if value is of:
            return True
        node = value.producer()
        if node is None or node.op_type not in _ALIASES or not node.inputs or not node.inputs[0]:
            return False
        value = node.inputs[0]
    return False


def _is_made_alike(pair: Pair, one: ir.Value, other: ir.Value) -> bool:
    """Say whether the same op makes both from the same values."""
    left, right = one.producer(), other.producer()
    if left is None or right is None:
        return left is right
    if left.op_identifier() != right.op_identifier() or len(left.inputs) != len(right.inputs):
        return False
    if left.attributes.keys() != right.attributes.keys():
        return False
    if not all(
        _is_equal(left.attributes[name], right.attributes[name]) for name in left.attributes
    ):
        return False
    return all(_is_same_input(pair, x, y) for x, y in zip(left.inputs, right.inputs, strict=True))


def _is_equal(one: ir.Attr, other: ir.Attr) -> bool:
    if one.type != other.type or one.is_ref() or other.is_ref():
        return False
    if one.type == ir.AttributeType.TENSOR:
        return _is_same_data(one.as_tensor(), other.as_tensor())
    if one.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return False
    return bool(one.value == other.value)


def _is_same_input(pair: Pair, one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is None or other is None:
        return one is other
    left, right = constant_array(one), constant_array(other)
    if left is not None and right is not None:
        return left is right or np.array_equal(left, right)
    return pair.before.keys.get(one) == pair.after.keys.get(other)


def _is_same_data(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one.numpy(), other.numpy()))


def labels(model: ir.Model) -> dict[ir.Node, str]:
    """Return what each node of the main graph and of its subgraphs is called in an alignment.

    Its name; where it has none, or shares it with another, its operator and first output:
    `Add(x_3)`. No two are equal.
    """
    nodes = list(nodes_below(model.graph))
    counts = Counter(node.name for node in nodes)
    used = {node.name for node in nodes if node.name and counts[node.name] == 1}
    found: dict[ir.Node, str] = {}
    for node in nodes:
        if node.name and counts[node.name] == 1:
            found[node] = node.name
            continue
        output = next((value.name for value in node.outputs if value.name), "")
        label, number = f"{node.name or node.op_type}({output})", 1
        while label in used:
            number += 1
            label = f"{node.name or node.op_type}({output})#{number}"
        used.add(label)
        found[node] = label
    return found

"""Which nodes of one model stand for which nodes of another, told by the names of values.

Tools that rewrite a graph rename nodes, but most keep the names of the values between them: a
value that two models call by the same name is the same value. Between such values the nodes
that lead to one of them in the one model correspond to those that lead to it in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.walk import nodes_below, subgraphs

#: What a node leads to is followed exactly up to so many values, beyond that by structure.
_EXACT = 64
#: Ops that give their first input back, as far as the meaning of a value goes.
_ALIASES = frozenset({"Identity", "Dropout", "Cast"})


@dataclass(frozen=True)
class Group:
    """Nodes of A and the nodes of B that do the same work, by their labels; see `labels`."""

    before: tuple[str, ...]
    """Nodes of A; empty for what only B has."""
    after: tuple[str, ...]
    """Nodes of B; empty for what only A has."""


@dataclass(frozen=True)
class Alignment:
    """How two models correspond."""

    groups: tuple[Group, ...]
    """Every node of A and every node of B is in exactly one, in the order of the models."""
    values: frozenset[str]
    """Names of inputs and computed values that mean the same in A and in B."""


def align(a: ir.Model, b: ir.Model) -> Alignment:
    """Say which nodes of `a` and `b` correspond, those in subgraphs included.

    A name that both have does not count where it is in doubt: the types or ranks differ, or
    nodes that make the same value read it where they read another value before, as a tool
    leaves it that folds a node into the one before and keeps the wrong name.

    A node belongs to the value of common name that all of its results lead to. Nodes that lead
    to several, such as those of a mask that all layers read, are a group of their own. The
    time is linear in the number of nodes and edges.
    """
    before, after = _Side.of(a), _Side.of(b)
    is_twice = before.twice | after.twice
    left, right = before.keyed(is_twice), after.keyed(is_twice)
    shared = _shared(_Pair(before, after, left, right))
    classes = _classes((before, after), shared)
    table = _Table()
    places: dict[int, tuple[list[int], list[int]]] = {}
    for index, side in enumerate((before, after)):
        for at, target in enumerate(_targets(side, shared, classes, table)):
            places.setdefault(target, ([], []))[index].append(at)
    groups = [
        Group(tuple(before.labels[at] for at in mine), tuple(after.labels[at] for at in others))
        for mine, others in sorted(places.values(), key=_order(places.values()))
    ]
    names = (key for key in shared if isinstance(key, str) and _is_computed(left[key], right[key]))
    return Alignment(tuple(groups), frozenset(names))


def labels(model: ir.Model) -> dict[ir.Node, str]:
    """Return what each node of the main graph and of its subgraphs is called in an alignment.

    Its name; where it has none, or shares it with another, its operator and first output:
    `Add(x_3)`. No two are equal.
    """
    nodes = list(nodes_below(model.graph))
    counts = Counter(node.name for node in nodes)
    taken = {node.name for node in nodes if node.name and counts[node.name] == 1}
    found: dict[ir.Node, str] = {}
    for node in nodes:
        if node.name and counts[node.name] == 1:
            found[node] = node.name
            continue
        output = next((value.name for value in node.outputs if value.name), "")
        label, number = f"{node.name or node.op_type}({output})", 1
        while label in taken:
            number += 1
            label = f"{node.name or node.op_type}({output})#{number}"
        taken.add(label)
        found[node] = label
    return found


_Key = str | tuple[str, ...]
"""A value's name; where a model has it in several scopes, the way to it and the name."""


@dataclass
class _Side:
    """One of the models, its subgraphs laid open."""

    nodes: list[ir.Node]
    labels: list[str]
    index: dict[ir.Node, int]
    holders: dict[ir.Graph, ir.Node]
    values: list[tuple[tuple[str, ...], ir.Value]]
    """Every value, with the way to its graph."""
    twice: set[str]
    keys: dict[ir.Value, _Key] = field(default_factory=dict)

    @staticmethod
    def of(model: ir.Model) -> _Side:
        called = labels(model)
        nodes = list(called)
        side = _Side(nodes, list(called.values()), {}, {}, [], set())
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

    def keyed(self, is_twice: set[str]) -> dict[_Key, ir.Value]:
        """Return every value by its key."""
        for way, value in self.values:
            name = value.name or ""
            self.keys[value] = (*way, name) if name in is_twice else name
        return {key: value for value, key in self.keys.items()}

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes that read `value`; for the result of a subgraph also its holder."""
        yield from value.consumers()
        if value.is_graph_output() and value.graph in self.holders:
            yield self.holders[value.graph]


@dataclass(frozen=True)
class _Pair:
    before: _Side
    after: _Side
    left: Mapping[_Key, ir.Value]
    right: Mapping[_Key, ir.Value]


# ---- which values are the same ---------------------------------------------------------


def _shared(pair: _Pair) -> frozenset[_Key]:
    both = {
        key
        for key in pair.left.keys() & pair.right.keys()
        if _may_be_same(pair.left[key], pair.right[key])
    }
    turned = _Pair(pair.after, pair.before, pair.right, pair.left)
    return frozenset(both.difference(_doubtful(pair), _doubtful(turned)))


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


def _doubtful(pair: _Pair) -> Iterator[_Key]:
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


def _first_key(side: _Side, node: ir.Node) -> _Key:
    return next((side.keys[value] for value in node.outputs if value.name), "")


def _is_alias(value: ir.Value, of: ir.Value) -> bool:
    """Say whether `value` is `of`, passed through nodes that change nothing."""
    for _ in range(_EXACT):
        if value is of:
            return True
        node = value.producer()
        if node is None or node.op_type not in _ALIASES or not node.inputs or not node.inputs[0]:
            return False
        value = node.inputs[0]
    return False


def _is_made_alike(pair: _Pair, one: ir.Value, other: ir.Value) -> bool:
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


def _is_same_input(pair: _Pair, one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is None or other is None:
        return one is other
    left, right = constant_array(one), constant_array(other)
    if left is not None and right is not None:
        return left is right or np.array_equal(left, right)
    return pair.before.keys.get(one) == pair.after.keys.get(other)


def _is_same_data(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one.numpy(), other.numpy()))


def _is_computed(one: ir.Value, other: ir.Value) -> bool:
    return not (one.is_initializer() and other.is_initializer())


# ---- which nodes lead where ------------------------------------------------------------


def _classes(sides: Iterable[_Side], shared: frozenset[_Key]) -> dict[_Key, _Key]:
    """Map each shared value to one that stands for all that a node of either makes with it."""
    parents: dict[_Key, _Key] = {}

    def root(key: _Key) -> _Key:
        while (parent := parents.get(key, key)) != key:
            parents[key] = key = parents.get(parent, parent)
        return key

    for side in sides:
        for node in side.nodes:
            made = [side.keys[value] for value in node.outputs if value.name]
            made = [key for key in made if key in shared]
            for key in made[1:]:
                parents[root(key)] = root(made[0])
    return {key: root(key) for key in shared}


class _Table:
    """Numbers for what nodes lead to; equal in both models where that is equal."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._members: list[frozenset[int] | None] = []

    def one(self, key: object) -> int:
        """Return the number of a single goal."""
        return self._number(("one", key), None)

    def of(self, numbers: set[int]) -> int:
        """Return the number of everything that these lead to."""
        if len(numbers) == 1:
            return next(iter(numbers))
        members: set[int] = set()
        for number in numbers:
            members.update(self._members[number] or (number,))
            if len(members) > _EXACT:
                return self._number(("many", frozenset(numbers)), None)
        return self._number(("set", frozenset(members)), frozenset(members))

    def _number(self, key: object, members: frozenset[int] | None) -> int:
        if (known := self._numbers.get(key)) is not None:
            return known
        self._numbers[key] = len(self._members)
        self._members.append(members)
        return len(self._members) - 1


def _targets(
    side: _Side, shared: frozenset[_Key], classes: Mapping[_Key, _Key], table: _Table
) -> list[int]:
    """Return for each node the number of what it leads to."""
    found = [-1] * len(side.nodes)
    readers = [_readers(side, node, shared) for node in side.nodes]
    waiting = [len(each) for each in readers]
    feeders: list[list[int]] = [[] for _ in side.nodes]
    for at, each in enumerate(readers):
        for reader in each:
            feeders[reader].append(at)
    ready = [at for at, count in enumerate(waiting) if count == 0]
    while ready:
        at = ready.pop()
        made = [side.keys[value] for value in side.nodes[at].outputs if value.name]
        goal = next((classes[key] for key in made if key in shared), None)
        if goal is not None:
            found[at] = table.one(goal)
        elif readers[at]:
            found[at] = table.of({found[reader] for reader in readers[at]})
        else:
            found[at] = table.one((id(side), at))
        for feeder in feeders[at]:
            waiting[feeder] -= 1
            if waiting[feeder] == 0:
                ready.append(feeder)
    return found


def _readers(side: _Side, node: ir.Node, shared: frozenset[_Key]) -> set[int]:
    """Return the nodes that decide what `node` leads to: none where a result is shared."""
    named = [value for value in node.outputs if value.name]
    if any(side.keys[value] in shared for value in named):
        return set()
    return {side.index[reader] for value in named for reader in side.readers(value)}


def _order(places: Iterable[tuple[list[int], list[int]]]) -> _Order:
    return _Order(list(places))


class _Order:
    """Sorts groups by A; what only B has comes after what precedes it there."""

    def __init__(self, places: Sequence[tuple[list[int], list[int]]]) -> None:
        self._after: dict[int, tuple[int, int]] = {}
        last = -1
        for others, mine in sorted((others[0], mine) for mine, others in places if others):
            last = mine[0] if mine else last
            self._after[others] = last, others

    def __call__(self, place: tuple[list[int], list[int]]) -> tuple[int, int]:
        mine, others = place
        if mine:
            return mine[0], -1
        return self._after[others[0]]

"""The edits that `Scope` makes: each knows whether it can still be undone, and how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ortkit.refusal import Refused

Inputs = tuple[ir.Value | None, ...]

#: In the metadata of a value: what stands for it, and the number of that `Scope.replace`.
REPLACED_BY = "ortkit.replaced-by"


class Journal(Protocol):
    """What an edit asks of the transaction that it is part of; see `Transaction`."""

    @property
    def inserted(self) -> AbstractSet[ir.Node]: ...
    @property
    def removed(self) -> AbstractSet[ir.Node]: ...
    def forget(self, node: ir.Node) -> None: ...
    def is_last_to_set(self, node: ir.Node) -> bool: ...
    def can_read(self, value: ir.Value | None) -> bool: ...
    def can_hand_back(self, value: ir.Value) -> bool: ...
    def reads_alone(self, value: ir.Value) -> bool: ...
    def lend(self, node: ir.Node, values: Inputs) -> None: ...


class Edit(ABC):
    """One change of a graph."""

    def refusal(self, transaction: Journal) -> Refused | None:
        """Return why it can no longer be undone, None if it can."""
        del transaction
        return None

    @abstractmethod
    def undo(self, transaction: Journal) -> None:
        """Take it back; what the transaction did after it has been taken back."""


@dataclass(frozen=True)
class Independent(Edit):
    """What can be taken back whatever came later."""

    take_back: Callable[[], object]

    def undo(self, transaction: Journal) -> None:
        del transaction
        self.take_back()


@dataclass(frozen=True)
class Inserted(Edit):
    """A node was inserted."""

    node: ir.Node

    def refusal(self, transaction: Journal) -> Refused | None:
        if self.node in transaction.removed:
            return None
        if self.node.graph is None:
            return Refused("a node that it inserted is gone")
        if all(transaction.can_hand_back(value) for value in self.node.outputs):
            return None
        return Refused("others read what only it computes")

    def undo(self, transaction: Journal) -> None:
        assert self.node.graph is not None
        self.node.graph.remove(self.node, safe=True)
        transaction.forget(self.node)


@dataclass(frozen=True)
class Removed(Edit):
    """A node was removed.

    Args:
        node: The node.
        order: The nodes of its graph before the transaction first removed one.
        position: Of the node in `order`.
        inputs: What it and the nodes in its subgraphs read.
    """

    node: ir.Node
    graph: ir.Graph
    order: Sequence[ir.Node]
    position: int
    inputs: tuple[tuple[ir.Node, Inputs], ...]

    def refusal(self, transaction: Journal) -> Refused | None:
        if all(transaction.can_read(value) for _, values in self.inputs for value in values):
            return None
        return Refused("what a node that it removed has read is gone")

    def undo(self, transaction: Journal) -> None:
        earlier = reversed(self.order[: self.position])
        before = next((node for node in earlier if node.graph is self.graph), None)
        if before is not None:
            self.graph.insert_after(before, self.node)
        elif len(self.graph):
            self.graph.insert_before(self.graph[0], self.node)
        else:
            self.graph.append(self.node)
        for node, values in self.inputs:
            transaction.lend(node, values)


@dataclass(frozen=True)
class InputsSet(Edit):
    """A node reads other values."""

    node: ir.Node
    before: Inputs
    after: Inputs

    @property
    def changed(self) -> tuple[int, ...]:
        """The inputs that differ."""
        indices = range(max(len(self.before), len(self.after)))
        return tuple(
            each for each in indices if self.before[each : each + 1] != self.after[each : each + 1]
        )

    def refusal(self, transaction: Journal) -> Refused | None:
        if self.node in transaction.removed:
            return None
        if self.node.graph is None or not transaction.is_last_to_set(self.node):
            return Refused("a node that it changed is gone, or was changed since")
        if all(transaction.can_read(value) for value in self.before):
            return None
        return Refused("what a node that it changed has read is gone")

    def undo(self, transaction: Journal) -> None:
        changed, now = self.changed, self.node.inputs
        values = (
            value if index in changed else now[index] for index, value in enumerate(self.before)
        )
        transaction.lend(self.node, tuple(values))


@dataclass(frozen=True)
class Replaced(Edit):
    """A value stands for another one.

    Args:
        old: The other one.
        new: What is read instead.
        uses: The inputs that read `old`.
        others: The inputs that read `new` already.
        outputs: The graph that returned `old`, and where.
    """

    old: ir.Value
    new: ir.Value
    uses: tuple[tuple[ir.Node, int], ...]
    others: frozenset[tuple[ir.Node, int]]
    outputs: tuple[tuple[ir.Graph, int], ...]

    def refusal(self, transaction: Journal) -> Refused | None:
        if not is_present(self.old) and self.old.producer() not in transaction.removed:
            return Refused("what it replaced is gone")
        # The node that makes it may compute something else since.
        if transaction.reads_alone(self.old):
            return None
        return Refused("others read what was left of a value that it replaced")

    def undo(self, transaction: Journal) -> None:
        for node, index in self.uses:
            if node.inputs[index : index + 1] == (self.new,):
                node.replace_input_with(index, self.old)
        # What has come to read a node that goes.
        is_inserted = self.new.producer() in transaction.inserted
        for use in self.new.uses() if is_inserted else ():
            if use.node not in transaction.inserted and use not in self.others:
                use.node.replace_input_with(use.idx, self.old)
        for graph, position in self.outputs:
            if graph.outputs[position] is self.new:
                graph.outputs[position] = self.old
        self.old.meta.pop(REPLACED_BY, None)


@dataclass(frozen=True)
class AttributeSet(Edit):
    """A node has another attribute, or one less."""

    node: ir.Node
    name: str
    before: tuple[ir.Attr, ...]
    """All of its attributes, in order."""
    after: ir.Attr | None

    def refusal(self, transaction: Journal) -> Refused | None:
        if self.node in transaction.removed:
            return None
        if self.node.graph is not None and self.node.attributes.get(self.name) is self.after:
            return None
        return Refused("a node that it changed is gone, or was changed since")

    def undo(self, transaction: Journal) -> None:
        del transaction
        self.node.attributes.clear()
        self.node.attributes.update((each.name, each) for each in self.before)


def is_present(value: ir.Value) -> bool:
    """Say whether `value` is an input, holds data, or is made by a node of a graph."""
    producer = value.producer()
    if producer is not None:
        return producer.graph is not None
    return value.const_value is not None or value.is_graph_input()

"""The edits of one rewrite, which can be undone as long as nothing was built on them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortkit.refusal import Refused
from ortkit.rewrite.edits import (
    REPLACED_BY,
    Edit,
    Inputs,
    InputsSet,
    Inserted,
    Removed,
    Replaced,
    is_present,
)
from ortkit.rewrite.log import Hit, RewriteLog


class Transaction:
    """What a scope did within `with scope.transaction()`, in order.

    Later edits by others may stay. What reads a result reads again what the result had replaced,
    and a value that was replaced since is read as what stands for it.
    """

    def __init__(self, log: RewriteLog, forget: Callable[[ir.Node], None]) -> None:
        """Begin to note edits; see `Scope.transaction`.

        Args:
            log: Of the scope.
            forget: Called with a node that was inserted and is removed again.
        """
        self.forget = forget
        self._log = log
        self.inserted: set[ir.Node] = set()
        self.removed: set[ir.Node] = set()
        self._edits: list[Edit] = []
        self._substitutes: set[ir.Value] = set()
        self._set: dict[ir.Node, dict[int, ir.Value | None]] = {}
        self._orders: dict[ir.Graph, tuple[list[ir.Node], dict[ir.Node, int]]] = {}
        self._first_hit = len(log.hits)
        self._hits: list[Hit] = []
        self._replacements = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was edited."""
        return not self._edits

    # ---- recording ---------------------------------------------------------------------

    def note(self, edit: Edit) -> None:
        """Record an edit that was just made."""
        self._edits.append(edit)
        if isinstance(edit, Inserted):
            self.inserted.add(edit.node)
        elif isinstance(edit, Removed):
            self.removed.add(edit.node)
        elif isinstance(edit, Replaced):
            self._substitutes.add(edit.new)
        elif isinstance(edit, InputsSet):
            after = dict(enumerate(edit.after))
            inputs = self._set.setdefault(edit.node, {})
            inputs.update((index, after.get(index)) for index in edit.changed)

    def removal(self, node: ir.Node, inputs: tuple[tuple[ir.Node, Inputs], ...]) -> Removed:
        """Return the edit of a node that is about to be removed."""
        graph = node.graph
        assert graph is not None
        if graph not in self._orders:
            nodes = list(graph)
            self._orders[graph] = nodes, {each: index for index, each in enumerate(nodes)}
        order, indices = self._orders[graph]
        return Removed(node, graph, order, indices.get(node, len(order)), inputs)

    def close(self, replacements: int) -> None:
        """End it: what its scope does from now on is none of it.

        Args:
            replacements: How many values of the scope had come to stand for others by now.
        """
        self._hits = self._log.hits[self._first_hit :]
        self._replacements = replacements

    # ---- undoing -----------------------------------------------------------------------

    def can_undo(self) -> Refused | None:
        """Return None if it can be undone, else why not.

        All nodes that it inserted must stand as it left them, and nothing else may read what was
        computed only with them.
        """
        return next((why for edit in self._edits if (why := edit.refusal(self))), None)

    def undo(self) -> None:
        """Take back all edits, the last one first, and its hits from the log.

        Transactions are undone in reverse order. Where rewrites since have put a value after the
        place of a node that is there again, the graph is to be sorted.
        """
        for edit in reversed(self._edits):
            edit.undo(self)
        self._log.retract(self._hits)
        self._edits.clear()

    # ---- what edits ask ----------------------------------------------------------------

    def is_last_to_set(self, node: ir.Node) -> bool:
        """Say whether a node reads what it let it read."""
        inputs = dict(enumerate(node.inputs))
        return all(inputs.get(index) is value for index, value in self._set[node].items())

    def can_read(self, value: ir.Value | None) -> bool:
        """Say whether a value, or what stands for it, is there or would be there again."""
        return (
            value is None or value.producer() in self.removed or self._current(value) is not None
        )

    def lend(self, node: ir.Node, values: Inputs) -> None:
        """Let a node read these values again, or what has come to stand for them."""
        node.resize_inputs(len(values))
        for index, value in enumerate(values):
            found = None if value is None else self._current(value)
            if found is not None and found.graph is None and found.const_value is not None:
                # It went with its last reader.
                assert node.graph is not None
                node.graph.register_initializer(found)
            node.replace_input_with(index, found)

    def _current(self, value: ir.Value) -> ir.Value | None:
        """Return what stands for a value by rewrites since, None if that is gone."""
        while REPLACED_BY in value.meta and value.meta[REPLACED_BY][1] > self._replacements:
            value = value.meta[REPLACED_BY][0]
        return value if is_present(value) else None

    def can_hand_back(self, value: ir.Value) -> bool:
        """Say whether all that reads a value of an inserted node has something to read instead."""
        return value in self._substitutes or self.reads_alone(value)

    def reads_alone(self, value: ir.Value) -> bool:
        """Say whether only inputs read a value that were inserted or set here."""
        return not value.is_graph_output() and all(
            use.node in self.inserted or use.idx in self._set.get(use.node, ())
            for use in value.uses()
        )

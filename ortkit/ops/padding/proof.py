"""A proof that rows of padding reach no result, by looking at every reader of every value.

A value's padding is unread if no result depends on what it holds where tokens are padding.
Readers are asked from the last one back: each keeps tokens apart and makes a value whose padding
is unread, or masks it, or takes other tokens. What is not known to do one of these reads padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.place import Rows
from ortkit.ops.padding.attention import (
    AttentionSite,
    attention_site,
    leaves_out,
    may_give_nan,
)
from ortkit.ops.padding.flag import Flag, tokens_by, where_padding
from ortkit.ops.padding.tokens import FIRST, Step, Tokens, step_of
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: From this version on Slice has its bounds as inputs.
_SLICES_BY_INPUTS = 10


@dataclass
class Proof:
    """What is known of one graph's values with regard to one flag."""

    scope: Scope
    flag: Flag
    tokens: dict[ir.Value, Tokens] = field(default_factory=dict)
    """Where tokens are in the values that hold some."""
    steps: dict[ir.Node, Step] = field(default_factory=dict)
    """Nodes that keep tokens apart."""
    attention: dict[ir.Node, AttentionSite] = field(default_factory=dict)
    """Attention whose keys are left out where they are padding."""
    unread: set[ir.Value] = field(default_factory=set)
    """Values whose padding reaches no result."""
    reasons: dict[ir.Value, str] = field(default_factory=dict)
    """Of values that hold tokens: the reader that makes their padding reach a result."""
    reads_first: bool = False
    """Whether the first position of each sample is read, padding or not."""
    multiplied: set[ir.Node] = field(default_factory=set)
    """Nodes that multiply padding with 0."""
    keeps_nan: bool = False
    """Whether padding that sees no key gives NaN, which no factor of 0 hides."""

    @staticmethod
    def of(scope: Scope, flag: Flag) -> Proof:
        """Look at the main graph of a model."""
        proof = Proof(scope, flag)
        nodes = list(scope.root)
        proof._find_tokens(nodes)
        for node in reversed(nodes):
            for value in node.outputs:
                proof._read(value)
        for value in scope.root.inputs:
            proof._read(value)
        return proof

    # ---- forward: where tokens are

    def _find_tokens(self, nodes: Sequence[ir.Node]) -> None:
        for value in self.scope.root.inputs:
            self._begin(value)
        for node in nodes:
            if (site := attention_site(self.scope, node)) is not None:
                self._attend(site)
            elif (step := step_of(self.scope, node, self.tokens, self.flag.grid)) is not None:
                self.steps[node] = step
                self.tokens.update(zip(node.outputs, step.outputs, strict=False))
            for value in node.outputs:
                self._begin(value)

    def _begin(self, value: ir.Value) -> None:
        """Count tokens from a value on that has an axis for samples and one for positions."""
        shape = self.scope.shapes.shape(value)
        is_known = value in self.tokens or self.scope.is_constant(value) or shape is None
        if not is_known and shape is not None and shape[:2] == self.flag.grid.sizes:
            self.tokens[value] = FIRST

    def _attend(self, site: AttentionSite) -> None:
        expected = Tokens(Rows(0), Rows(2 if site.has_heads else 1))
        query, keys, values = site.node.inputs[:3]
        if query is not None and self.tokens.get(query) == expected:
            self.tokens[site.node.outputs[0]] = expected
        tokens_of_inputs = [
            None if each is None else self.tokens.get(each) for each in (keys, values)
        ]
        if tokens_of_inputs == [expected, expected] and leaves_out(self.scope, site, self.flag):
            self.attention[site.node] = site

    # ---- backward: who reads padding

    def _read(self, value: ir.Value) -> None:
        """Find out whether the padding of a value reaches a result; that of readers is known."""
        if value not in self.tokens:
            return
        if value.is_graph_output():
            self.reasons[value] = f"output {value.name!r} holds all positions"
            return
        for use in value.uses():
            if (reason := self._reads(use.node, use.idx, value)) is not None:
                self.reasons[value] = reason
                return
        self.unread.add(value)

    def _reads(self, node: ir.Node, index: int, value: ir.Value) -> str | None:
        """Return why a reader lets padding reach a result, None if it does not."""
        if node.graph is not self.scope.root:
            return f"{describe(node)} is in a nested graph"
        if node in self.attention and index in (1, 2):
            return None
        is_query = index == 0 and attention_site(self.scope, node) is not None
        if node in self.steps or is_query:
            reasons = [self.reasons[each] for each in node.outputs if each in self.reasons]
            known = all(v in self.unread for v in node.outputs if v.uses() or v.is_graph_output())
            if known:
                return None
            if self._hides(node, index):
                return None
            return reasons[0] if reasons else f"{describe(node)} may read padding"
        if (node.domain, node.op_type) == ("", "Shape"):
            return None
        if self._takes_first(node, index, value):
            self.reads_first = True
            return None
        return f"{describe(node)} may read padding"

    def _hides(self, node: ir.Node, index: int) -> bool:
        """Say whether a node makes the same of all padding: it masks, or multiplies with 0."""
        if node.domain or node.op_type not in ("Mul", "Where"):
            return False
        if node.op_type == "Where":
            if index == 0:
                return False
            other, chosen = node.inputs[0], index == 1
            return self._holds(node, other, lambda array: bool((array != chosen).all()))
        other = node.inputs[1 - index]
        dtype = None if other is None else self.scope.shapes.dtype(other)
        given = node.inputs[index]
        if dtype is None or given is None or other is given:
            return False
        if not self._holds(node, other, lambda array: bool((array == 0).all())):
            return False
        if not (self.tokens[given].are_separate if given in self.tokens else False):
            return False
        self.multiplied.add(node)
        sites = self.attention.values()
        self.keeps_nan |= any(may_give_nan(self.scope, site, self.flag) for site in sites)
        return True

    def _holds(
        self, node: ir.Node, value: ir.Value | None, holds: Callable[[np.ndarray], bool]
    ) -> bool:
        """Say whether an input, token by token a function of the flag, is so for padding."""
        if value is None:
            return False
        own = tokens_by(self.scope, self.flag, value)
        if own is None:
            return False
        index = tuple(node.inputs).index(value)
        known: Mapping[ir.Value, Tokens] = {**self.tokens, value: own}
        step = step_of(self.scope, node, known, self.flag.grid)
        if step is None or step.inputs.get(index) != own:
            return False
        found = list(where_padding(self.scope, self.flag, value))
        return bool(found) and all(array is not None and holds(array) for array in found)

    def _takes_first(self, node: ir.Node, index: int, value: ir.Value) -> bool:
        """Say whether a node reads nothing but the first position of each sample."""
        if index or node.domain or not self.tokens[value].are_separate:
            return False
        axis, rank = self.tokens[value].positions.axis, self.scope.shapes.rank(value) or 0
        if node.op_type == "Gather":
            numbers = self._numbers(node, 1)
            return node.attributes.get_int("axis", 0) % rank == axis and numbers == [0]
        if node.op_type != "Slice" or self.scope.opset() < _SLICES_BY_INPUTS:
            return False
        start, end, axes = (self._numbers(node, position) for position in (1, 2, 3))
        steps = self._numbers(node, 4) if len(node.inputs) > 4 else [1] * len(axes or ())
        if start is None or end is None or axes is None or steps is None:
            return False
        cuts = {each % rank: cut for each, *cut in zip(axes, start, end, steps, strict=True)}
        return cuts.get(axis) == [0, 1, 1]

    def _numbers(self, node: ir.Node, index: int) -> list[int] | None:
        value = node.inputs[index] if index < len(node.inputs) else None
        array = self.scope.array(value, 8)
        return None if array is None else [int(each) for each in array.reshape(-1)]

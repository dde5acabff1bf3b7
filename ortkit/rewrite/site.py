"""One node and what a pass may read and do there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.scope import Attributes, Scope
from ortkit.targets.traits import Traits

# `Site.int` and `Site.float` hide the builtins from the annotations below.
Integer: TypeAlias = int
Real: TypeAlias = float


class Site:
    """A node under consideration; everything a `NodePass` needs is reached from here."""

    def __init__(self, scope: Scope, node: ir.Node, pass_name: str) -> None:
        self.scope = scope
        self.node = node
        self.pass_name = pass_name
        self._claimed = ""

    # ---- the target

    @property
    def traits(self) -> Traits:
        """What the target has."""
        return self.scope.traits

    def has_kernel(self, op_type: str, dtype: ir.DataType | None) -> bool:
        """Say whether the target's kernel of an operator takes an element type.

        Of operators that its row does not name nothing is known, and true is returned.
        """
        known = self.traits.kernel_dtypes.get(op_type)
        return known is None or (dtype is not None and dtype.name in known)

    # ---- reading -----------------------------------------------------------------------

    @property
    def opset(self) -> Integer:
        """The default domain's version."""
        return self.scope.opset()

    @property
    def output(self) -> ir.Value:
        """The node's first output."""
        return self.node.outputs[0]

    def input(self, index: Integer) -> ir.Value | None:
        """Return input `index`, None where it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def int(self, name: str, default: Integer) -> Integer:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.as_int()

    def float(self, name: str, default: Real) -> Real:
        """Return a float attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.as_float()

    def string(self, name: str, default: str) -> str:
        """Return a string attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.as_string()

    def ints(self, name: str) -> tuple[Integer, ...] | None:
        """Return an attribute of integers, None where it is absent."""
        attribute = self.node.attributes.get(name)
        return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())

    def axes(self, index: Integer = 1) -> tuple[Integer, ...] | None:
        """Return constant axes: input `index` or, in older opsets, the attribute.

        None where they are absent or not constant; see `has_axes` for telling these apart.
        """
        if (value := self.input(index)) is not None:
            array = self.array(value, 64)
            return None if array is None else tuple(array.reshape(-1).tolist())
        return self.ints("axes")

    def has_axes(self, index: Integer = 1) -> bool:
        """Say whether axes are given, constant or not."""
        return self.input(index) is not None or "axes" in self.node.attributes

    def perm(self) -> tuple[Integer, ...] | None:
        """Return the permutation of a Transpose.

        None where it is implicit and the rank unknown, or where it is none of the input's axes.
        """
        rank, perm = self.rank(self.input(0)), self.ints("perm")
        if perm is None:
            return None if rank is None else tuple(reversed(range(rank)))
        axes = range(len(perm) if rank is None else rank)
        return perm if sorted(perm) == list(axes) else None

    def array(self, value: ir.Value | None, limit: Integer | None = None) -> np.ndarray | None:
        """Return the data of a constant, None if it is none or has over `limit` elements."""
        return self.scope.array(value, limit)

    def scalar(self, value: ir.Value | None) -> Real | Integer | bool | None:
        """Return the number that a one-element constant holds, else None."""
        array = self.scope.array(value, 1)
        return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None

    def shape(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the symbolic shape, None where the rank is unknown."""
        return None if value is None else self.scope.shapes.shape(value)

    def rank(self, value: ir.Value | None) -> Integer | None:
        """Return the rank, None where it is unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""
        return None if value is None else self.scope.shapes.dtype(value)

    def contents(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the symbolic elements of a small integer tensor, None where unknown."""
        return None if value is None else self.scope.shapes.contents(value)

    def only_use(self, value: ir.Value) -> bool:
        """Say whether exactly one node input reads `value`, and the graph does not return it."""
        return len(value.uses()) == 1 and not value.is_graph_output()

    def producer(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """Return the node that makes `value` if it is a default-domain op of these types."""
        node = None if value is None else value.producer()
        return (
            node if node is not None and node.domain == "" and node.op_type in op_types else None
        )

    # ---- deciding ----------------------------------------------------------------------

    def miss(self, reason: str, rule: str = "") -> None:
        """Record why the rewrite considered here is not done; `rule` as for `claim`."""
        outputs = tuple(value.name or "" for value in self.node.outputs)
        self.scope.log.miss(self.pass_name, describe(self.node), reason, outputs, rule)

    def claim(self, rule: str) -> bool:
        """Ask for the rewrite `rule` at this node; after True it must be done."""
        self._claimed = rule
        name = self.output.name or self.node.name or ""
        return self.scope.log.claim(self.pass_name, rule, name, describe(self.node))

    def can_replace(self, new: ir.Value, old: ir.Value | None = None) -> bool:
        """Say whether `new` may stand for `old` (the node's output); leaves the reason if not."""
        reason = self.scope.can_replace(old or self.output, new)
        if reason is not None:
            self.miss(reason)
        return reason is None

    # ---- doing -------------------------------------------------------------------------

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        name: str = "",
    ) -> ir.Value:
        """Insert a node with one output before this one and return that output."""
        base = name or f"{self.output.name}/{self._claimed or self.pass_name}"
        made = self.scope.insert(self.node, op_type, inputs, attributes, domain=domain, name=base)
        return made[0]

    def constant(self, data: np.ndarray | Sequence[Integer], name: str = "") -> ir.Value:
        """Return a constant with this data; a sequence of integers makes an int64 vector."""
        array = data if isinstance(data, np.ndarray) else np.array(data, np.int64)
        return self.scope.constant(array, name or f"{self.output.name}/const", self.node)

    def replace(self, new: ir.Value, old: ir.Value | None = None) -> None:
        """Let `new` stand for `old` (the node's first output) everywhere."""
        self.scope.replace(old or self.output, new)

    def set_input(self, index: Integer, value: ir.Value | None) -> None:
        """Let input `index` of this node read `value`."""
        self.scope.set_input(self.node, index, value)

    def set_attribute(
        self, name: str, value: Integer | Real | str | Sequence[Integer] | None
    ) -> None:
        """Set an attribute of this node; None takes it away."""
        self.scope.set_attribute(self.node, name, value)


def describe(node: ir.Node) -> str:
    """Return how reports name a node: `Op 'name'`."""
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return f"{kind} {name!r}"

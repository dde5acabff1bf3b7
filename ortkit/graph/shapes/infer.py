"""Symbolic shape inference: the type, shape and small contents of every value of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Self

import onnx_ir as ir

from ortkit.graph.constants import constant_tensor, is_constant
from ortkit.graph.shapes.declared import (
    SIZE_LIMIT,
    all_sizes,
    declared_size,
    is_large,
    is_tensor,
    is_unwieldy,
    more_precise,
    names_of_inputs,
)
from ortkit.graph.shapes.rules.call import (
    CONTENTS_LIMIT,
    INTEGERS,
    NOTHING,
    WIDE_FLOATS,
    Call,
    Elements,
    Fact,
    Shape,
    UnknownError,
    count,
    is_small,
)
from ortkit.graph.shapes.rules.constant import constant_fact
from ortkit.graph.shapes.rules.table import rule_for
from ortkit.graph.symbolic.dims import (
    Atom,
    Dim,
    Size,
    has_unknown,
    is_at_least,
    maximum,
    names,
    replace_atoms,
    sole_atom,
)
from ortkit.graph.walk import roots, subgraphs

__all__ = ["Shapes", "Size"]

#: For a domain that is not imported: the rules of today.
_NEWEST = 1000
#: How many producers are inferred on demand before the answer is "unknown".
_DEPTH_LIMIT = 100
#: Integers of these types in tensors of up to this many elements are distinguished by name even
#: when nothing is known of them, so that two uses of one of them are provably equal.
_INDICES = frozenset({ir.DataType.INT64, ir.DataType.INT32})
_NAMED_LIMIT = 16
#: Bodies of functions with more nodes than this are not inferred for each call.
_BODY_LIMIT = 128
#: What a rule meets on a node that is not valid ONNX; its outputs are then unknown.
_INVALID = (
    UnknownError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    ZeroDivisionError,
    OverflowError,
)


class Shapes:
    """What is known of the values of one model, kept true while the model is rewritten.

    Facts come from the operators' rules first; what the model declares fills the gaps. Two
    sizes that are equal objects are equal in every run; see `ortkit.graph.symbolic.dims`.
    """

    def __init__(self, model: ir.Model) -> None:
        """Start with nothing known; use `Shapes.infer`."""
        self._model = model
        self._roots: set[int] = {id(model.graph), *(id(f.graph) for f in model.functions.values())}
        self._local = {(f.domain, f.name): f for f in model.functions.values()}
        self._facts: dict[ir.Value, Fact] = {}
        self._bound: dict[str, Size] = {}
        # max(0, n) -> n for what is an axis of a value, and so is not negative.
        self._floors: dict[Atom, Size] = {}
        # What sizes were settled to, as long as nothing more is found out.
        self._known: dict[Size, Size] = {}
        self._next = 0
        # Unknowns below this number come from outside of a body that may not run.
        self._outer = 0
        # Names that a body declares for values of one iteration mean nothing outside.
        self._trusts_names = True
        self._input_names: frozenset[str] = names_of_inputs(model)
        self._depth = 0

    @classmethod
    def infer(cls, model: ir.Model) -> Self:
        """Infer every value of `model`, of its subgraphs and of its functions; linear."""
        shapes = cls(model)
        for root in roots(model):
            # First, so that their unknown sizes count as outside of every body.
            for value in root.inputs:
                shapes.fact(value)
            for node in root:
                shapes._infer(node)
        return shapes

    # ---- reading -----------------------------------------------------------------------

    def shape(self, value: ir.Value) -> Shape | None:
        """Return the shape, None if the rank is unknown."""
        return self.fact(value).shape

    def rank(self, value: ir.Value) -> int | None:
        """Return the rank, None if unknown."""
        shape = self.fact(value).shape
        return None if shape is None else len(shape)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None if unknown or if `value` is no tensor."""
        return self.fact(value).dtype

    def contents(self, value: ir.Value) -> tuple[Size, ...] | None:
        """Return the elements of a small integer or bool tensor in row-major order.

        A bool is 0 or 1. None if they are unknown; single ones may be unknown atoms, whose
        sign is unknown too.
        """
        elements = self.fact(value).elements
        if elements is None:
            return None
        return all_sizes(elements)

    def elements(self, value: ir.Value) -> Elements | None:
        """Return the elements of a small tensor, floats and fractions of sizes too."""
        return self.fact(value).elements

    def same_shape(self, left: ir.Value, right: ir.Value) -> bool:
        """Say whether the shapes are provably equal."""
        shape = self.shape(left)
        return shape is not None and shape == self.shape(right)

    def fact(self, value: ir.Value) -> Fact:
        """Return all that is known of `value`."""
        fact = self._facts.get(value)
        if fact is None:
            fact = self._learn(value)
        if self._bound or self._floors:
            fact = self._resolved(value, fact)
        return fact

    @property
    def has_reported(self) -> bool:
        """Whether unknown sizes were found out while others were derived from them."""
        return bool(self._bound)

    # ---- writing -----------------------------------------------------------------------

    def infer_node(self, node: ir.Node) -> None:
        """Compute the outputs of one node, from what is known of its inputs now."""
        inside = id(node.graph) not in self._roots
        outer, trusts = self._outer, self._trusts_names
        if inside:
            self._outer, self._trusts_names = self._next, False
        try:
            self._infer(node)
        finally:
            self._outer, self._trusts_names = outer, trusts

    def merge(self, kept: ir.Value, other: ir.Value) -> None:
        """Keep for `kept` the more precise of what is known of two equal values."""
        self._facts[kept] = more_precise(self.fact(kept), self.fact(other))

    def learn(self, value: ir.Value, fact: Fact | None) -> None:
        """Know `fact` of `value`; None: what its node makes of it, when it is asked for."""
        if fact is None:
            self._facts.pop(value, None)
        else:
            self._facts[value] = fact

    # ---- what rules ask for ------------------------------------------------------------

    def fresh(self) -> Dim:
        """Return a new size that nothing is known of."""
        self._next += 1
        return Dim.unknown(self._next)

    def fresh_element(self) -> Dim:
        """Return a new integer that nothing is known of, not even its sign."""
        self._next += 1
        return Dim.unknown(self._next, signed=True)

    def equate(self, left: Size, right: Size) -> None:
        """Take note that the sizes are equal in every run: an unknown one gets the other.

        An unknown from outside of a body that may not run stays as it is.
        """
        left, right = self._settled(left), self._settled(right)
        for unknown, known in ((left, right), (right, left)):
            atom = sole_atom(unknown)
            if atom is None or atom.kind != "size" or int(atom.label) <= self._outer:
                continue
            if isinstance(known, int) and known < 0:
                return
            if isinstance(known, Dim) and atom in known.atoms():
                return
            self._bound[atom.label] = known
            self._known.clear()
            return

    def fact_after(
        self, graph: ir.Graph | ir.Function, inputs: Sequence[Fact], *, once: bool
    ) -> list[Fact]:
        """Infer a body for these inputs and return what is known of its outputs.

        Unless it runs once whenever its node runs, sizes that it alone knows of are unknown
        in what is returned.
        """
        outer, trusts = self._outer, self._trusts_names
        start = self._next
        if not once:
            self._outer, self._trusts_names = start, False
        try:
            for value, fact in zip(graph.inputs, inputs, strict=False):
                self._facts[value] = self._with_declared(value, self._checked(fact))
            for node in graph:
                self._infer(node)
            return [self.fact(value) for value in graph.outputs]
        finally:
            self._outer, self._trusts_names = outer, trusts

    # ---- one node ----------------------------------------------------------------------

    def _infer(self, node: ir.Node) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        found: Iterable[Fact] = (NOTHING,) * len(node.outputs)
        if (function := self._local.get((node.domain, node.op_type))) is not None:
            if self._is_plain(function):
                found = self._facts_of_call(node, function)
        else:
            call = Call(node, self._opset(node), self)
            # What the rule found before it gave up stands; the rest is unknown.
            with contextlib.suppress(*_INVALID):
                rule_for(domain, node.op_type)(call)
            found = call.found
        for value, fact in zip(node.outputs, found, strict=True):
            self._facts[value] = self._with_declared(value, self._checked(fact))
            if not self._outer:
                self._note_axes(self._facts[value].shape or ())

    def _is_plain(self, function: ir.Function) -> bool:
        """Say whether a body is what it is at every call, and calls no function itself."""
        if function.attributes or len(function) > _BODY_LIMIT:
            return False
        return not any(
            (node.domain, node.op_type) in self._local or any(subgraphs(node)) for node in function
        )

    def _facts_of_call(self, node: ir.Node, function: ir.Function) -> list[Fact]:
        """Infer the body for the inputs of one call; of its own values nothing is kept."""
        values = [*function.inputs, *(value for each in function for value in each.outputs)]
        before = {value: self._facts.pop(value) for value in values if value in self._facts}
        given = [NOTHING if value is None else self.fact(value) for value in node.inputs]
        trusts, self._trusts_names = self._trusts_names, False
        try:
            found = self.fact_after(function, given, once=True)
            return (found + [NOTHING] * len(node.outputs))[: len(node.outputs)]
        finally:
            self._trusts_names = trusts
            for value in values:
                self._facts.pop(value, None)
            self._facts.update(before)

    def _note_axes(self, shape: Shape) -> None:
        """Remember sizes that could be negative, but for being axes of a value that is made."""
        for size in shape:
            if isinstance(size, Dim) and not is_at_least(size, 0):
                floored = sole_atom(maximum(0, size))
                if floored is not None and self._floors.get(floored) != size:
                    self._floors[floored] = size
                    self._known.clear()

    def _opset(self, node: ir.Node) -> int:
        if node.version is not None:
            return node.version
        owner = node.graph
        found = None if owner is None else owner.opset_imports.get(node.domain)
        if found is None:
            found = self._model.opset_imports.get(node.domain, _NEWEST)
        return found

    def _checked(self, fact: Fact) -> Fact:
        """Drop what no valid run can have and what has grown too large."""
        shape, elements = fact.shape, fact.elements
        if shape is None:
            return fact if elements is None else Fact(fact.dtype)
        if elements is None and fact.dtype in _INDICES and is_small(shape, _NAMED_LIMIT):
            elements = tuple(self.fresh_element() for _ in range(count(shape) or 0))
            return Fact(fact.dtype, shape, elements)
        for size in shape:
            if isinstance(size, int):
                if not 0 <= size < SIZE_LIMIT:
                    return Fact(fact.dtype)
            elif is_unwieldy(size):
                shape = tuple(self.fresh() if is_unwieldy(each) else each for each in shape)
        if elements is not None:
            elements = self._checked_elements(fact.dtype, shape, elements)
        return Fact(fact.dtype, shape, elements)

    def _checked_elements(
        self, dtype: ir.DataType | None, shape: Shape, elements: Elements
    ) -> Elements | None:
        if count(shape) != len(elements) or len(elements) > CONTENTS_LIMIT:
            return None
        if dtype in INTEGERS:
            sizes = all_sizes(elements)
            if sizes is None:
                return None
            return tuple(self.fresh_element() if is_unwieldy(size) else size for size in sizes)
        if dtype not in WIDE_FLOATS or any(is_large(element) for element in elements):
            return None
        return elements

    # ---- what the model declares ---------------------------------------------------------

    def _learn(self, value: ir.Value) -> Fact:
        """Find out about a value that no rule was run for."""
        producer = value.producer()
        if producer is not None:
            if self._depth >= _DEPTH_LIMIT:
                return NOTHING
            self._depth += 1
            try:
                self.infer_node(producer)
            finally:
                self._depth -= 1
            return self._facts.get(value, NOTHING)
        tensor = constant_tensor(value) if is_constant(value, self._model) else None
        trusts = self._trusts_names
        self._trusts_names = value.graph is None or id(value.graph) in self._roots
        fact = NOTHING if tensor is None else constant_fact(tensor)
        fact = self._checked(self._with_declared(value, fact))
        self._trusts_names = trusts
        self._facts[value] = fact
        return fact

    def _with_declared(self, value: ir.Value, fact: Fact) -> Fact:
        """Fill the gaps of a fact with what the model says of the value."""
        if value.type is None and value.shape is None:
            return fact
        dtype = fact.dtype
        if not is_tensor(value):
            return fact
        if dtype is None and value.dtype is not None and value.dtype != ir.DataType.UNDEFINED:
            dtype = value.dtype
        declared = value.shape
        if declared is None:
            return Fact(dtype, fact.shape, fact.elements)
        if fact.shape is None:
            sizes = (self._declared_size(value, dim) for dim in declared.dims)
            shape = tuple(self.fresh() if size is None else size for size in sizes)
            return Fact(dtype, shape, fact.elements)
        if len(declared) == len(fact.shape):
            for size, dim in zip(fact.shape, declared.dims, strict=True):
                atom = None if isinstance(size, int) else sole_atom(size)
                if atom is not None and atom.kind == "size":
                    found = self._declared_size(value, dim)
                    if found is not None:
                        self.equate(size, found)
        return Fact(dtype, fact.shape, fact.elements)

    def _declared_size(self, value: ir.Value, dim: int | ir.SymbolicDim) -> Size | None:
        """Return a declared size where it can be believed.

        Names of inputs are the user's word. Elsewhere a name means something only if it is an
        input's. Exporters make up others, and torch's TorchScript exporter (2.13) even gives
        one name to two different sizes of an output.
        """
        size = declared_size(dim)
        if size is None or isinstance(size, int) or value.is_graph_input():
            return size if self._trusts_names or isinstance(size, int) else None
        if not self._trusts_names or value.is_graph_output():
            return None
        return size if names(size) <= self._input_names else None

    # ---- unknowns that became known --------------------------------------------------------

    def _resolved(self, value: ir.Value, fact: Fact) -> Fact:
        shape, elements = fact.shape, fact.elements
        if shape is not None and any(isinstance(size, Dim) for size in shape):
            shape = tuple(self._settled(size) for size in shape)
        if elements is not None and any(isinstance(element, Dim) for element in elements):
            elements = tuple(
                self._settled(element) if isinstance(element, Dim) else element
                for element in elements
            )
        if shape == fact.shape and elements == fact.elements:
            return fact
        fact = Fact(fact.dtype, shape, elements)
        self._facts[value] = fact
        return fact

    def _settled(self, size: Size) -> Size:
        """Put in what unknowns were found to be."""
        if isinstance(size, int):
            return size
        known = self._known.get(size)
        if known is None:
            known = self._known[size] = self._settle(size)
        return known

    def _settle(self, size: Size) -> Size:
        if not (self._bound and has_unknown(size)) and not self._has_floor(size):
            return size
        for _ in range(_DEPTH_LIMIT):
            try:
                settled = replace_atoms(size, self._binding)
            except (ValueError, ZeroDivisionError):
                return size
            if settled == size:
                return size
            size = settled
        return size

    def _has_floor(self, size: Size) -> bool:
        if not self._floors or not isinstance(size, Dim):
            return False
        return any(atom in self._floors for atom in size.atoms())

    def _binding(self, atom: Atom) -> Size | None:
        if atom.kind == "max":
            return self._floors.get(atom)
        return self._bound.get(atom.label) if atom.kind == "size" else None

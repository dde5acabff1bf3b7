"""What a shape rule reads and writes: one node, what is known of its inputs, what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Dim, Size, product


@dataclass(frozen=True)
class Ratio:
    """A known fraction of a size, in a float tensor: `over / under`, `under` > 1."""

    over: Dim
    under: int


Shape: TypeAlias = tuple[Size, ...]
Element: TypeAlias = int | float | Dim | Ratio
"""One element of a small tensor; a bool is 0 or 1."""
Elements: TypeAlias = tuple[Element, ...]

#: Tensors with more elements than this have no contents.
CONTENTS_LIMIT = 64


class Fact(NamedTuple):
    """What is known of one value; None where nothing is."""

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    elements: Elements | None = None


NOTHING = Fact()

INTEGERS = frozenset(
    {
        ir.DataType.INT64,
        ir.DataType.INT32,
        ir.DataType.BOOL,
        ir.DataType.INT16,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.INT4,
        ir.DataType.UINT4,
    }
)
#: Float types that hold every integer below 2**24 exactly.
WIDE_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


class UnknownError(Exception):
    """A rule needs something that is not known; what it has found so far stands."""


class Knowledge(Protocol):
    """Where a call reads from; `Shapes` is one."""

    def fact(self, value: ir.Value) -> Fact:
        """Return what is known of `value`."""
        ...

    def fresh(self) -> Dim:
        """Return a new size that nothing is known of."""
        ...

    def fresh_element(self) -> Dim:
        """Return a new integer that nothing is known of, not even its sign."""
        ...

    def equate(self, left: Size, right: Size) -> None:
        """Take note that the sizes are equal in every run that reaches the node."""
        ...

    def fact_after(self, graph: ir.Graph, inputs: Sequence[Fact], *, once: bool) -> list[Fact]:
        """Infer a body for these inputs and return what is known of its outputs."""
        ...


class Call:
    """One node while its rule runs."""

    __slots__ = ("_known", "found", "node", "version")

    def __init__(self, node: ir.Node, version: int, known: Knowledge) -> None:
        """Start with nothing found."""
        self.node = node
        self.version = version
        self._known = known
        self.found: list[Fact] = [NOTHING] * len(node.outputs)

    # ---- inputs ------------------------------------------------------------------------

    @property
    def inputs(self) -> int:
        """The number of inputs listed, absent ones included."""
        return len(self.node.inputs)

    @property
    def outputs(self) -> int:
        """The number of outputs listed."""
        return len(self.node.outputs)

    def has(self, index: int) -> bool:
        """Say whether input `index` is given."""
        inputs = self.node.inputs
        return index < len(inputs) and inputs[index] is not None

    def fact(self, index: int) -> Fact:
        """Return what is known of an input; nothing for an absent one."""
        inputs = self.node.inputs
        value = inputs[index] if index < len(inputs) else None
        return NOTHING if value is None else self._known.fact(value)

    def dtype(self, index: int) -> ir.DataType | None:
        """Return the element type of an input, None if unknown."""
        return self.fact(index).dtype

    def shape(self, index: int) -> Shape:
        """Return the shape of an input.

        Raises:
            UnknownError: Its rank is unknown, or it is absent.
        """
        shape = self.fact(index).shape
        if shape is None:
            raise UnknownError
        return shape

    def elements(self, index: int) -> Elements:
        """Return the contents of an input.

        Raises:
            UnknownError: They are unknown, or it is absent.
        """
        elements = self.fact(index).elements
        if elements is None:
            raise UnknownError
        return elements

    def sizes(self, index: int) -> Shape:
        """Return the contents of an integer input; some may be unknown elements.

        Raises:
            UnknownError: They are unknown, or not all integers.
        """
        found: list[Size] = []
        for element in self.elements(index):
            if not isinstance(element, int | Dim):
                raise UnknownError
            found.append(element)
        return tuple(found)

    def numbers(self, index: int) -> tuple[int, ...]:
        """Return the contents of an integer input, all plain integers.

        Raises:
            UnknownError: Any of them is unknown or differs between runs.
        """
        found: list[int] = []
        for element in self.elements(index):
            if not isinstance(element, int):
                raise UnknownError
            found.append(element)
        return tuple(found)

    # ---- attributes --------------------------------------------------------------------

    def attribute(self, name: str) -> ir.Attr | None:
        """Return an attribute, None if absent.

        Raises:
            UnknownError: It is set by the caller of a function.
        """
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            raise UnknownError
        return attribute

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self.attribute(name)
        return default if attribute is None else attribute.as_int()

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of integers, None if absent."""
        attribute = self.attribute(name)
        return None if attribute is None else tuple(attribute.as_ints())

    def string(self, name: str, default: str) -> str:
        """Return a string attribute."""
        attribute = self.attribute(name)
        return default if attribute is None else attribute.as_string()

    def type_attribute(self, name: str) -> ir.DataType | None:
        """Return an attribute that holds an element type, None if absent or 0."""
        number = self.integer(name, 0)
        return ir.DataType(number) if number else None

    def axes(self, index: int, name: str = "axes") -> tuple[int, ...] | None:
        """Return axes given as attribute or as input `index`; None if given as neither.

        Raises:
            UnknownError: The input is not known.
        """
        given = self.integers(name)
        if given is not None:
            return given
        return self.numbers(index) if self.has(index) else None

    # ---- outputs -----------------------------------------------------------------------

    def out(
        self,
        index: int = 0,
        *,
        dtype: ir.DataType | None = None,
        shape: Shape | None = None,
        elements: Elements | None = None,
    ) -> None:
        """Add to what is known of an output; an output that is not listed is ignored."""
        if index >= len(self.found):
            return
        old = self.found[index]
        self.found[index] = Fact(
            old.dtype if dtype is None else dtype,
            old.shape if shape is None else shape,
            old.elements if elements is None else elements,
        )

    def put(self, index: int, fact: Fact) -> None:
        """Replace what is known of an output; an output that is not listed is ignored."""
        if index < len(self.found):
            self.found[index] = fact

    def fresh(self) -> Dim:
        """Return a new size that nothing is known of."""
        return self._known.fresh()

    def fresh_element(self) -> Dim:
        """Return a new integer that nothing is known of, not even its sign."""
        return self._known.fresh_element()

    def equate(self, left: Size, right: Size) -> None:
        """Take note that the operator fails in runs where these sizes differ."""
        if left != right:
            self._known.equate(left, right)

    def body(self, name: str, inputs: Sequence[Fact], *, once: bool = False) -> list[Fact]:
        """Infer a graph attribute for these inputs and return its outputs' facts.

        Args:
            name: The attribute.
            inputs: One for each input of the graph.
            once: The body runs exactly once whenever the node runs.

        Raises:
            UnknownError: There is no such graph.
        """
        attribute = self.attribute(name)
        if attribute is None:
            raise UnknownError
        return self._known.fact_after(attribute.as_graph(), inputs, once=once)


Rule: TypeAlias = Callable[[Call], None]


def normal_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front.

    Raises:
        UnknownError: It is out of range: the node is invalid.
    """
    if not -rank <= axis < rank:
        raise UnknownError
    return axis % rank if rank else 0


def count(shape: Shape) -> int | None:
    """Return the number of elements if it is a plain integer."""
    total = product(shape)
    return total if isinstance(total, int) else None


def is_small(shape: Shape, limit: int = CONTENTS_LIMIT) -> bool:
    """Say whether a tensor of this shape has at most `limit` elements."""
    total = 1
    for size in shape:
        if not isinstance(size, int):
            return False
        total *= size
    return 0 <= total <= limit

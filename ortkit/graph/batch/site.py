"""What a rule asks about a node that reads the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.graph.batch.place import Mixed, Rows, State
from ortkit.graph.batch.repeated import has_equal_rows
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size

Rule = Callable[["Site"], Rows | tuple[Rows, ...] | Mixed]
"""Returns the batch axis of all outputs, or of each."""


class UnknownShapeError(Exception):
    """A rule needs a shape that is not known."""


@dataclass
class Site:
    """A node of which some input holds the batch, and what is known of its inputs."""

    node: ir.Node
    shapes: Shapes
    states: Sequence[State]
    opset: int
    batch: Size
    new_batch: int
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Inputs with equal rows, and their axis, that must get as many rows as the new batch."""
    targets: list[tuple[int, list[int]]] = field(default_factory=list)
    """Inputs that say a shape, and what they must say for the new batch."""

    def rows(self, index: int) -> Rows | None:
        """Return where the batch is in an input."""
        state = self.states[index] if index < len(self.states) else None
        return state if isinstance(state, Rows) else None

    def only_rows(self) -> Rows | None:
        """Return where the batch is in input 0 if it is in no other input."""
        others = range(1, len(self.states))
        return None if any(self.rows(index) for index in others) else self.rows(0)

    def input(self, index: int) -> ir.Value | None:
        """Return an input, None if it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int) -> tuple[Size, ...]:
        """Return an input's shape.

        Raises:
            UnknownShapeError: It is not known.
        """
        value = self.input(index)
        return self._known(None if value is None else self.shapes.shape(value))

    def rank(self, index: int) -> int:
        """Return an input's number of axes."""
        return len(self.shape(index))

    def out_shape(self) -> tuple[Size, ...]:
        """Return the shape of output 0."""
        return self._known(self.shapes.shape(self.node.outputs[0]))

    def numbers(self, index: int) -> tuple[int, ...] | None:
        """Return the numbers of a small integer input; None if they are not known."""
        value = self.input(index)
        contents = None if value is None else self.shapes.contents(value)
        if contents is None:
            return None
        known = tuple(each for each in contents if isinstance(each, int))
        return known if len(known) == len(contents) else None

    def integer(self, name: str, default: int) -> int:
        """Return an attribute."""
        return self.node.attributes.get_int(name, default)

    def integers(self, name: str) -> list[int]:
        """Return an attribute, empty if it is absent."""
        return list(self.node.attributes.get_ints(name, []))

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute `axis`, counted from the front."""
        return self.integer("axis", default) % rank

    def broadcasts(self, index: int, rows: Rows, rank: int) -> bool:
        """Say whether an input without the batch can be broadcast to a value with another batch.

        It has one row, or equal rows, of which some are then left out.

        Args:
            index: Of an input that does not depend on the batch.
            rows: The batch of the value.
            rank: Of the value.
        """
        axis = rows.axis - (rank - self.rank(index))
        return axis < 0 or self.shape(index)[axis] == 1 or self.takes_rows(index, axis, rows)

    def takes_rows(self, index: int, axis: int, rows: Rows) -> bool:
        """Say whether an input has equal rows along an axis, and note that some are left out."""
        value = self.input(index)
        if not rows.is_plain or value is None or self.shape(index)[axis] != self.batch:
            return False
        if not has_equal_rows(value, axis, self.shapes):
            return False
        self.cuts.append((index, axis))
        return True

    def set_target(self, index: int, rows: Rows, other: int) -> bool:
        """Note the shape of output 0 for the new batch as what an input says.

        Args:
            index: Of the input.
            rows: The batch of the output.
            other: What stands for a size that is no number: -1, 1, or 0 if nothing does.

        Returns:
            Whether that can be said.
        """
        shape = list(self.out_shape())
        shape[rows.axis] = rows.size(self.new_batch)
        numbers = [each if isinstance(each, int) else other for each in shape]
        if 0 in numbers or numbers.count(-1) > 1:
            return False
        self.targets.append((index, numbers))
        return True

    def _known(self, shape: tuple[Size, ...] | None) -> tuple[Size, ...]:
        if shape is None:
            raise UnknownShapeError
        return shape

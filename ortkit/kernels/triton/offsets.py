"""Where a kernel's statements stand, and the positions of a tile's points in tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from ortkit.kernels.region.axes import Axis, extent_of_axes
from ortkit.kernels.region.indices import Index, Where
from ortkit.kernels.sizes import Extent, product
from ortkit.kernels.triton.configs import Config
from ortkit.kernels.triton.emit import Emitter
from ortkit.kernels.triton.expr import Expr
from ortkit.kernels.triton.parameters import Parameters
from ortkit.kernels.triton.space import Space

#: Which dims of a tile an expression varies along.
Dims = frozenset[int]
NO_DIMS: Dims = frozenset()


@dataclass(frozen=True)
class TilePosition:
    """A position, or a condition on one, as source."""

    text: str
    dims: Dims


@dataclass
class Scope:
    """The statements of the function, or of a loop in it, and what was computed there."""

    lines: list[str] = field(default_factory=list)
    known: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Axes that are counted together.

    Args:
        axes: Outermost first.
        name: The variable that counts them.
        dims: The dim of the tile.
    """

    axes: tuple[Axis, ...]
    name: str
    dims: Dims


@dataclass
class TileContext:
    """What is known of the tile and the loops around a statement."""

    space: Space
    config: Config
    parameters: Parameters
    groups: list[Group] = field(default_factory=list)
    masks: dict[int, str] = field(default_factory=dict)
    """Per dim of the tile, what tells its points from those beyond the last one."""
    loop: tuple[str, str] | None = None
    """Where loops over the columns begin and end; None for all of them."""
    e: Emitter = field(default_factory=Emitter)
    scopes: list[Scope] = field(default_factory=lambda: [Scope()])

    def __post_init__(self) -> None:
        self.e.lines = self.scopes[0].lines
        self.e.prefix = "v"

    @property
    def index_dtype(self) -> str:
        """The type of positions."""
        return "int64" if self.config.is_wide else "int32"

    # ---- where statements go
    @contextmanager
    def at(self, dims: Dims) -> Iterator[Scope]:
        """Emit into the loop, if there is one and `dims` have the columns; else before it."""
        scope = self.scopes[-1] if 1 in dims else self.scopes[0]
        outside, self.e.lines = self.e.lines, scope.lines
        yield scope
        self.e.lines = outside

    def shared(self, key: object, dims: Dims, write: Callable[[], Expr]) -> Expr:
        """Compute something once in the outermost scope that can."""
        with self.at(dims) as scope:
            if key not in scope.known:
                scope.known[key] = write()
            return cast(Expr, scope.known[key])

    # ---- positions
    def dims_of(self, loops: set[Axis]) -> Dims:
        """Return the dims that the loops belong to."""
        found = [group.dims for group in self.groups if loops & set(group.axes)]
        return frozenset().union(*found)

    def run(self, group: Group, first: int, last: int) -> TilePosition:
        """Return the position along axes `first` .. `last` of a group, counted together."""
        axes = group.axes
        inner = extent_of_axes(axes[last + 1 :])
        text = group.name
        if inner != Extent(1):
            text = f"({text} // {self.parameters.size(inner)})"
        if first:
            text = f"({text} % {self.parameters.size(extent_of_axes(axes[first : last + 1]))})"
        if text == group.name:
            return TilePosition(text, group.dims)
        key = ("run", group.name, first, last)
        value = self.shared(key, group.dims, lambda: self.e.share(Expr(text, self.index_dtype)))
        return TilePosition(value.text, group.dims)

    def position(self, index: Index) -> TilePosition:
        """Return a position along one axis."""
        parts, dims = [], NO_DIMS
        for axis, factor in index.terms:
            group = next(group for group in self.groups if axis in group.axes)
            position = group.axes.index(axis)
            at = self.run(group, position, position)
            parts.append(at.text if factor == 1 else f"{at.text} * {factor}")
            dims |= at.dims
        if index.offset or not parts:
            parts.append(str(index.offset))
        text = " + ".join(parts).replace("+ -", "- ")
        return TilePosition(text if len(parts) == 1 and "*" not in text else f"({text})", dims)

    def offset(self, number: int, where: Where) -> TilePosition:
        """Return an element's offset in its tensor, which is dense."""
        owned, parts = self.space.axes.of(number), []
        dims, index = NO_DIMS, 0
        while index < len(owned):
            count, at = self._longest_run(owned[index:], where)
            index += count
            stride = product(axis.extent for axis in owned[index:])
            dims |= at.dims
            if at.text != "0":
                factor = "" if stride == Extent(1) else f" * {self.parameters.size(stride)}"
                parts.append(f"{at.text}{factor}")
        return TilePosition(" + ".join(parts) or "0", dims)

    def _longest_run(self, owned: Sequence[Axis], where: Where) -> tuple[int, TilePosition]:
        """Return how many of the axes are counted as one, and where they stand."""
        first = owned[0]
        if first in where:
            return 1, self.position(where[first])
        group = next(group for group in self.groups if first in group.axes)
        start = group.axes.index(first)
        count = 1
        while (
            count < len(owned)
            and start + count < len(group.axes)
            and owned[count] is group.axes[start + count]
            and owned[count] not in where
        ):
            count += 1
        return count, self.run(group, start, start + count - 1)

    def mask(self, dims: Dims, guards: Sequence[TilePosition] = ()) -> str:
        """Return the condition for memory at such dims to be there; empty if it always is."""
        parts = [self.masks[dim] for dim in sorted(dims) if dim in self.masks]
        parts += [guard.text for guard in guards if guard.dims and guard.dims <= dims]
        return " & ".join(dict.fromkeys(parts))

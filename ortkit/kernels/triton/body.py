"""The statements of a kernel: positions, loads, operators, reductions, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from ortkit.errors import InternalError
from ortkit.kernels.region import dtypes
from ortkit.kernels.region.axes import Axis, extent_of_axes
from ortkit.kernels.region.indices import (
    HERE,
    Index,
    Where,
    index_of,
    key_of,
    linear,
    loops_of,
    part_where,
    slice_where,
    starts_of,
)
from ortkit.kernels.region.program import (
    Broadcast,
    Concat,
    Constant,
    Input,
    Point,
    Position,
    Reduce,
    Reshape,
    Size,
    Slice,
    Transpose,
)
from ortkit.kernels.sizes import Extent, product
from ortkit.kernels.triton.configs import Config
from ortkit.kernels.triton.emit import TYPES, Emitter, Expr, bare, literal, typed
from ortkit.kernels.triton.helpers import Helpers
from ortkit.kernels.triton.parameters import Parameters
from ortkit.kernels.triton.space import Space

#: Which dims of a tile an expression varies along.
Dims = frozenset[int]
NO_DIMS: Dims = frozenset()


@dataclass(frozen=True)
class Place:
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
class Body:
    """A kernel in the making."""

    space: Space
    config: Config
    parameters: Parameters
    helpers: Helpers
    groups: list[Group] = field(default_factory=list)
    masks: dict[int, str] = field(default_factory=dict)
    """Per dim of the tile, what tells its points from those beyond the last one."""
    results: dict[int, Expr] = field(default_factory=dict)
    """Reductions that are done."""
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

    def run(self, group: Group, first: int, last: int) -> Place:
        """Return the position along axes `first` .. `last` of a group, counted together."""
        axes = group.axes
        inner = extent_of_axes(axes[last + 1 :])
        text = group.name
        if inner != Extent(1):
            text = f"({text} // {self.parameters.size(inner)})"
        if first:
            text = f"({text} % {self.parameters.size(extent_of_axes(axes[first : last + 1]))})"
        if text == group.name:
            return Place(text, group.dims)
        key = ("run", group.name, first, last)
        value = self.shared(key, group.dims, lambda: self.e.share(Expr(text, self.index_dtype)))
        return Place(value.text, group.dims)

    def position(self, index: Index) -> Place:
        """Return a position along one axis."""
        parts, dims = [], NO_DIMS
        for axis, factor in index.terms:
            group = next(group for group in self.groups if axis in group.axes)
            place = group.axes.index(axis)
            at = self.run(group, place, place)
            parts.append(at.text if factor == 1 else f"{at.text} * {factor}")
            dims |= at.dims
        if index.offset or not parts:
            parts.append(str(index.offset))
        text = " + ".join(parts).replace("+ -", "- ")
        return Place(text if len(parts) == 1 and "*" not in text else f"({text})", dims)

    def offset(self, number: int, where: Where) -> Place:
        """Return an element's place in its tensor, which is dense."""
        owned, parts = self.space.axes.of(number), []
        dims, place = NO_DIMS, 0
        while place < len(owned):
            count, at = self._longest_run(owned[place:], where)
            place += count
            stride = product(axis.extent for axis in owned[place:])
            dims |= at.dims
            if at.text != "0":
                factor = "" if stride == Extent(1) else f" * {self.parameters.size(stride)}"
                parts.append(f"{at.text}{factor}")
        return Place(" + ".join(parts) or "0", dims)

    def _longest_run(self, owned: Sequence[Axis], where: Where) -> tuple[int, Place]:
        """Return how many of the axes are counted as one, and where they stand."""
        first = owned[0]
        group = next((group for group in self.groups if first in group.axes), None)
        if first in where or group is None:
            return 1, self.position(index_of(where, first))
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

    def mask(self, dims: Dims, guards: Sequence[Place] = ()) -> str:
        """Return the condition for memory at such dims to be there; empty if it always is."""
        parts = [self.masks[dim] for dim in sorted(dims) if dim in self.masks]
        parts += [guard.text for guard in guards if guard.dims and guard.dims <= dims]
        return " & ".join(dict.fromkeys(parts))

    # ---- values
    def value(self, number: int, where: Where = HERE, guards: tuple[Place, ...] = ()) -> Expr:
        """Return a value at the tile's points.

        Args:
            number: Of the program.
            where: Where it is read.
            guards: What must hold besides for its operands to be there.
        """
        value, axes = self.space.program.values[number], self.space.axes
        match value.node:
            case Constant(value=constant):
                return literal(constant, dtypes.compute_dtype(value.dtype))
            case Size(extent=extent):
                size = Expr(self.parameters.size(extent), self.index_dtype)
                return self.e.cast(size, dtypes.compute_dtype(value.dtype))
            case Broadcast(x=x) | Transpose(x=x) | Reshape(x=x):
                return self.value(x, where, guards)
            case Slice(x=x):
                return self.value(x, slice_where(axes, number, value.node, where), guards)
            case Reduce():
                return self.results[number]
        dims = self.dims_of(loops_of(axes, number, where))
        key = (number, key_of(axes, number, where), guards)
        return self.shared(key, dims, lambda: self._compute(number, where, guards))

    def _compute(self, number: int, where: Where, guards: tuple[Place, ...]) -> Expr:
        value, axes = self.space.program.values[number], self.space.axes
        match value.node:
            case Input(index=index):
                return self._load(index, number, where, guards)
            case Concat():
                return self._parts(number, value.node, where, guards)
            case Point(op_type=op_type, operands=operands):
                found = [None if x is None else self.value(x, where, guards) for x in operands]
                return self.e.share(self.helpers.call(self.e, value.node, found), op_type)
            case Position(dim=dim):
                at = self.position(linear(where, axes.dims[number][dim]))
                text = (
                    typed(int(at.text), "int64")
                    if at.text.isdecimal()
                    else f"{at.text}.to(tl.int64)"
                )
                return self.e.share(Expr(text, "int64"))
        raise InternalError(f"no code for {value.node}")

    def _load(self, index: int, number: int, where: Where, guards: tuple[Place, ...]) -> Expr:
        at = self.offset(number, where)
        mask = self.mask(at.dims, guards)
        name, dtype = self.parameters.tensor(index), self.space.program.values[number].dtype
        text = f"tl.load({name}{_plus(at.text)}{f', mask={mask}, other=0' if mask else ''})"
        if dtype == "bool":
            return self.e.share(Expr(f"({text} != 0)", "bool"))
        raw = self.e.share(Expr(text, dtype))
        return self.e.share(self.e.cast(raw, dtypes.compute_dtype(dtype)))

    def _parts(self, number: int, node: Concat, where: Where, guards: tuple[Place, ...]) -> Expr:
        """Choose the part of a Concat in which each point stands."""
        space = self.space
        index = linear(where, space.axes.dims[number][node.dim])
        starts = starts_of(space.program, node)
        low = high = index.offset
        for axis, factor in index.terms:
            assert axis.extent.static is not None
            high += (axis.extent.static - 1) * factor
        at = self.position(index)
        result: Expr | None = None
        for part, first, last in reversed(list(zip(node.parts, starts, starts[1:], strict=False))):
            if last <= low or high < first or first == last:
                continue
            conditions = [f"{at.text} >= {first}"] if low < first else []
            conditions += [f"{at.text} < {last}"] if last <= high else []
            text = " & ".join(f"({one})" for one in conditions)
            inside = (*guards, Place(text, at.dims)) if conditions else guards
            there = part_where(space.axes, node, part, index, first, where)
            found = self.value(part, there, inside)
            is_before = Expr(f"({at.text} < {last})", "bool")
            result = found if result is None else self.e.select(is_before, found, result)
        if result is None:  # no points at all
            result = literal(0, dtypes.compute_dtype(space.program.values[number].dtype))
        return self.e.share(result, "Concat")

    # ---- outputs
    def store(self, places: Sequence[int]) -> None:
        """Store outputs: all are computed before the first is stored."""
        program = self.space.program
        found = [self.value(program.outputs[place]) for place in places]
        for place, value in zip(places, found, strict=True):
            number = program.outputs[place]
            dtype = program.values[number].dtype
            at = self.offset(number, HERE)
            text, dims = at.text, at.dims
            for group in self.groups:
                # A tile of one point is one of two dims, as what is stored has.
                if group.dims and not dims & group.dims and group.name == "row":
                    text, dims = f"{group.name}{_plus(text)}", dims | group.dims
            stored = value if dtype == "bool" else self.e.cast(value, dtype)
            written = f"{value.text}.to(tl.uint8)" if dtype == "bool" else stored.text
            name = self.parameters.tensor(program.inputs + place)
            with self.at(dims):
                mask = self.mask(dims)
                self.e.lines.append(
                    f"tl.store({name}{_plus(text)}, {bare(written)}"
                    f"{f', mask={mask}' if mask else ''})"
                )

    # ---- reductions
    def identity(self, kind: str, dtype: str) -> str:
        """Return what changes nothing in a reduction."""
        if kind == "sum":
            return literal(0, dtype).text
        is_max = kind == "max"
        if dtype.startswith("float"):
            return literal(float("-inf") if is_max else float("inf"), dtype).text
        return (self.e.lowest(dtype) if is_max else self.e.highest(dtype)).text

    def reduced(self, kind: str, value: Expr, dims: Dims) -> tuple[Expr, str]:
        """Return what is reduced with the identity beyond the last column, and the identity."""
        e, dtype = self.e, value.dtype
        identity = self.identity(kind, dtype)
        mask = self.masks.get(1)
        if mask:
            value = e.share(Expr(f"tl.where({mask}, {bare(value.text)}, {identity})", dtype))
        if 1 not in dims:
            tile = f"({self.config.rows}, {self.config.columns})"
            value = e.share(Expr(f"(tl.zeros({tile}, {TYPES[dtype]}) + {value.text})", dtype))
        return value, identity

    def finish(self, number: int, value: Expr, kind: str) -> None:
        """Reduce a tile along its columns."""
        call = f"tl.{kind}({value.text}, 1, keep_dims=True)"
        # Triton sums and compares short integers as int32.
        if value.dtype not in ("float32", "float64", "int64", "uint64", "int32", "uint32"):
            call = f"{call}.to({TYPES[value.dtype]})"
        self.results[number] = self.e.share(Expr(call, value.dtype), f"Reduce, {kind}")


def _plus(text: str) -> str:
    return "" if text == "0" else f" + {text}"

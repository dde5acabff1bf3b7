"""The statements of a kernel: loads, operators, reductions, stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortkit.errors import InternalError
from ortkit.kernels.region import dtypes
from ortkit.kernels.region.indices import (
    HERE,
    Where,
    key_of,
    linear,
    loops_of,
    part_where,
    row_where,
    starts_of,
    through_views,
)
from ortkit.kernels.region.program import (
    Concat,
    Constant,
    Input,
    Lookup,
    Point,
    Position,
    Reduce,
    Size,
)
from ortkit.kernels.sizes import product
from ortkit.kernels.triton.expr import TYPES, Expr, bare, literal, typed
from ortkit.kernels.triton.helpers import Helpers
from ortkit.kernels.triton.offsets import Dims, TileContext, TilePosition


@dataclass
class Body(TileContext):
    """A kernel in the making."""

    helpers: Helpers = field(default_factory=Helpers)
    results: dict[int, Expr] = field(default_factory=dict)
    """Reductions that are done."""

    # ---- values
    def value(
        self, number: int, where: Where = HERE, guards: tuple[TilePosition, ...] = ()
    ) -> Expr:
        """Return a value at the tile's points.

        Args:
            number: Of the program.
            where: Where it is read.
            guards: Further conditions under which its operands are there.
        """
        program, axes = self.space.program, self.space.axes
        number, where = through_views(program, axes, number, where)
        value = program.values[number]
        match value.node:
            case Constant(value=constant):
                return literal(constant, dtypes.compute_dtype(value.dtype))
            case Size(extent=extent):
                size = Expr(self.parameters.size(extent), self.index_dtype)
                return self.e.cast(size, dtypes.compute_dtype(value.dtype))
            case Reduce():
                return self.results[number]
        dims = self.dims_of(loops_of(axes, number, where))
        key = (number, key_of(axes, number, where), guards)
        return self.shared(key, dims, lambda: self._compute(number, where, guards))

    def _compute(self, number: int, where: Where, guards: tuple[TilePosition, ...]) -> Expr:
        value, axes = self.space.program.values[number], self.space.axes
        match value.node:
            case Input(index=index):
                return self._load(index, number, where, guards)
            case Concat():
                return self._parts(number, value.node, where, guards)
            case Lookup():
                return self._rows(value.node, where, guards)
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

    def _load(
        self, index: int, number: int, where: Where, guards: tuple[TilePosition, ...]
    ) -> Expr:
        at = self.offset(number, where)
        return self._loaded(index, number, _plus(at.text), self.mask(at.dims, guards))

    def _rows(self, node: Lookup, where: Where, guards: tuple[TilePosition, ...]) -> Expr:
        """Load from the rows that indices name; those that are not there hold zeros."""
        program, axes = self.space.program, self.space.axes
        index = self.value(node.indices, where, guards)
        size, *row = program.values[node.x].shape
        count = self.parameters.size(size)
        chosen = f"tl.where({index.text} < 0, {index.text} + {count}, {index.text})"
        index = self.e.share(Expr(chosen, index.dtype))
        at = self.offset(node.x, row_where(axes, node, where))
        dims = at.dims | self.dims_of(loops_of(axes, node.indices, where))
        inside = f"({index.text} >= 0) & ({index.text} < {count})"
        mask = " & ".join(part for part in (self.mask(dims, guards), inside) if part)
        first = f" + {index.text}.to(tl.int64) * {self.parameters.size(product(row))}"
        table = program.values[node.x].node
        assert isinstance(table, Input)
        return self._loaded(table.index, node.x, first + _plus(at.text), mask)

    def _loaded(self, index: int, number: int, position: str, mask: str) -> Expr:
        name, dtype = self.parameters.tensor(index), self.space.program.values[number].dtype
        text = f"tl.load({name}{position}{f', mask={mask}, other=0' if mask else ''})"
        if dtype == "bool":
            return self.e.share(Expr(f"({text} != 0)", "bool"))
        raw = self.e.share(Expr(text, dtype))
        return self.e.share(self.e.cast(raw, dtypes.compute_dtype(dtype)))

    def _parts(
        self, number: int, node: Concat, where: Where, guards: tuple[TilePosition, ...]
    ) -> Expr:
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
            text = " & ".join(f"({condition})" for condition in conditions)
            inside = (*guards, TilePosition(text, at.dims)) if conditions else guards
            there = part_where(space.axes, node, part, index, first, where)
            found = self.value(part, there, inside)
            is_before = Expr(f"({at.text} < {last})", "bool")
            result = found if result is None else self.e.select(is_before, found, result)
        if result is None:  # no points at all
            result = literal(0, dtypes.compute_dtype(space.program.values[number].dtype))
        return self.e.share(result, "Concat")

    # ---- outputs
    def store(self, indices: Sequence[int]) -> None:
        """Store outputs: all are computed before the first is stored."""
        program = self.space.program
        found = [self.value(program.outputs[index]) for index in indices]
        for index, value in zip(indices, found, strict=True):
            number = program.outputs[index]
            dtype = program.values[number].dtype
            at = self.offset(number, HERE)
            text, dims = at.text, at.dims
            for group in self.groups:
                # A tile of one point is one of two dims, as what is stored has.
                if group.dims and not dims & group.dims and group.name == "row":
                    text, dims = f"{group.name}{_plus(text)}", dims | group.dims
            stored = value if dtype == "bool" else self.e.cast(value, dtype)
            written = f"{value.text}.to(tl.uint8)" if dtype == "bool" else stored.text
            name = self.parameters.tensor(program.inputs + index)
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

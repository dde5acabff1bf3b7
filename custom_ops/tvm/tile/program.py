"""Tile programs: results in panels of columns, each computed in tiles that stay in registers.

Products of matrices, 1x1 and other convolutions are sums over a depth of some rows by some vectors
of columns. A template says how its rows and its depth are walked; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import known

from ...forms.conv import Convolution
from ...forms.epilogue import SECOND_HALF, Epilogue
from .emitter import TileEmitter
from .gemm_tile import Destination, accumulators, expect_tile, load_bias, write_tile
from .registers import VECTOR, Tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.choices import Choices
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: One core of x86-64-v4 at 150 GFLOP/s.
PICOSECONDS_PER_MULTIPLY = 13
#: A unit should be worth the arithmetic that finds it: about 3 microseconds of multiply-adds.
UNIT_MULTIPLIES = 200_000


class UnitKernel:
    """A kernel that computes its units one after the other."""

    if TYPE_CHECKING:

        @property
        def signature(self) -> RegionSignature:
            """The region's."""
            ...

        def launch(self, level: str) -> Launch:
            """Return how the kernel is called."""
            ...

    def emitter(self, symbol: str, level: str) -> TileEmitter:
        """Return what writes the function."""
        return TileEmitter(symbol, processor=level)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        e = self.emitter(symbol, level)
        buffers, begin, end = e.parameters(self.signature)
        unit = self.writer(e, buffers)
        with e.loop(end - begin) as index:
            unit(begin + index)
        return e.function()

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit what all units have in common; return what emits a unit, given its number."""
        sizes = self.launch(e.processor).units
        return lambda unit: self.unit(e, buffers, (unit, *e.decode(unit, sizes)))

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a unit, given its number and its coordinates in the units of `launch`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConvKernel(UnitKernel):
    """A kernel of one convolution.

    Args:
        conv: The convolution.
        weight: The input that its weight is packed in.
    """

    conv: Convolution
    weight: int

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.conv.signature


@dataclass(frozen=True)
class Tuned:
    """A template with a field for each choice that it goes by, 0 where its rule is to say.

    Args:
        pixels: Rows of a tile.
        panel: Vectors of a tile.
    """

    parameters: ClassVar[tuple[str, ...]] = ("pixels", "panel")

    pixels: int = field(default=0, kw_only=True)
    panel: int = field(default=0, kw_only=True)

    def chosen(self, choices: Choices) -> Self:
        """Return the kernel with its tiles chosen."""
        return replace(self, **{name: getattr(choices, name) for name in self.parameters})


class Finished(Protocol):
    """What is done to sums: numbers are the region's inputs."""

    @property
    def signature(self) -> RegionSignature:
        """The region's; its first output has the columns last."""
        ...

    @property
    def bias(self) -> int | None:
        """One number a column."""
        ...

    @property
    def epilogue(self) -> Epilogue:
        """What follows."""
        ...


@dataclass(frozen=True)
class Panels:
    """Columns in panels of some vectors; the last may have fewer, and of its last one a part."""

    columns: int
    vectors: int

    @property
    def count(self) -> int:
        """How many there are."""
        return ceil(self.columns / (self.vectors * VECTOR))

    def size(self, number: int) -> tuple[int, int]:
        """Return a panel's vectors, and the lanes of its last one."""
        if number < self.count - 1:
            return self.vectors, VECTOR
        left = ceil(self.columns / VECTOR) - number * self.vectors
        return left, self.columns % VECTOR or VECTOR

    def each(self, e: TileEmitter, number: Expr, emit: Callable[[int, int], None]) -> None:
        """Emit a panel of whichever size, given its number."""
        sizes = self.size(0), self.size(self.count - 1)
        e.peel_last(number, self.count, *sizes, lambda size: emit(*size))


@dataclass(frozen=True)
class Panel:
    """A panel in the making: where its results go, the bias of each column, and its vectors."""

    e: TileEmitter
    epilogue: Epilogue
    to: Destination
    bias: Buffer
    vectors: int

    @contextmanager
    def tile(
        self, rows: int, row: Expr, *, asks: bool = True, is_shared: bool = False
    ) -> Iterator[list[list[Buffer]]]:
        """Yield the registers of a tile, which hold the bias; then finish and write them.

        Args:
            rows: Of the tile.
            row: The first one.
            asks: Whether what will be written and read is asked for before.
            is_shared: Whether `row` was computed before, and is no sum of what was.
        """
        tile = Tile(rows, self.vectors)
        if asks:
            expect_tile(self.e, tile, self.to, row)
        registers = accumulators(self.e, tile, self.bias)
        yield registers
        to = row if is_shared else self.e.share(row)
        write_tile(self.e, registers, self.epilogue, self.to, to)


def open_panel(
    e: TileEmitter,
    buffers: Sequence[Buffer],
    of: Finished,
    first: Expr,
    size: tuple[int, ...],
    into: tuple[Buffer, int] | None = None,
) -> Panel:
    """Return a panel, its bias loaded.

    Args:
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        of: What is computed.
        first: The panel's first column.
        size: Its vectors, those of both halves if the columns have two, and the lanes of the
            last one.
        into: What holds results and how far its rows are apart, if that is no output.
    """
    vectors, lanes = size
    (columns,) = known(of.signature.outputs[0].shape[-1:])
    output, pitch = into or (buffers[len(of.signature.inputs)], columns)
    extras = [None if extra == SECOND_HALF else buffers[extra] for extra in of.epilogue.extras]
    to = Destination(output, extras, pitch, first, lanes)
    bias = load_bias(e, None if of.bias is None else buffers[of.bias], vectors, to)
    return Panel(e, of.epilogue, to, bias, vectors)


def lanes_of(
    e: TileEmitter, weight: Buffer, column: Expr, steps: int, step: Expr
) -> Callable[[int, Expr], Expr]:
    """Return what gives a vector's lanes of a weight [vectors, steps, 16], at one step.

    Args:
        e: The emitter that writes the statements.
        weight: Packed by vectors of columns.
        column: The first one.
        steps: Of the depth.
        step: One of them.
    """

    def lanes(vector: int, lane: Expr) -> Expr:
        first = (column + e.i64(vector * VECTOR)) * e.i64(steps)
        return weight[first + step * e.i64(VECTOR) + lane]

    return lanes


def each_tile(e: TileEmitter, count: int, height: int, tile: Callable[[int, Expr], None]) -> None:
    """Emit the tiles of `count` rows, given the rows of each and its first one."""
    whole, rest = divmod(count, height)
    with e.loop(e.i64(whole)) as number:
        tile(height, e.share(number * e.i64(height)))
    if rest:
        tile(rest, e.i64(whole * height))

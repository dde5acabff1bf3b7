"""One tile of a matrix product: accumulators in registers, then an epilogue on each vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.tvm.emit import NEAREST

from .emitter import parts
from .registers import VECTOR, Tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.epilogue import Epilogue
    from .emitter import TileEmitter


# Of an epilogue that is written out for each register.
_FEW_FLOPS = 4


@dataclass(frozen=True)
class Destination:
    """Where the tile's results go: [pixel, channel] of the output, the channels dense.

    Args:
        output: Written.
        extras: Read in the same places, for the epilogue; None for columns of the tile itself.
        channels: Of a pixel.
        first: The first channel of the tile.
        lanes: How many channels of the tile's last vector there are.
    """

    output: Buffer
    extras: Sequence[Buffer | None]
    channels: int
    first: Expr
    lanes: int = VECTOR

    @property
    def halves(self) -> int:
        """In how many parts the vectors of a tile are: 2 if the second ones gate the first."""
        return 2 if None in self.extras else 1


def load_bias(e: TileEmitter, bias: Buffer | None, vectors: int, to: Destination) -> Buffer:
    """Return scratch with the bias of each of the tile's channels, zero where there is none."""
    result = e.scratch(vectors * VECTOR)
    count = vectors // to.halves
    for number in range(vectors):
        half, vector = divmod(number, count)
        start = e.i64(number * VECTOR)
        width = VECTOR if vector < count - 1 else to.lanes
        if bias is None or width < VECTOR:
            with e.vector(VECTOR) as lane:
                e.store(result, e.f32(0.0), start + lane)
        if bias is not None:
            for offset, size in parts(width):
                with e.lanes(size) as lane:
                    at = start + e.i64(offset) + lane
                    source = to.first + at
                    if half:
                        source = source + e.i64(to.channels - count * VECTOR)
                    e.store(result, bias[source], at)
    return result


def accumulators(e: TileEmitter, tile: Tile, bias: Buffer) -> list[list[Buffer]]:
    """Return a register for each row and vector of the tile, holding the bias."""
    result = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
    for _, vector, register, lane in each_register(e, result):
        e.store(register, bias[e.i64(vector * VECTOR) + lane], lane)
    return result


def each_register(
    e: TileEmitter, registers: list[list[Buffer]]
) -> Iterator[tuple[int, int, Buffer, Expr]]:
    """Emit a vector loop for each register of a tile; yield its row, its vector, it, the lane."""
    for row, vectors in enumerate(registers):
        for vector, register in enumerate(vectors):
            with e.vector(VECTOR) as lane:
                yield row, vector, register, lane


def expect_tile(e: TileEmitter, tile: Tile, to: Destination, pixel: Expr) -> None:
    """Ask for what `write_tile` will read and write: it comes while the tile is computed."""
    for row in range(tile.rows):
        at = e.share((pixel + e.i64(row)) * e.i64(to.channels) + to.first)
        for vector in range(tile.vectors // to.halves):
            for buffer in (*to.extras, to.output):
                if buffer is not None:
                    e.prefetch(buffer, at + e.i64(vector * VECTOR), NEAREST)


def multiply_add(
    e: TileEmitter,
    registers: list[list[Buffer]],
    left: Callable[[int], Expr],
    right: Callable[[int, Expr], Expr],
) -> None:
    """Add one step of the depth: for each row and vector left(row) * right(vector, lane)."""
    columns = []
    for vector in range(len(registers[0])):
        column = e.scratch()
        with e.vector(VECTOR) as lane:
            e.store(column, right(vector, lane), lane)
        columns.append(column)
    for row, vectors in enumerate(registers):
        factor = left(row)
        for register, column in zip(vectors, columns, strict=True):
            with e.vector(VECTOR) as lane:
                e.store(register, register[lane] + factor * column[lane], lane)


def write_tile(
    e: TileEmitter, registers: list[list[Buffer]], epilogue: Epilogue, to: Destination, pixel: Expr
) -> None:
    """Apply the epilogue to every element and write the rows from `pixel` on.

    If it is long, through scratch and in a loop: written out for each register it would be most of
    the code.
    """
    rows, vectors = len(registers), len(registers[0])
    written = vectors // to.halves
    if epilogue.flops <= _FEW_FLOPS and to.lanes == VECTOR:
        for row, registers_of_row in enumerate(registers):
            sink = e.share((pixel + e.i64(row)) * e.i64(to.channels) + to.first)
            for vector, register in enumerate(registers_of_row[:written]):
                start = e.i64(0), sink + e.i64(vector * VECTOR)
                second = registers_of_row[(written + vector) % vectors]
                write_vector(e, register, epilogue, to, start, VECTOR, (second, 0))
        return
    scratch = e.scratch(rows * vectors * VECTOR)
    for number, vector, register, lane in each_register(e, registers):
        e.store(scratch, register[lane], e.i64((number * vectors + vector) * VECTOR) + lane)
    full = written if to.lanes == VECTOR else written - 1
    second = scratch, written * VECTOR
    with e.loop(e.i64(rows)) as row:
        source = e.share(row * e.i64(vectors * VECTOR))
        sink = e.share((pixel + row) * e.i64(to.channels) + to.first)
        if full:
            with e.loop(e.i64(full)) as vector:
                offset = vector * e.i64(VECTOR)
                start = source + offset, sink + offset
                write_vector(e, scratch, epilogue, to, start, VECTOR, second)
        if full < written:
            for offset, count in parts(to.lanes):
                at = e.i64(full * VECTOR + offset)
                write_vector(e, scratch, epilogue, to, (source + at, sink + at), count, second)


def write_vector(
    e: TileEmitter,
    scratch: Buffer,
    epilogue: Epilogue,
    to: Destination,
    offsets: tuple[Expr, Expr],
    width: int,
    second: tuple[Buffer, int] | None = None,
) -> None:
    """Apply the epilogue to `width` elements and write them.

    Args:
        e: The emitter that writes the statements.
        scratch: What was computed.
        epilogue: Applied.
        to: Where results go.
        offsets: The first element in the scratch, and in the output.
        width: At most a vector.
        second: What was computed of the second half of the columns, and how many elements it is
            behind the first one.
    """
    start, at = (e.share(each) for each in offsets)
    other, behind = second or (scratch, 0)
    with e.lanes(width) as lane:
        extras = [
            other[start + e.i64(behind) + lane] if extra is None else extra[at + lane]
            for extra in to.extras
        ]
        e.store(to.output, epilogue.write(e, scratch[start + lane], extras), at + lane)

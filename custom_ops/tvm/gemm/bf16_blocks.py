"""Sums of blocks of a bfloat16 product, up to 32 columns wide, onto the stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .bf16_emitter import PAIRS, TILE, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

_TILE_ROW = 64
# Tiles: sums (row, column) 0 to 3, then two of A, then two of the weight.
_A, _B = 4, 6


@dataclass(frozen=True)
class Operands:
    """What a block reads.

    Args:
        a: bfloat16, rows `stride` elements apart, a multiple of 32 of them in each.
        stride: In elements.
        weight: Packed.
        depth: K rounded up to a multiple of 32.
        origin: The element that the weight begins at; None if it is the first.
    """

    a: Buffer
    stride: int
    weight: Buffer
    depth: int
    origin: Expr | None = None


def shape_tiles(e: Bf16Emitter, upper: Expr, lower: Expr) -> None:
    """Set the tiles for blocks of `upper` + `lower` rows, each 1 to 16."""
    full = e.i64(TILE)
    rows = (upper, upper, lower, lower, upper, lower, full, full)
    e.shape_tiles([(count, _TILE_ROW) for count in rows])


@dataclass(frozen=True)
class Steps:
    """A part of the depth of a product, in steps of 32; sums go on from what is there.

    Args:
        first: The first step.
        count: Number of steps.
        is_new: Whether sums begin; None if they always do.
        turn: The number of the block of rows: each fetches a quarter of the next panel. None if
            there is nothing to fetch.
        left: How far into rows of A the first step lies, in elements.
    """

    first: Expr
    count: Expr
    is_new: Expr | None
    turn: Expr | None
    left: Expr


def tile_block(
    e: Bf16Emitter,
    of: Operands,
    at: tuple[Expr, Expr],
    shape: tuple[int, int],
    steps: Steps,
    sums: tuple[Buffer, Expr],
) -> None:
    """Sum a block of 1 or 2 tiles of rows by 1 or 2 of columns, as the tiles are set.

    Args:
        e: The emitter that writes the statements.
        of: The operands.
        at: The element of A that the block begins at, and the strip of the weight.
        shape: In tiles.
        steps: The part of the depth.
        sums: Rows of `PAIRS` float32, and the element that they begin at.
    """
    (start, strip), (rows, columns) = at, shape
    offsets = {
        2 * row + column: e.share(sums[1] + e.i64(row * TILE * PAIRS + column * TILE))
        for row in range(rows)
        for column in range(columns)
    }
    _begin(e, offsets, sums[0], steps.is_new)
    stride, width = e.i64(of.stride * 2), e.i64(_TILE_ROW)
    begin = e.share(start + steps.left)
    across = strip * e.i64(of.depth * TILE) + steps.first * e.i64(PAIRS * TILE)
    across = e.share(across if of.origin is None else of.origin + across)
    quarter = TILE // 4
    turn = None
    if steps.turn is not None:
        turn = e.share(e.tir.bitwise_and(steps.turn, e.i64(3)) * e.i64(quarter * PAIRS))
    with e.loop(steps.count) as step:
        left = begin + step * e.i64(PAIRS)
        right = across + step * e.i64(PAIRS * TILE)
        for line in range(0 if turn is None else quarter * columns):
            column, offset = columns + line // quarter, line % quarter * PAIRS
            e.prefetch(of.weight, right + turn + e.i64(column * of.depth * TILE + offset))
        for row in range(rows):
            for column in range(columns):
                if row == 0:
                    panel = right + e.i64(column * of.depth * TILE)
                    e.load_tile(_B + column, of.weight, panel, width)
                if column == 0:
                    e.load_tile(_A + row, of.a, left + e.i64(row * TILE * of.stride), stride)
                e.multiply_tiles(2 * row + column, _A + row, _B + column)
    for tile, offset in offsets.items():
        e.store_tile(tile, sums[0], offset, e.i64(PAIRS * 4))


def _begin(e: Bf16Emitter, offsets: Mapping[int, Expr], sums: Buffer, is_new: Expr | None) -> None:
    with e.block() as new:
        for tile in offsets:
            e.clear_tile(tile)
    with e.block() as old:
        for tile, offset in offsets.items():
            e.load_tile(tile, sums, offset, e.i64(PAIRS * 4))
    e.branch(e.constant(1, "bool") if is_new is None else is_new, new, old)


def dot_block(
    e: Bf16Emitter,
    of: Operands,
    at: tuple[Expr, Expr],
    shape: tuple[int, int],
    sums: tuple[Buffer, Expr],
) -> None:
    """Sum a block of some rows by 1 or 2 vectors of columns; see `tile_block`."""
    (start, strip), (rows, columns) = at, shape
    zero = e.tir.Broadcast(e.f32(0.0), TILE)
    totals = [[e.scratch() for _ in range(columns)] for _ in range(rows)]
    for total in (each for row in totals for each in row):
        e.store_row(total, zero, 0, TILE)
    begin = e.share(strip * e.i64(of.depth * TILE))
    with e.loop(e.i64(of.depth // 2)) as pair:
        across = begin + pair * e.i64(PAIRS)
        weights = [
            e.share_row(
                e.part(of.weight, across + e.i64(c * of.depth * TILE), PAIRS), PAIRS, "uint16"
            )
            for c in range(columns)
        ]
        for row in range(rows):
            offset = start + e.i64(row * of.stride) + pair * e.i64(2)
            factor = e.share_row(e.pair(of.a, offset), PAIRS, "uint16")
            for total, weight in zip(totals[row], weights, strict=True):
                e.store_row(total, e.dot(e.row(total, 0, TILE), factor, weight), 0, TILE)
    for row in range(rows):
        for column in range(columns):
            offset = sums[1] + e.i64(row * PAIRS + column * TILE)
            e.put(sums[0], offset, e.row(totals[row][column], 0, TILE), TILE)

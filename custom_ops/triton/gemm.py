"""Products of many rows and constant matrices, with what follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.region.dtypes import memory_bytes
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import (
    Call,
    Map,
    Passed,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource

from .conv_form import epilogue_text
from .gemm_tiles import PLAIN, PLAIN_PAIR, Tile, tiles_of
from .product_form import MOST_OPERANDS, Products

_GROUP_WARPS = 4
#: Of a thread that computes, where groups share the registers.
_REGISTERS = 240
#: Rows and columns have positions of 32 bits.
_MOST_ROWS = 2**31 - 1 - 256
#: An operand of the epilogue, as kernels are told: none, a row, as large as the result, a column.
_NONE, _ROW, _WHOLE, _COLUMN = range(4)
#: Of a step of the tensor cores.
_MMA_BYTES = 32


@dataclass(frozen=True)
class TiledProduct:
    """Products of more rows than one, or of a number that is not known."""

    form: Products
    #: cuBLAS is faster than the plain kernel: other GPUs run the function's body.
    architectures: ClassVar[tuple[int, ...]] = (90,)

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of rows, and those for any tensor."""
        return (*(self.hopper(tile) for tile in self.tiles()), *self._plain())

    def tiles(self) -> tuple[Tile, ...]:
        """Return those for each range of rows."""
        form, whole = self.form, self._kinds().count(_WHOLE)
        return tiles_of(form.rows.static, form.columns, len(form.weights), whole)

    def hopper(self, tile: Tile) -> VariantSource:
        """Return the kernel that copies boxes, for the rows that the tile is for."""
        form, rows, result = self.form, self.form.rows, len(self.form.signature.inputs)
        columns, depth = Extent(form.columns), Extent(form.depth)
        sizes = (columns, depth) if form.is_turned else (depth, columns)
        box = (tile.columns, tile.depth) if form.is_turned else (tile.depth, tile.columns)
        matrices = [Map(one, sizes, (sizes[1],), box) for one in form.weights]
        height = tile.rows if tile.is_apart else tile.rows // tile.groups
        arguments: tuple[Passed, ...] = (
            Map(form.x, (rows, depth), (depth,), (height, tile.depth)),
            matrices[0], matrices[-1], *self._read(),
            Map(result, (rows, columns), (columns,), (height, tile.columns)), Size(rows),
            form.columns, form.depth, tile.rows, tile.columns, tile.depth, tile.stages,
            tile.groups, tile.is_apart, tile.band, form.is_turned, len(form.weights) > 1,
            *self._kinds(), tile.is_early, _REGISTERS,
            _MMA_BYTES // memory_bytes(form.signature.inputs[form.x].dtype),
        )  # fmt: skip
        grid = ((rows, tile.rows), (columns, tile.columns), (ONE, 1))
        if tile.blocks:
            grid = ((Extent(tile.blocks), 1), (ONE, 1), (ONE, 1))
        call = Call(
            "gemm", arguments, grid, _GROUP_WARPS, registers=tile.limit, is_gluon=True,
            workers=_GROUP_WARPS * tile.groups,
        )  # fmt: skip
        text = kernel_text("gemm_hopper_kernel")
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1, is_gluon=True)
        most = _MOST_ROWS if tile.most_rows is None else tile.most_rows
        return hand_variant(
            form.signature, [call], text, (Condition(rows, at_most=most),),
            architectures=self.architectures,
        )  # fmt: skip

    def _plain(self) -> tuple[VariantSource, ...]:
        """Return the kernel for tensors without elements, and for those that are not aligned."""
        form, rows = self.form, self.form.rows
        tile = PLAIN_PAIR if len(form.weights) > 1 else PLAIN
        arguments: tuple[Passed, ...] = (
            Tensor(form.x), Tensor(form.weights[0]), Tensor(form.weights[-1]), *self._read(),
            Tensor(len(form.signature.inputs)), Size(rows), form.columns, form.depth,
            tile.rows, tile.columns, tile.depth, form.is_turned, len(form.weights) > 1,
            *self._kinds(),
        )  # fmt: skip
        grid = ((rows, tile.rows), (Extent(form.columns), tile.columns), (ONE, 1))
        call = Call("gemm_kernel", arguments, grid, _GROUP_WARPS, tile.stages)
        text = kernel_text("gemm_kernel")
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)
        most = (Condition(rows, at_most=_MOST_ROWS),)
        return tuple(
            hand_variant(
                form.signature, [call], text, most, is_aligned=is_aligned,
                architectures=self.architectures,
            )
            for is_aligned in (True, False)
        )  # fmt: skip

    def _read(self) -> tuple[Tensor, ...]:
        """Return the operands of the epilogue, and something in the place of those missing."""
        missing = MOST_OPERANDS - len(self.form.reads)
        return (*map(Tensor, self.form.reads), *[Tensor(self.form.x)] * missing)

    def _kinds(self) -> tuple[int, ...]:
        """Return how large those operands are."""
        inputs, whole = self.form.signature.inputs, self.form.signature.outputs[0].shape
        named = {whole: _WHOLE, (*whole[:-1], 1): _COLUMN}
        kinds = [named.get(inputs[one].shape, _ROW) for one in self.form.reads]
        return (*kinds, *[_NONE] * (MOST_OPERANDS - len(kinds)))


def fits(columns: int) -> bool:
    """Say whether grids have room for so many columns."""
    return columns <= MAX_GRID[1] * PLAIN_PAIR.columns

"""Large-M matmuls, single or batched, with their epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.region.dtypes import memory_bytes
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
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

from ...forms.conv_half import epilogue_text
from ...forms.gemm import MOST_OPERANDS, Products
from ..alignment import for_any_alignment
from .gemm_tiles import PLAIN, PLAIN_PAIR, Tile, tiles_of
from .norm_rows import NormedRows
from .token import one_row

_GROUP_WARPS = 4
#: Of a thread that computes, where groups share the registers.
_REGISTERS = 240
#: Rows and columns have positions of 32 bits.
_MOST_ROWS = 2**31 - 1 - 256
#: An operand of the epilogue, as kernels take it: none, a row, as large as the result, a column.
_NONE, _ROW, WHOLE, _COLUMN = range(4)
#: Of a step of the tensor cores.
_MMA_BYTES = 32
_TEXTS = ("gemm_hopper_group_kernel", "gemm_hopper_kernel")


@dataclass(frozen=True)
class TiledProduct:
    """Products of more rows than one, or of a number that is not known."""

    form: Products
    #: cuBLAS is faster than the plain kernel: other GPUs run the function's body.
    architectures: ClassVar[tuple[int, ...]] = (90,)

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of rows, and those for any tensor."""
        return (*self._one_row(), *(self.hopper(tile) for tile in self.tiles()), *self._plain())

    def _one_row(self) -> tuple[VariantSource, ...]:
        """Return the launch of one row, where it may be one and the matrices lie for that."""
        form = self.form
        if form.rows.static is not None or form.batch is not None or form.is_lhs_transposed:
            return ()
        if not form.is_transposed or _COLUMN in self._kinds():
            return ()
        return (one_row(form, self.architectures),)

    def normed(self) -> NormedRows:
        """Return the rows that more than one is read from."""
        form = self.form
        return NormedRows(form.signature, form.made_of, form.rows, form.depth)

    def tiles(self) -> tuple[Tile, ...]:
        """Return those for each range of rows."""
        form, whole = self.form, self._kinds().count(WHOLE)
        return tiles_of(
            form.rows.static, form.columns, len(form.weights), whole, form.depth,
            self._count().static,
        )  # fmt: skip

    def hopper(self, tile: Tile) -> VariantSource:
        """Return the kernel that copies boxes, for the rows that the tile is for."""
        most = _MOST_ROWS if tile.most_rows is None else tile.most_rows
        return hand_variant(
            self.form.signature, [*self.normed().launches(), self.call(tile)], "",
            self._conditions(most), scratch=self.normed().blocks(),
            architectures=self.architectures,
        )  # fmt: skip

    def call(self, tile: Tile) -> Call:
        """Return its launch. Matrices may be blocks of scratch memory, as `Map` has them."""
        form, rows, result = self.form, self.form.rows, self.form.y
        columns, depth = Extent(form.columns), Extent(form.depth)
        height = tile.rows if tile.is_separate else tile.rows // tile.groups
        matrices = [
            self._boxes(
                form.weights[start], (depth, columns), (tile.depth, width),
                is_transposed=form.is_transposed,
            )
            for start, width in ((0, tile.columns), (-1, tile.rest or tile.columns))
        ]  # fmt: skip
        made = [
            self._boxes(result, (rows, columns), (height, width)) if width else None
            for width in (tile.columns, tile.rest)
        ]
        arguments: tuple[Passed, ...] = (
            self._boxes(
                self.normed().place, (rows, depth), (height, tile.depth),
                is_transposed=form.is_lhs_transposed,
            ),
            *matrices, *self._read(), *made, Size(rows), Size(self._count()),
            form.columns, form.depth, tile.rows, tile.columns, tile.rest, tile.depth, tile.stages,
            tile.groups, tile.is_separate, tile.band, form.is_transposed, form.is_lhs_transposed,
            len(form.weights) > 1, *self._kinds(), tile.is_early, _REGISTERS,
            self._batch_strides(),
            _MMA_BYTES // memory_bytes(form.signature.inputs[form.x].dtype),
        )  # fmt: skip
        grid = ((rows, tile.rows), (columns, tile.width), (self._count(), 1))
        if tile.blocks:
            grid = ((Extent(tile.blocks), 1), (ONE, 1), (ONE, 1))
        text = "".join(map(kernel_text, _TEXTS))
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1, is_gluon=True)
        return Call(
            "gemm", arguments, grid, _GROUP_WARPS, registers=tile.limit, is_gluon=True,
            workers=_GROUP_WARPS * tile.groups, text=text,
        )  # fmt: skip

    def _plain(self) -> tuple[VariantSource, ...]:
        """Return the kernel for tensors without elements, and for those that are not aligned."""
        form, rows = self.form, self.form.rows
        tile = PLAIN_PAIR if len(form.weights) > 1 else PLAIN
        arguments: tuple[Passed, ...] = (
            self.normed().passed, Tensor(form.weights[0]), Tensor(form.weights[-1]),
            *self._read(), Tensor(form.y), Size(rows), form.columns, form.depth,
            tile.rows, tile.columns, tile.depth, form.is_transposed, form.is_lhs_transposed,
            len(form.weights) > 1, *self._kinds(), self._batch_strides(),
        )  # fmt: skip
        grid = ((rows, tile.rows), (Extent(form.columns), tile.columns), (self._count(), 1))
        call = Call("gemm_kernel", arguments, grid, _GROUP_WARPS, tile.stages)
        text = kernel_text("gemm_kernel")
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)
        # A step along the depth of a transposed x has 32 bits.
        most = (2**31 - 1) // tile.depth if form.is_lhs_transposed else _MOST_ROWS
        return for_any_alignment(
            form.signature, [*self.normed().launches(), call], text, self.normed().blocks(),
            self._conditions(most), self.architectures,
        )  # fmt: skip

    def _count(self) -> Extent:
        """Return the number of products."""
        return ONE if self.form.batch is None else self.form.batch.count

    def _conditions(self, most: int) -> tuple[Condition, ...]:
        """Return what rows and products there is room for in positions and grids."""
        rows = Condition(self.form.rows, at_most=most)
        if self.form.batch is None:
            return (rows,)
        return rows, Condition(self._count(), at_most=MAX_GRID[2])

    def _boxes(
        self,
        tensor: int,
        sizes: tuple[Extent, Extent],
        box: tuple[int, int],
        *,
        is_transposed: bool = False,
    ) -> Map:
        """Return a map of a matrix, or of many: of those one box at a time has a part."""
        signature = self.form.signature
        if is_transposed:
            sizes, box = sizes[::-1], box[::-1]
        if self.form.batch is None:
            return Map(tensor, sizes, sizes[1:], box)
        shape = (*signature.inputs, *signature.outputs)[tensor].shape
        front = product(map(extent_of, shape[:-2]))
        return Map(tensor, (front, *sizes), (sizes[0] * sizes[1], sizes[1]), (1, *box))

    def _batch_strides(self) -> tuple[tuple[int, int], ...] | None:
        """Return which tensor of x, the matrices and the operands each of many products has."""
        batch = self.form.batch
        if batch is None:
            return None
        return (*batch.strides, *[(1, 1)] * (MOST_OPERANDS + 2 - len(batch.strides)))

    def _read(self) -> tuple[Tensor, ...]:
        """Return the operands of the epilogue, and something in the place of those missing."""
        missing = MOST_OPERANDS - len(self.form.reads)
        return (*map(Tensor, self.form.reads), *[Tensor(self.form.x)] * missing)

    def _kinds(self) -> tuple[int, ...]:
        """Return how large those operands are."""
        inputs, whole = self.form.signature.inputs, self.form.signature.outputs[-1].shape
        shapes = [inputs[read].shape for read in self.form.reads]
        if self.form.batch is not None:
            # Which of them a matmul has is a further argument.
            shapes = [(*whole[:-2], *shape[-2:]) for shape in shapes]
        named = {whole: WHOLE, (*whole[:-1], 1): _COLUMN}
        kinds = [named.get(shape, _ROW) for shape in shapes]
        return (*kinds, *[_NONE] * (MOST_OPERANDS - len(kinds)))


def fits(columns: int) -> bool:
    """Say whether grids have room for this many columns."""
    return columns <= MAX_GRID[1] * PLAIN_PAIR.columns

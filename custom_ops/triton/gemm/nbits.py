"""Matmuls in half precision with weights in 4 bits and a scale for each block: MatMulNBits.

A language model's rows are a prompt or one token, of a number that is known in a run. There is a
kernel for each: small M waits for the weights to be read, and large M for the tensor cores. From
some rows on the matrix is written in half precision first, as ONNX Runtime writes it: the tensor
cores then read both operands from shared memory (`gemm_hopper_kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import (
    Call,
    Passed,
    Scratch,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.conv_half import epilogue_text, optional
from ...forms.gemm import MOST_OPERANDS, Products
from ...forms.gemm_nbits_half import NBitsHalf, read_nbits_half
from ..alignment import UNALIGNED_ARCHITECTURES
from .gemm import TiledProduct, fits
from .gemm_tiles import LARGE, MIDDLE, PROCESSORS, SHARED, WIDE, Tile

#: Weights of a group, whose words are the depth of one step of the tensor cores.
_GROUP = 64
#: From this many columns on a block of threads has 32 of them where M is small.
_WIDE = 8192
#: Positions of rows have 32 bits.
_MOST_ROWS = 2**31 - 1 - 256
#: An operand of the epilogue, as kernels take it: none, a row, as large as the result.
_NONE, _ROW, _WHOLE = range(3)
#: By rows: nanoseconds of a product, those of a weight, and of a multiply-add; of ONNX Runtime's
#: kernels, and of ours. On an H200, matrices of 4,096 x 4,096 and 4,096 x 14,336 (2026-11-28).
_ONE = (5500.0, 1.7e-4, 0.0), (4200.0, 1.65e-4, 0.0)
_FEW = (6000.0, 8.7e-4, 2.9e-6), (15_000.0, 3e-5, 3.65e-6)
_MANY = (6000.0, 8e-4, 3.1e-6), (8000.0, 7.5e-4, 3.1e-6)
#: Rows up to which weights go from registers into the tensor cores on Hopper, by columns: few or
#: from `_WIDE` on.
_MOST_PACKED, _MOST_PACKED_WIDE = 128, 512
#: Columns whose rows begin at multiples of 16 bytes.
_VECTOR = 8
#: Words of a block of threads that writes the matrix, how often it has as many, and its warps.
_WORDS, _TURNS, _WARPS = 256, 4, 8
#: Rows that take what one takes, and those for which weights are read by warps that share columns.
_ROWS_OF_ONE, _FEW_ROWS = 4, 32


@dataclass(frozen=True)
class SmallM:
    """The part of a block of threads where M is small.

    Args:
        rows: Of the result.
        columns: Of the result.
        groups: Of 64 weights of a column, in one step.
        warps: Of 32 threads.
        stages: Steps that are loaded ahead.
        most_rows: Up to which it is the fastest.
        is_late: Whether factors come after the sums of blocks.
    """

    rows: int
    columns: int
    groups: int
    warps: int
    stages: int
    most_rows: int
    is_late: bool = False


@dataclass(frozen=True)
class LargeM:
    """The same where M is large; see `SmallM`.

    Args:
        depth: Of one step.
        architectures: Those that it is made for; None for all.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    most_rows: int = _MOST_ROWS
    architectures: tuple[int, ...] | None = None


def tiles_of(block: int, columns: int, whole: int = 0) -> tuple[SmallM | LargeM | Tile, ...]:
    """Return the tiles for each range of rows, the last one for any number of them.

    A `Tile` is one of the matrix in half precision. Measured on an H200 (2026-11). The first has
    room for half as many rows where a group of 64 weights has two blocks.

    Args:
        block: Weights with one scale.
        columns: Of the result.
        whole: Additional operands of the epilogue of the result's size.
    """
    few = 8 // (2 if block < _GROUP else 1)
    most = _most_packed(columns)
    packed = [_up_to(2 * PROCESSORS, one, columns, most) for one in (_ANY, _HOPPER)]
    written = [_up_to(PROCESSORS, one, columns, _MOST_ROWS) for one in (MIDDLE, LARGE)]
    return (
        SmallM(8, 32 if columns >= _WIDE else 16, 8, 4, 3, few, is_late=True),
        SmallM(16, 64, 8, 8, 3, _FEW_ROWS),
        *_rising((*packed, replace(_LARGE_HOPPER, most_rows=most)), _FEW_ROWS),
        *_rising(written, most),
        *([] if most == _MOST_ROWS else [WIDE if whole < 2 else SHARED]),
        _ANY,
    )


def _most_packed(columns: int) -> int:
    """Return the rows up to which the matrix is not written; boxes of results are aligned."""
    if columns % _VECTOR:
        return _MOST_ROWS
    return _MOST_PACKED if columns < _WIDE else _MOST_PACKED_WIDE


def _up_to(tiles: int, tile: _Tile, columns: int, most: int) -> _Tile:
    """Return a tile for the rows of which there are no more tiles than this, and for no more."""
    width = tile.width if isinstance(tile, Tile) else tile.columns
    return replace(tile, most_rows=min(tiles // -(-columns // width) * tile.rows, most))


def _rising(tiles: Sequence[_Tile], rows: int) -> list[_Tile]:
    """Return those for more rows than what is before them, which is for `rows`."""
    found = []
    for tile in tiles:
        if (tile.most_rows or 0) > rows:
            found.append(tile)
            rows = tile.most_rows or 0
    return found


_Tile = TypeVar("_Tile", LargeM, Tile)
#: Up to two tiles a multiprocessor, and where there are more.
_ANY = LargeM(64, 64, 128, 4, 4)
_HOPPER = LargeM(128, 128, 128, 8, 3, architectures=(90,))
_LARGE_HOPPER = LargeM(256, 128, 128, 8, 3, architectures=(90,))


@dataclass(frozen=True)
class NBitsGemm:
    """A product with weights in 4 bits."""

    form: NBitsHalf

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of rows, and one for tensors that are not aligned."""
        form, rows = self.form, self.form.rows.static
        tiles = tiles_of(form.block, form.columns, self._kinds().count(_WHOLE))
        if rows is not None:
            # What is made for some architectures is followed by what is made for all.
            fitting = [one for one in tiles if one.most_rows is None or rows <= one.most_rows]
            tiles = (fitting[0], *fitting[1:][-1:])
            if isinstance(fitting[0], SmallM) or fitting[0] == fitting[-1]:
                tiles = tiles[:1]
        made = (
            self._written(one) if isinstance(one, Tile) else self._variant(one) for one in tiles
        )
        return (*made, self._unaligned())

    def estimate(self) -> tuple[float, float]:
        """Return nanoseconds of the product, ONNX Runtime's and ours."""
        of, rows = self.form, self.form.rows.at(NOMINAL_SIZE)
        weights = of.depth * of.columns
        is_few = rows <= _most_packed(of.columns)
        costs = _ONE if rows <= _ROWS_OF_ONE else _FEW if is_few else _MANY
        before, after = (
            launch + weights * (weight + rows * multiply) for launch, weight, multiply in costs
        )
        return before, after

    def _variant(self, tile: SmallM | LargeM) -> VariantSource:
        """Return the kernel for the rows that a tile is for."""
        of, rows, columns = self.form, self.form.rows, Extent(self.form.columns)
        is_small_m = isinstance(tile, SmallM)
        step = tile.groups * _GROUP if isinstance(tile, SmallM) else tile.depth
        own: tuple[Passed, ...] = (step,)
        height = tile.rows
        if isinstance(tile, SmallM):
            own = tile.groups, tile.is_late
            height = tile.rows // (2 if tile.is_late and of.block < _GROUP else 1)
        arguments: tuple[Passed, ...] = (
            *self._operands(), Size(rows), of.columns, of.depth, of.block, tile.rows, tile.columns,
            *own, tile.stages, of.depth % step == 0, self._is_bfloat(), *self._kinds(),
        )  # fmt: skip
        sides = (columns, tile.columns), (rows, height)
        grid = (*(sides if is_small_m else sides[::-1]), (ONE, 1))
        name = "nbits_small_m_kernel" if is_small_m else "nbits_large_m_kernel"
        call = Call(name, arguments, grid, tile.warps, tile.stages)
        return hand_variant(
            of.signature, [call], self._text("nbits_kernel"), self._conditions(tile.most_rows),
            architectures=tile.architectures if isinstance(tile, LargeM) else None,
        )  # fmt: skip

    def _written(self, tile: Tile) -> VariantSource:
        """Return the kernels that write the matrix and multiply, for the rows of a tile."""
        of = self.form
        arguments: tuple[Passed, ...] = (
            Tensor(of.weight), Tensor(of.scale), optional(of.zero),
            Scratch(0, of.signature.outputs[0].dtype), of.columns, of.depth, of.block, _WORDS,
            _TURNS, self._is_bfloat(),
        )  # fmt: skip
        words = Extent(of.columns * of.depth // 8)
        write = Call(
            "nbits_dequantize_kernel", arguments, ((words, _WORDS * _TURNS), (ONE, 1), (ONE, 1)),
            _WARPS, text=kernel_text("nbits_dequantize_kernel"),
        )  # fmt: skip
        product = Products(
            of.signature, of.x, None, (of.weight,), of.reads, of.epilogue, of.rows, of.depth,
            of.columns, is_transposed=True,
        )  # fmt: skip
        multiply = TiledProduct(product, scratch=0).hopper_call(tile)
        most = _MOST_ROWS if tile.most_rows is None else tile.most_rows
        return hand_variant(
            of.signature, [write, multiply], "", self._conditions(most),
            scratch=(Extent(2 * of.columns * of.depth),), architectures=TiledProduct.architectures,
        )  # fmt: skip

    def _unaligned(self) -> VariantSource:
        """Return the kernel that reads numbers one by one."""
        of, tile = self.form, LargeM(64, 64, 64, 4, 3)
        arguments: tuple[Passed, ...] = (
            *self._operands(), Size(of.rows), of.columns, of.depth, of.block,
            tile.rows, tile.columns, min(tile.depth, of.block), self._is_bfloat(), *self._kinds(),
        )  # fmt: skip
        grid = ((of.rows, tile.rows), (Extent(of.columns), tile.columns), (ONE, 1))
        call = Call("nbits_plain_kernel", arguments, grid, tile.warps, tile.stages)
        return hand_variant(
            of.signature, [call], self._text("nbits_kernel", "nbits_plain_kernel"),
            self._conditions(_MOST_ROWS), is_aligned=False, architectures=UNALIGNED_ARCHITECTURES,
        )  # fmt: skip

    def _operands(self) -> tuple[Passed, ...]:
        of = self.form
        missing = [None] * (MOST_OPERANDS - len(of.reads))
        return (
            Tensor(of.x), Tensor(of.weight), Tensor(of.scale), optional(of.zero),
            *map(Tensor, of.reads), *missing, Tensor(len(of.signature.inputs)),
        )  # fmt: skip

    def _kinds(self) -> tuple[int, ...]:
        """Return how large the operands of the epilogue are."""
        inputs, whole = self.form.signature.inputs, self.form.signature.outputs[0].shape
        kinds = [_WHOLE if inputs[one].shape == whole else _ROW for one in self.form.reads]
        return (*kinds, *[_NONE] * (MOST_OPERANDS - len(kinds)))

    def _is_bfloat(self) -> bool:
        return self.form.signature.outputs[0].dtype == "bfloat16"

    def _conditions(self, most: int) -> tuple[Condition, ...]:
        return (Condition(self.form.rows, at_most=most),)

    def _text(self, *names: str) -> str:
        text = "".join(map(kernel_text, names))
        return text + epilogue_text("epilogue", self.form.epilogue, MOST_OPERANDS + 1)


def match(signature: RegionSignature) -> NBitsGemm | Refused | None:
    """Return the region as a product with weights in 4 bits; None if it is something else.

    Refused are also zeros of one row, for which ONNX Runtime's kernel was measured to be faster.
    """
    form = read_nbits_half(signature)
    if not isinstance(form, NBitsHalf):
        return form
    rows = form.rows.static
    if form.zero is not None and (rows is None or rows == 1):
        return Refused("zeros, and rows of which there may be one")
    return NBitsGemm(form) if fits(form.columns) else Refused("a product of too many columns")


ANCHOR = Anchor("product_nbits", match, (("com.microsoft", "MatMulNBits"),), dtype="float16")
BFLOAT = replace(ANCHOR, dtype="bfloat16")

"""Matmuls in half precision with weights in 4 bits and a scale for each block: MatMulNBits.

A language model's rows are a prompt or one token, of a number that is known in a run. There is a
kernel for each: small M waits for the weights to be read, and large M for the tensor cores. From
some rows on the matrix is written in half precision first, as ONNX Runtime writes it, and cuBLAS
multiplies: it has tiles for every number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.cuda import Condition, Product
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
from ...forms.epilogue import Epilogue
from ...forms.gemm import MOST_OPERANDS, Products
from ...forms.gemm_nbits_half import Matrix, NBitsHalf, read_nbits_half
from ..alignment import UNALIGNED_ARCHITECTURES
from .gemm import TiledProduct, fits
from .gemm_tiles import PROCESSORS
from .gemm_tiles import tiles_of as tiles_of_rows
from .nbits_row import one_row, takes_one_row
from .norm_rows import MOST_DEPTH, NormedRows

#: Weights of a group, whose words are the depth of one step of the tensor cores.
_GROUP = 64
#: From this many columns on a block of threads has 32 of them where M is small.
_WIDE = 8192
#: Elements of half precision of which rows begin where copies of boxes may.
_VECTOR = 8
#: Positions of rows have 32 bits.
_MOST_ROWS = 2**31 - 1 - 256
#: An operand of the epilogue, as kernels take it: none, a row, as large as the result.
_NONE, _ROW, _WHOLE = range(3)
#: By rows: nanoseconds of a product, those of a weight, and of a multiply-add; of ONNX Runtime's
#: kernels, and of ours. On an H200, matrices of 4,096 x 4,096 and 4,096 x 14,336 (2026-11-28).
_ONE = (5500.0, 1.7e-4, 0.0), (4200.0, 1.65e-4, 0.0)
_FEW = (6000.0, 8.7e-4, 2.9e-6), (15_000.0, 3e-5, 3.65e-6)
_MANY = (6000.0, 8e-4, 3.1e-6), (8000.0, 7.5e-4, 3.1e-6)
#: Rows up to which weights go from registers into the tensor cores, columns from which on they do
#: where tiles are whole (from `_WIDE` on in any case), and those for which one row is fast enough.
_MOST_PACKED, _LEAST_PACKED, _LEAST_OF_ONE = 128, 4096, 2048
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
        is_whole: Whether it is for whole tiles only: a mask of rows takes a tenth of its time.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    most_rows: int = _MOST_ROWS
    architectures: tuple[int, ...] | None = None
    is_whole: bool = False


@dataclass(frozen=True)
class Written:
    """The product with a matrix that is written first; see `SmallM`."""

    most_rows: int = _MOST_ROWS


_Tile = SmallM | LargeM | Written


def tiles_of(block: int, columns: int) -> tuple[_Tile, ...]:
    """Return the tiles for each range of rows, the last one for any number of them.

    Measured on an H200 (2026-11). The first has room for half as many rows where a group of 64
    weights has two blocks.
    """
    few = 8 // (2 if block < _GROUP else 1)
    packed: list[LargeM] = []
    if columns >= _LEAST_PACKED:
        # No more tiles than two a multiprocessor.
        small = min(2 * PROCESSORS // -(-columns // _ANY.columns) * _ANY.rows, _MOST_PACKED)
        packed = [replace(_ANY, most_rows=small, is_whole=True)] if small > _FEW_ROWS else []
    if columns >= _WIDE:
        packed += [replace(large_m, is_whole=False) for large_m in packed]
        packed += [_HOPPER, _ANY]
    return (
        SmallM(8, 32 if columns >= _WIDE else 16, 8, 4, 3, few, is_late=True),
        SmallM(16, 64, 8, 8, 3, _FEW_ROWS),
        *packed,
        Written(),
    )


#: Up to two tiles a multiprocessor, and where there are more.
_ANY = LargeM(64, 64, 128, 4, 4, _MOST_PACKED)
_HOPPER = LargeM(128, 128, 128, 8, 3, _MOST_PACKED, architectures=(90,))
#: Without tiles of its own: the matrix as `gemm_kernel` has it, and what follows.
_PLAIN, _AFTER = (64, 128, 32, 3), (8, 256)


@dataclass(frozen=True)
class _Factor:
    """One of the products of a region, and what is computed with its result.

    Args:
        matrix: Its own.
        reads: Operands of the epilogue, and None for those that are missing.
        kinds: How large they are.
        epilogue: What is behind it.
        y: The result.
    """

    matrix: Matrix
    reads: tuple[Passed, ...]
    kinds: tuple[int, ...]
    epilogue: Epilogue
    y: Tensor | Scratch

    def text(self, *names: str) -> str:
        """Return the kernels of these names, with the epilogue."""
        text = "".join(map(kernel_text, names))
        return text + epilogue_text("epilogue", self.epilogue, MOST_OPERANDS + 1)


@dataclass(frozen=True)
class NBitsGemm:
    """Products with weights in 4 bits, one or a gated pair.

    One row of a pair has one launch. With more rows the second product is computed alone, and the
    first one reads it as an operand of the epilogue.
    """

    form: NBitsHalf

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of rows, and one for tensors that are not aligned."""
        tiles, rows = tiles_of(self.form.block, self.form.columns), self.form.rows.static
        first = (one_row(self.form),) if takes_one_row(self.form) else ()
        if rows is not None:
            # What is made for some architectures is followed by what is made for all.
            fitting = self._fitting(rows)
            is_for_all = not isinstance(fitting[0], LargeM) or fitting[0].architectures is None
            tiles = () if first else tuple(fitting[: 1 if is_for_all else 2])
        made = list[VariantSource]()
        for tile in tiles:
            if isinstance(tile, Written):
                made += [*self._pairs(), self._written()]
            else:
                made.append(self._variant(tile))
        return (*first, *made, self._unaligned())

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of the products, ONNX Runtime's and ours."""
        del level
        of, rows = self.form, self.form.rows.at(NOMINAL_SIZE)
        weights = of.depth * of.columns
        is_written = isinstance(self._fitting(rows)[0], Written)
        costs = _ONE if rows <= _ROWS_OF_ONE else _MANY if is_written else _FEW
        before, after = (
            len(of.matrices) * (launch + weights * (weight + rows * multiply))
            for launch, weight, multiply in costs
        )
        return before, after

    def _fitting(self, rows: int) -> list[_Tile]:
        """Return the tiles that take a number of rows, the first of which is used."""
        return [
            tile
            for tile in tiles_of(self.form.block, self.form.columns)
            if rows <= tile.most_rows
            and not (isinstance(tile, LargeM) and tile.is_whole and rows % tile.rows)
        ]

    def _factors(self, first: int = 0) -> list[_Factor]:
        """Return the products in the order in which they are computed.

        Args:
            first: The block of scratch memory that the second product goes to.
        """
        of = self.form
        inputs, whole = of.signature.inputs, of.signature.outputs[-1].shape
        reads: list[Passed] = [*map(Tensor, of.reads)]
        kinds = [_WHOLE if inputs[read].shape == whole else _ROW for read in of.reads]
        factors: list[_Factor] = []
        missing = (None,) * MOST_OPERANDS, (_NONE,) * MOST_OPERANDS
        for matrix in of.matrices[1:]:
            scratch = Scratch(first, of.signature.outputs[-1].dtype)
            factors.append(_Factor(matrix, *missing, Epilogue((), ()), scratch))
            reads, kinds = [scratch, *reads], [_WHOLE, *kinds]
        count = MOST_OPERANDS - len(reads)
        return [
            *factors,
            _Factor(
                of.matrices[0], (*reads, *missing[0][:count]), (*kinds, *missing[1][:count]),
                of.epilogue, Tensor(of.y),
            ),
        ]  # fmt: skip

    def _scratch(self) -> tuple[Extent, ...]:
        """Return the bytes of the product that another one reads, and of normed rows, if any."""
        of = self.form
        between = (of.rows * Extent(2 * of.columns),) * (len(of.matrices) - 1)
        return *between, *self._normed().blocks()

    def _normed(self, first: int = 0) -> NormedRows:
        """Return the rows that more than one is read from.

        Args:
            first: Blocks of scratch memory before those of `_scratch`.
        """
        of = self.form
        behind = first + len(of.matrices) - 1
        return NormedRows(of.signature, of.made_of, of.rows, of.depth, behind)

    def _variant(self, tile: SmallM | LargeM) -> VariantSource:
        """Return the kernel for the rows that a tile is for."""
        of, rows, columns = self.form, self.form.rows, Extent(self.form.columns)
        is_small_m = isinstance(tile, SmallM)
        step = tile.groups * _GROUP if isinstance(tile, SmallM) else tile.depth
        own: tuple[Passed, ...] = (step,)
        height, divisor = tile.rows, 1
        if isinstance(tile, LargeM):
            own = step, tile.is_whole
            divisor = tile.rows if tile.is_whole else 1
        else:
            own = tile.groups, tile.is_late
            height = tile.rows // (2 if tile.is_late and of.block < _GROUP else 1)
        sides = (columns, tile.columns), (rows, height)
        grid = (*(sides if is_small_m else sides[::-1]), (ONE, 1))
        name = "nbits_small_m_kernel" if is_small_m else "nbits_large_m_kernel"
        calls = [
            Call(
                name,
                (
                    *self._operands(one), Size(rows), of.columns, of.depth, of.block, tile.rows,
                    tile.columns, *own, tile.stages, of.depth % step == 0, self._is_bfloat(),
                    *one.kinds,
                ),
                grid, tile.warps, tile.stages, text=one.text("nbits_kernel"),
            )
            for one in self._factors()
        ]  # fmt: skip
        return hand_variant(
            of.signature, [*self._normed().launches(), *calls], "",
            self._conditions(tile.most_rows, divisor),
            scratch=self._scratch(),
            architectures=tile.architectures if isinstance(tile, LargeM) else None,
        )  # fmt: skip

    def _written(self) -> VariantSource:
        """Return the launches that write a matrix, multiply, and do what follows in place."""
        of = self.form
        calls = [call for one in self._factors(1) for call in self._written_calls(one)]
        return hand_variant(
            of.signature, [*self._normed(1).launches(), *calls], "",
            self._conditions(_MOST_ROWS),
            scratch=(Extent(2 * of.columns * of.depth), *self._scratch()),
        )  # fmt: skip

    def _pairs(self) -> Iterator[VariantSource]:
        """Yield the launches that write both matrices, and then compute the pair in one kernel."""
        of = self.form
        dtype = of.signature.outputs[-1].dtype
        # Boxes of scratch memory are of the first tensor's type.
        if of.signature.inputs[0].dtype != dtype or of.columns % _VECTOR:
            return
        if len(of.matrices) == 1:
            return
        normed = NormedRows(of.signature, of.made_of, of.rows, of.depth)
        first = len(normed.blocks())
        weights = tuple(-1 - first - n for n in range(len(of.matrices)))
        form = Products(
            of.signature, of.made_of.x, of.made_of.norm, weights, of.reads, of.epilogue, of.rows,
            of.depth, of.columns, is_transposed=True, sum_of=of.made_of,
        )  # fmt: skip
        writes = [
            self._write(matrix, Scratch(first + n, dtype)) for n, matrix in enumerate(of.matrices)
        ]
        matrices = (Extent(2 * of.columns * of.depth),) * len(of.matrices)
        for tile in tiles_of_rows(of.rows.static, of.columns, len(of.matrices), 0, of.depth):
            most = _MOST_ROWS if tile.most_rows is None else tile.most_rows
            yield hand_variant(
                of.signature, [*writes, *normed.launches(), TiledProduct(form).call(tile)], "",
                self._conditions(most), scratch=(*normed.blocks(), *matrices),
                architectures=TiledProduct.architectures, is_optional=True,
            )  # fmt: skip

    def _write(self, matrix: Matrix, to: Scratch) -> Call:
        """Return the launch that writes a matrix in half precision."""
        of = self.form
        words = Extent(of.columns * of.depth // 8)
        return Call(
            "nbits_dequantize_kernel",
            (
                Tensor(matrix.weight), Tensor(matrix.scale), optional(matrix.zero), to,
                of.columns, of.depth, of.block, _WORDS, _TURNS, self._is_bfloat(),
            ),
            ((words, _WORDS * _TURNS), (ONE, 1), (ONE, 1)), _WARPS,
            text=kernel_text("nbits_dequantize_kernel"),
        )  # fmt: skip

    def _written_calls(self, one: _Factor) -> list[Call]:
        of = self.form
        matrix = Scratch(0, of.signature.outputs[-1].dtype)
        write = self._write(one.matrix, matrix)
        rows, columns, depth, stages = _PLAIN
        x = self._normed(1)
        nothing: tuple[Passed, ...] = (x.passed,) * MOST_OPERANDS
        y = one.y.index if isinstance(one.y, Tensor) else -1 - one.y.index
        multiply = Call(
            "gemm_kernel",
            (
                x.passed, matrix, matrix, *nothing, one.y, Size(of.rows), of.columns, of.depth,
                rows, columns, depth, True, False, False, *[_NONE] * MOST_OPERANDS, None,
            ),
            ((of.rows, rows), (Extent(of.columns), columns), (ONE, 1)), 4, stages,
            text=kernel_text("gemm_kernel")
            + epilogue_text("epilogue", Epilogue((), ()), MOST_OPERANDS + 1),
            product=Product(x.place, -1, y, of.rows, of.columns, of.depth),
        )  # fmt: skip
        rows, columns = _AFTER
        finish = Call(
            "nbits_epilogue_kernel",
            (*one.reads, one.y, Size(of.rows), of.columns, rows, columns, *one.kinds),
            ((of.rows, rows), (Extent(of.columns), columns), (ONE, 1)), 4,
            text=one.text("nbits_kernel", "nbits_epilogue_kernel"),
        )  # fmt: skip
        return [write, multiply, *([finish] if one.epilogue.steps else [])]

    def _unaligned(self) -> VariantSource:
        """Return the kernel that reads numbers one by one."""
        of, tile = self.form, LargeM(64, 64, 64, 4, 3)
        grid = ((of.rows, tile.rows), (Extent(of.columns), tile.columns), (ONE, 1))
        calls = [
            Call(
                "nbits_plain_kernel",
                (
                    *self._operands(one), Size(of.rows), of.columns, of.depth, of.block, tile.rows,
                    tile.columns, min(tile.depth, of.block), self._is_bfloat(), *one.kinds,
                ),
                grid, tile.warps, tile.stages, text=one.text("nbits_kernel", "nbits_plain_kernel"),
            )
            for one in self._factors()
        ]  # fmt: skip
        return hand_variant(
            of.signature, [*self._normed().launches(), *calls], "",
            self._conditions(_MOST_ROWS), is_aligned=False, scratch=self._scratch(),
            architectures=UNALIGNED_ARCHITECTURES,
        )  # fmt: skip

    def _matrix(self, one: _Factor) -> tuple[Passed, ...]:
        matrix = one.matrix
        return Tensor(matrix.weight), Tensor(matrix.scale), optional(matrix.zero)

    def _operands(self, one: _Factor) -> tuple[Passed, ...]:
        return self._normed().passed, *self._matrix(one), *one.reads, one.y

    def _is_bfloat(self) -> bool:
        return self.form.signature.outputs[-1].dtype == "bfloat16"

    def _conditions(self, most: int, divisor: int = 1) -> tuple[Condition, ...]:
        return (Condition(self.form.rows, divisor, most),)


def match(signature: RegionSignature) -> NBitsGemm | Refused | None:
    """Return the region as a product with weights in 4 bits; None if it is something else.

    Refused is also what ONNX Runtime's kernel was measured to be faster for: one row, or rows of
    which there may be one, with zeros or few columns.
    """
    form = read_nbits_half(signature)
    if not isinstance(form, NBitsHalf):
        return form
    rows = form.rows.static
    is_slow = not takes_one_row(form) and (rows is None or rows == 1)
    if is_slow and form.has_zeros:
        return Refused("zeros, and rows of which there may be one")
    if is_slow and form.columns < _LEAST_OF_ONE:
        return Refused("few columns, and rows of which there may be one")
    if form.made_of.norm is not None and (not takes_one_row(form) or form.depth > MOST_DEPTH):
        return Refused("a norm before products of which none has one row")
    if form.made_of.norm is not None and rows not in (None, 1):
        return Refused("a norm before products of more rows than one")
    return NBitsGemm(form) if fits(form.columns) else Refused("a product of too many columns")


ANCHOR = Anchor(
    "product_nbits", match, (("com.microsoft", "MatMulNBits"),), dtype="float16", weight="uint8",
    regions="ortkit.fusion.gemm.cuda_nbits:products",
)  # fmt: skip
BFLOAT = replace(ANCHOR, dtype="bfloat16")

"""Products of a language model's rows and a matrix: a prompt or one token, known in a run.

One row has the kernel of `gemv`, which reads the matrix from memory at more than cuBLAS does. More
rows are multiplied by cuBLAS, as ONNX Runtime multiplies them.

One row on an H200, float16, in CUDA graphs, matrices of 300 MB in rotation (2026-11-29), us:

| columns x depth | cuBLAS | ours |
| --- | ---: | ---: |
| 2,048 x 2,048 | 5.9 | 4.0 |
| 3,072 x 2,048 | 6.0 | 4.5 |
| 2,048 x 8,192 | 13.3 | 10.7 |
| 4,096 x 4,096 | 12.7 | 9.5 |
| 6,144 x 4,096 | 16.3 | 13.3 |
| 4,096 x 14,336 | 30.8 | 30.3 |
| 32,000 x 2,048 | 33.2 | 30.7 |
"""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.anchor import ProductSizes
from ortkit.kernels.cuda import Condition, Product
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.conv_half import epilogue_text
from ...forms.epilogue import Epilogue
from ...forms.gemm import MOST_OPERANDS, Products
from ..alignment import UNALIGNED_ARCHITECTURES
from ..conv.conv_tiles import power
from .gemm_cost import Times
from .norm_rows import NormedRows

#: Any depth.
_ANY = 2**31
#: Of one row, by the depth of a matrix up to which it is so: columns of a block, depth of a step,
#: and warps. On an H200 layers of 2,048 with 8,192 inside, and of 4,096 with 14,336, take 33.6 and
#: 102.7 us with norms within, 35.1 and 104.5 with launches for them. With one column a block, and
#: two of a pair, it is 37.1 and 107.4. Of 4 to 8 strips for each product.
_ONE = ((2048, (1, 2048, 4)), (4096, (4, 1024, 4)), (_ANY, (4, 2048, 4)))
_PAIR = ((2048, (2, 2048, 4)), (4096, (2, 4096, 8)), (_ANY, (2, 1024, 4)))
#: The same with a norm within, which each block computes, and the depth up to which it does.
_NORMED = ((2048, (4, 2048, 4)), (_ANY, (4, 1024, 4)))
_NORMED_PAIR = ((2048, (2, 2048, 4)), (_ANY, (2, 4096, 8)))
_MOST_WITHIN = 4096
#: Blocks of threads that a launch has at least, unless each has one column.
_LEAST_BLOCKS = 256
#: Positions of rows have 32 bits.
_MOST_ROWS = 2**31 - 1 - 256
#: Without cuBLAS: tiles of the product, and the stages of their loop; what follows it.
_TILE, _STAGES, _AFTER = (64, 128, 32), 3, (8, 256)
#: An operand of the epilogue, as kernels have it: none, or a row.
_NONE, _ROW = range(2)
#: Nanoseconds of a product, cuBLAS's and ours, and bytes of the matrix per nanosecond. Ours takes
#: 2,200 alone; in a decoder it begins before the launch before it has ended.
_THEIRS_NS, _OURS_NS, _BYTES_PER_NS = 4800.0, 1200.0, 4500.0
#: Columns of which depth on blocks have too little to read: 8,192 x 2,048 takes 11.6, cuBLAS 10.5.
_WIDE = 4
_HALF_BYTES = 2


@dataclass(frozen=True)
class TokenProduct:
    """One product of rows, of which there may be one, with rows added behind."""

    form: Products

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the launch of one row, those of more, and that of tensors at any address."""
        return one_row(self.form), self._prompt(), self._unaligned()

    def _normed(self) -> NormedRows:
        """Return the rows that more than one is read from."""
        form = self.form
        return NormedRows(form.signature, form.made_of, form.rows, form.depth)

    def _prompt(self) -> VariantSource:
        form = self.form
        product = Product(
            self._normed().place, form.weights[0], self._y().index, form.rows, form.columns,
            form.depth,
        )  # fmt: skip
        rows, columns = _AFTER
        finish = Call(
            "nbits_epilogue_kernel",
            (*self._reads(), self._y(), Size(form.rows), form.columns, rows, columns,
             *self._kinds()),
            ((form.rows, rows), (Extent(form.columns), columns), (ONE, 1)), 4,
            text=self._text("nbits_kernel", "nbits_epilogue_kernel"),
        )  # fmt: skip
        calls = [
            *self._normed().launches(), self._tiled(product),
            *([finish] if form.epilogue.steps else []),
        ]  # fmt: skip
        return hand_variant(
            form.signature, calls, "", self._conditions(), scratch=self._normed().blocks()
        )

    def _unaligned(self) -> VariantSource:
        return hand_variant(
            self.form.signature, [*self._normed().launches(), self._tiled(None)], "",
            self._conditions(), is_aligned=False, scratch=self._normed().blocks(),
            architectures=UNALIGNED_ARCHITECTURES,
        )  # fmt: skip

    def _tiled(self, product: Product | None) -> Call:
        """Return the launch of a product that cuBLAS computes where there is one, or of all."""
        form, weight = self.form, Tensor(self.form.weights[0])
        rows, columns, _ = _TILE
        epilogue = form.epilogue if product is None else Epilogue((), ())
        x = self._normed().passed
        reads = [x if read is None else read for read in self._reads()]
        kinds = self._kinds() if product is None else (_NONE,) * MOST_OPERANDS
        arguments: tuple[Passed, ...] = (
            x, weight, weight, *reads, self._y(), Size(form.rows), form.columns,
            form.depth, *_TILE, True, False, False, *kinds, None,
        )  # fmt: skip
        return Call(
            "gemm_kernel", arguments,
            ((form.rows, rows), (Extent(form.columns), columns), (ONE, 1)), 4, _STAGES,
            text=kernel_text("gemm_kernel")
            + epilogue_text("epilogue", epilogue, MOST_OPERANDS + 1),
            product=product,
        )  # fmt: skip

    def _y(self) -> Tensor:
        return Tensor(self.form.y)

    def _reads(self) -> tuple[Passed, ...]:
        """Return the operands of the epilogue, and None for those that are missing."""
        return _reads(self.form)

    def _kinds(self) -> tuple[int, ...]:
        """Return how large these operands are."""
        count = len(self.form.reads)
        return (*[_ROW] * count, *[_NONE] * (MOST_OPERANDS - count))

    def _conditions(self) -> tuple[Condition, ...]:
        return (Condition(self.form.rows, at_most=_MOST_ROWS),)

    def _text(self, *names: str) -> str:
        return _text(self.form, *names)


def one_row(form: Products, architectures: tuple[int, ...] | None = None) -> VariantSource:
    """Return the launches of one row, or of none; see `gemv`.

    Args:
        form: Products of rows, of which there may be one, and matrices [columns, depth].
        architectures: Those that it is made for; None for all.
    """
    is_pair = len(form.weights) > 1
    rows = NormedRows(
        form.signature, form.made_of, form.rows, form.depth, is_within=form.depth <= _MOST_WITHIN
    )
    columns, depth, warps = _strip(form)
    arguments: tuple[Passed, ...] = (
        *rows.of_one(), Tensor(form.weights[0]), Tensor(form.weights[-1]), *_reads(form),
        Tensor(form.y), form.columns, form.depth, *rows.constants(), columns, depth, depth,
        is_pair,
    )  # fmt: skip
    grid = ((form.rows * Extent(form.columns), columns), (ONE, 1), (ONE, 1))
    call = Call("gemv_kernel", arguments, grid, warps, stages=1, has_early_start=True)
    one = (Condition(form.rows, at_most=1),)
    return hand_variant(
        form.signature, [*rows.before_one(), call], _text(form, "gemv_kernel"), one,
        scratch=rows.blocks_of_one(), architectures=architectures,
    )  # fmt: skip


def _strip(form: Products) -> tuple[int, int, int]:
    """Return columns of a block, depth of a step, and warps."""
    is_pair = len(form.weights) > 1
    is_normed = form.norm is not None and form.depth <= _MOST_WITHIN
    single, pair = (_NORMED, _NORMED_PAIR) if is_normed else (_ONE, _PAIR)
    strips = pair if is_pair else single
    columns, depth, warps = next(strip for most, strip in strips if form.depth <= most)
    while columns > 1 and form.columns < columns * _LEAST_BLOCKS:
        columns //= 2
    return columns, min(depth, power(form.depth)), warps


def _reads(form: Products) -> tuple[Passed, ...]:
    return (*map(Tensor, form.reads), *[None] * (MOST_OPERANDS - len(form.reads)))


def _text(form: Products, *names: str) -> str:
    text = "".join(map(kernel_text, names))
    return text + epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)


def is_of_tokens(form: Products) -> bool:
    """Say whether products are one of a number of rows that is not known, with rows added."""
    if form.rows.static is not None or form.batch is not None:
        return False
    if len(form.weights) > 1 or not form.is_transposed or form.is_lhs_transposed:
        return False
    inputs = form.signature.inputs
    are_rows = all(inputs[read].shape[:-1] in ((), (1,), (1, 1)) for read in form.reads)
    return are_rows and all(step.op_type == "Add" for step in form.epilogue.steps)


def token_ns(sizes: ProductSizes) -> Times | None:
    """Return the times of one row by a matrix; None for what there is no such kernel for."""
    if sizes.products > 1 or sizes.is_normed or sizes.epilogue_ops > sizes.biases:
        return None
    if sizes.columns >= _WIDE * sizes.depth:
        return None
    read = _HALF_BYTES * float(sizes.depth * sizes.columns) / _BYTES_PER_NS
    return _THEIRS_NS + read, _OURS_NS + read

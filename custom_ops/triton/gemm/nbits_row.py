"""One row by matrices with weights in 4 bits: a token of a language model.

On an H200, float16, blocks of 32, chains of early launches in CUDA graphs, matrices of 400 MB in
rotation (2026-11-29), us. In brackets are launches that begin after each other:

| columns x depth | us | bytes/ns |
| --- | ---: | ---: |
| 2,048 x 2,048 | 2.6 (3.0) | 920 |
| 3,072 x 2,048 | 2.8 (3.3) | 1,250 |
| 2,048 x 8,192 | 4.5 (5.4) | 2,080 |
| 4,096 x 4,096 | 4.4 (5.1) | 2,140 |
| 6,144 x 4,096 | 6.5 (6.4) | 2,180 |
| 4,096 x 14,336 | 11.5 (13.0) | 2,880 |
| 2 of 8,192 x 2,048 | 7.8 (8.9) | 2,430 |
| 2 of 14,336 x 4,096 | 21.4 (21.1) | 3,090 |
| 32,000 x 2,048 | 12.8 (12.9) | 2,880 |
| 32,000 x 4,096 | 23.1 (22.9) | 3,190 |

A norm of the row is a launch before. With the norm within each block a layer of products of 2,048
takes 22.0 in such a chain, and 19.8 so; of 4,096 it is 50.5 and 47.6. Pairs of deep matrices
have 8 columns: 47.1.
"""

from __future__ import annotations

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Passed, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.conv_half import epilogue_text, optional
from ...forms.gemm import MOST_OPERANDS
from ...forms.gemm_nbits_half import NBitsHalf
from ..conv.conv_tiles import power
from .norm_rows import NormedRows

#: Weights of a chunk, which a thread has of each column; threads of a warp.
_CHUNK, _WARP = 32, 32
#: Most warps of a block of threads.
_MOST_WARPS = 4
#: Columns of each matrix that a block of threads has: few, and many.
_FEW, _MANY = 4, 8
#: Columns from which on they are many, and where the matrix has to be deep in addition: so that
#: there are enough blocks, and enough to do in each.
_WIDE, _WIDE_IF_DEEP, _DEEP = 16_384, 4096, 2048
#: A depth that twice as many warps read in one step: 2,048 columns take 0.4 us less so.
_IN_ONE_STEP = 2 * _MOST_WARPS * _CHUNK * _WARP


def takes_one_row(form: NBitsHalf) -> bool:
    """Say whether there is such a kernel: numbers of bfloat16 are too large for its factors."""
    return form.signature.outputs[-1].dtype == "float16" and form.rows.factor <= 1


def one_row(form: NBitsHalf) -> VariantSource:
    """Return the launches of one row, or of none."""
    is_pair = len(form.matrices) > 1
    rows = NormedRows(form.signature, form.made_of, form.rows, form.depth)
    is_deep = form.depth > _DEEP
    is_wide = form.columns >= (_WIDE_IF_DEEP if is_deep else _WIDE)
    columns = _MANY if is_wide and (is_deep or not is_pair) else _FEW
    warps = min(_MOST_WARPS, power(-(-form.depth // (_CHUNK * _WARP))))
    if form.depth == _IN_ONE_STEP and not is_pair:
        columns, warps = _MANY, 2 * _MOST_WARPS
    matrices = [
        item
        for matrix in form.matrices
        for item in (Tensor(matrix.weight), Tensor(matrix.scale), optional(matrix.zero))
    ]
    reads = [*map(Tensor, form.reads), *[None] * (MOST_OPERANDS - len(form.reads))]
    arguments: tuple[Passed, ...] = (
        rows.passed, *matrices, *([] if is_pair else [None] * 3), *reads,
        Tensor(form.y), form.columns, form.depth, form.block,
        columns, warps * _WARP, is_pair,
    )  # fmt: skip
    grid = ((form.rows * Extent(form.columns), columns), (ONE, 1), (ONE, 1))
    call = Call("nbits_row_kernel", arguments, grid, warps, stages=1, has_early_start=True)
    text = kernel_text("nbits_row_kernel")
    text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)
    return hand_variant(
        form.signature, [*rows.launches(), call], text, (Condition(form.rows, at_most=1),),
        scratch=rows.blocks(),
    )  # fmt: skip

"""Matmuls with constant weights; a GEMV is as fast as its weights are read.

Measured on an H100 in microseconds: float16, in CUDA graphs, matrices of 80 MB in rotation so that
they come from memory (2026-11-22). Torch's product alone, with one kernel for the norm and one for
the epilogue, and ours, of [depth, columns]:

| | product | with norm and epilogue | ours |
| --- | ---: | ---: | ---: |
| 768 x 2,304, norm | 4.4 | 6.0 | 3.8 |
| 2,048 x 2,048, residual | 6.4 | 7.9 | 5.3 |
| 3,072 x 768, residual | 6.6 | 7.6 | 4.4 |
| 2,048 x 3,072, norm | 7.6 | 9.1 | 7.2 |
| 5,632 x 2,048, residual | 12.4 | 13.5 | 10.8 |
| 2,048 x 2 * 5,632, norm, gated | 18.1 | 21.7 | 18.5 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.cuda import MAX_GRID
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Passed, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS
from ortkit.refusal import Refused

from ...forms.conv_half import epilogue_text, optional
from ...forms.gemm import MOST_OPERANDS, Products, read_products
from ..alignment import for_any_alignment
from .gemm import TiledProduct, fits
from .gemm_cost import Times, batched_ns, merged_ns, tiled_ns
from .gemv_tiles import Strip, strip_of
from .norm_rows import MOST_DEPTH
from .token import TokenProduct, is_of_tokens, token_ns

# Time of a launch in ns, and bytes of the weight per ns; time of a norm prologue in ns.
_THEIRS, _OURS, _NORM_NS = (3400.0, 3000.0), (2300.0, 2850.0), 300.0
_HALF = 2


@dataclass(frozen=True)
class RowProduct:
    """GEMV: matmuls with M = 1."""

    form: Products
    #: What it is made for; None for all GPUs.
    architectures: ClassVar[tuple[int, ...] | None] = None

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel, and one for unaligned tensors."""
        call, text = self.call()
        only = self.architectures
        return for_any_alignment(self.form.signature, (call,), text, architectures=only)

    def strip(self) -> Strip:
        """Return the part of one block."""
        return strip_of(self.form)

    def operands(self) -> tuple[Passed, ...]:
        """Return the rows, their norm, and the weights, as arguments of a kernel."""
        form, norm = self.form, self.form.norm
        return (
            Tensor(form.x),
            None if norm is None else Tensor(norm.scale),
            optional(None if norm is None else norm.shift),
            Tensor(form.weights[0]), Tensor(form.weights[-1]),
        )  # fmt: skip

    def call(self) -> tuple[Call, str]:
        """Return the launch and its module."""
        form, norm, strip = self.form, self.form.norm, self.strip()
        missing = [None] * (MOST_OPERANDS - len(form.reads))
        x, scale, shift, *matrices = self.operands()
        arguments: tuple[Passed, ...] = (
            x, None, None, scale, shift, None, *matrices, *map(Tensor, form.reads), *missing,
            Tensor(form.y),
            form.columns, form.depth, 0.0 if norm is None else norm.epsilon,
            norm is not None and norm.is_centred,
            strip.columns, strip.depth, strip.statistics, len(form.weights) > 1,
        )  # fmt: skip
        grid = ((Extent(form.columns), strip.columns), (ONE, 1), (ONE, 1))
        call = Call(
            "gemv_kernel", arguments, grid, strip.warps, stages=1, has_early_start=True
        )  # fmt: skip
        text = kernel_text("gemv_kernel")
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)
        return call, text


def match(
    signature: RegionSignature,
) -> RowProduct | TokenProduct | TiledProduct | Refused | None:
    """Return the region as products of rows and matrices; None if it is something else."""
    found = read_products(signature)
    if found is None or isinstance(found, Refused):
        return found
    made_of = found.made_of
    if found.rows == ONE and found.batch is None:
        if made_of.skip is not None or made_of.added is not None or made_of.total is not None:
            return Refused("one row, and a sum before its norm")
        return (
            RowProduct(found) if found.is_transposed else Refused("one row, and a matrix of rows")
        )
    if found.norm is not None and (found.rows.static is not None or not found.is_transposed):
        return Refused("a norm prologue of matmuls with more than one row")
    if found.norm is not None and found.depth > MOST_DEPTH:
        return Refused("a norm of too many elements before matmuls")
    count = 1 if found.batch is None else found.batch.count.static or 1
    if not fits(found.columns) or count > MAX_GRID[2]:
        return Refused("products of too many columns, or too many products")
    return TokenProduct(found) if is_of_tokens(found) else TiledProduct(found)


def estimate(_: str, sizes: ProductSizes) -> Times | None:
    """Return the times of products of rows and constant matrices; see `Anchor`."""
    if sizes.is_token and (found := token_ns(sizes)) is not None:
        return found
    found = _row_ns(sizes) if sizes.rows == 1 else tiled_ns(sizes)
    return (merged_ns(sizes), found[1]) if found is not None and sizes.is_merged else found


def _row_ns(sizes: ProductSizes) -> Times:
    moved = float(_HALF * sizes.depth * sizes.columns * sizes.products)
    before = sizes.products * _THEIRS[0] + moved / _THEIRS[1]
    before += (bool(sizes.epilogue_ops) + sizes.is_normed) * LAUNCH_NS
    return before, _OURS[0] + moved / _OURS[1] + sizes.is_normed * _NORM_NS


ANCHOR = Anchor("product", regions="ortkit.fusion.gemm.cuda:products", estimate=estimate)
#: Of factors that are no constant matrix, or one for each of the leading dims.
BATCHED = Anchor(
    "product", regions="ortkit.fusion.gemm.cuda_batched:products",
    estimate=lambda _, sizes: batched_ns(sizes),
)  # fmt: skip

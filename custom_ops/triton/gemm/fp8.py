"""Matmuls with fp8 weights: GEMV, small M, and large M in fp8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS, SMALL_M_MAX, fp8_ns, half_ns, rounding_ns
from ortkit.refusal import Refused

from ...forms.conv_half import epilogue_text
from ...forms.gemm import MOST_OPERANDS
from ...forms.gemm_fp8 import is_narrow, read_fp8
from ..conv.conv_tiles import power
from .gemm import WHOLE, TiledProduct, fits
from .gemm_tiles import SHARED, Tile, tiles_of
from .gemv import RowProduct
from .gemv_tiles import Strip

#: Steps of twice as many numbers as in half precision are as many bytes.
_TIMES = 2
#: Elements of the rows' statistics.
_STATISTICS = 256
#: Up to this N a block of a GEMV has two columns.
_NARROW = 2560
#: What rows may be that are not known.
_ROWS = (128, 512, 2048, 8192)


@dataclass(frozen=True)
class _Fp8Rows(RowProduct):
    """Few rows and fp8 weights."""

    #: What converts such numbers.
    architectures: ClassVar[tuple[int, ...]] = (89, 90, 100, 103, 120)

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel, and one for unaligned tensors."""
        call, text = self.call()
        return tuple(
            hand_variant(
                self.form.signature, (call,), text, is_aligned=is_aligned,
                architectures=self.architectures,
            )
            for is_aligned in (True, False)
        )  # fmt: skip


@dataclass(frozen=True)
class Fp8Gemv(_Fp8Rows):
    """GEMV with fp8 weights."""

    def strip(self) -> Strip:
        """Return the part of one block, as measured on an H100 (2026-11)."""
        is_narrow = len(self.form.weights) == 1 and self.form.columns <= _NARROW
        columns, depth = (2, 1024) if is_narrow else (4, 512)
        return replace(super().strip(), columns=columns, depth=min(depth, power(self.form.depth)))


@dataclass(frozen=True)
class SmallMFp8Gemm(_Fp8Rows):
    """Small-M matmuls (M up to 16) with fp8 weights."""

    def tile(self) -> SmallMTile:
        """Return the part of one block."""
        rows = self.form.rows.static
        return SmallMTile(8 if rows is not None and rows <= 8 else SMALL_M_MAX, 16, 128, 4, 3)

    def call(self) -> tuple[Call, str]:
        """Return the launch and its module."""
        form, norm, tile = self.form, self.form.norm, self.tile()
        missing = MOST_OPERANDS - len(form.reads)
        inputs, output = form.signature.inputs, form.signature.outputs[0]
        is_whole = [inputs[one].shape == output.shape for one in form.reads]
        arguments: tuple[Passed, ...] = (
            *self.operands(), *map(Tensor, form.reads), *[None] * missing, Tensor(len(inputs)),
            Size(form.rows), form.columns, form.depth, 0.0 if norm is None else norm.epsilon,
            norm is not None and norm.is_centred,
            tile.rows, tile.columns, tile.depth, tile.parts, _STATISTICS, tile.stages,
            len(form.weights) > 1, inputs[form.x].dtype == "bfloat16",
            *is_whole, *[False] * missing,
        )  # fmt: skip
        grid = ((Extent(form.columns), tile.columns), (ONE, 1), (ONE, 1))
        text = kernel_text("small_m_fp8_kernel")
        text += epilogue_text("epilogue", form.epilogue, MOST_OPERANDS + 1)
        return Call("small_m_fp8_kernel", arguments, grid, tile.parts, tile.stages), text


@dataclass(frozen=True)
class SmallMTile:
    """The tile of a thread block in a small-M matmul.

    Args:
        rows: That the tensor cores take.
        columns: Of the result.
        depth: Of a warp's part of a step.
        parts: Warps.
        stages: Steps that are loaded ahead.
    """

    rows: int
    columns: int
    depth: int
    parts: int
    stages: int


@dataclass(frozen=True)
class Fp8TiledGemm(TiledProduct):
    """Large-M matmuls in fp8."""

    def tiles(self) -> tuple[Tile, ...]:
        """Return those for half precision, with steps of as many bytes."""
        if self.form.signature.outputs[0].dtype == "float32":
            return (replace(SHARED, depth=SHARED.depth * _TIMES),)
        form, whole = self.form, self._kinds().count(WHOLE)
        # A residual sum has room in groups with tiles of their own: 34.7 and 38.3 microseconds.
        found = tiles_of(
            form.rows.static, form.columns, len(form.weights), 0 if whole == 1 else whole
        )
        return tuple(replace(tile, depth=tile.depth * _TIMES) for tile in found)


def match(
    signature: RegionSignature,
) -> Fp8Gemv | SmallMFp8Gemm | Fp8TiledGemm | Refused | None:
    """Return the region as matmuls with fp8 weights; None if it is something else."""
    found = read_fp8(signature)
    if found is None or isinstance(found, Refused):
        return found
    dtype = signature.inputs[found.x].dtype
    is_static = all(signature.inputs[one].shape[-1] == found.columns for one in found.reads)
    if found.rows == ONE and is_static:
        return Fp8Gemv(found)
    rows = found.rows.static
    if rows is not None and rows <= SMALL_M_MAX and is_static and dtype != "float32":
        return SmallMFp8Gemm(found)
    if not is_narrow(found):
        return Refused("more than one row in half precision, and a weight in fp8")
    return Fp8TiledGemm(found) if fits(found.columns) else Refused("products of too many columns")


def estimate(_: str, sizes: ProductSizes) -> tuple[float, float] | None:
    """Return what products take as nodes, and as one kernel.

    ONNX Runtime has no product of such numbers: DequantizeLinear writes the matrix, and the rows,
    in half precision first, and cuBLAS reads that. None where there is no kernel: large M in half
    precision.
    """
    if not sizes.is_narrow and (sizes.rows is None or sizes.rows > SMALL_M_MAX):
        return None
    before = after = 0.0
    launches = (bool(sizes.epilogue_ops) + sizes.is_normed) * LAUNCH_NS
    for rows in _ROWS if sizes.rows is None else (sizes.rows,):
        each = half_ns(rows, sizes.depth, sizes.columns)
        each += rounding_ns(sizes.depth * sizes.columns)
        before += sizes.products * each + launches
        after += fp8_ns(rows, sizes.depth, sizes.columns * sizes.products)
    return before, after


ANCHOR = Anchor("product", regions="ortkit.fusion.gemm.cuda_fp8:products", estimate=estimate)

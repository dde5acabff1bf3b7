"""Matrix products with weights in 4 or 8 bits and a scale for each block: MatMulNBits.

A region is `finish(A W)`: A float32, W as MatMulNBits has it, `finish` any chain of pointwise
operators. The node's accuracy level lets a kernel round A, to int8 or to bfloat16. Rows are
rounded to int8 with a scale for each block, as ONNX Runtime does. On processors with AMX many rows
are rounded to bfloat16, and the weights too. Sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, product
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_bf16, has_tiles, has_vnni

from ...forms.gemm_nbits import INT8_LEVEL, STEP, NBitsForm, read_nbits
from .bf16_emitter import PAIRS
from .nbits_bf16_writer import Bf16Writer
from .nbits_emitter import BYTES
from .nbits_int8_writer import Int8Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

_LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
# Of a row and a column, of one core: 1,000 GFLOP/s by tiles, 350 with VNNI, 150 without.
_TILES_PICOSECONDS, _VNNI_PICOSECONDS, _AVX_PICOSECONDS = 2, 6, 13
# A core reads weights at 11 GB/s from memory.
_PICOSECONDS_PER_BYTE = 90
# A slice of work rounds rows of A. What an element takes is 100 ps in int8 and 400 ps in bfloat16,
# which is transposed too; with 400 ps slices have 8 panels at least, and 128 rows by 8,192 columns
# take 8.3 ms instead of 14.9 (two threads, Zen 4, 2026-11-27).
_PICOSECONDS_TO_ROUND = 400
_MOST_NANOSECONDS = 1_000_000_000
# Of a byte of weights and scales on one thread (EPYC with Zen 4, 2026-11-27): for one row ONNX
# Runtime's kernel reads 13.6 GB/s, ours 20.
_RUNTIME_NS_PER_BYTE, _OURS_NS_PER_BYTE = 1 / 13.6, 1 / 20
# Of a multiply-add of many rows there: ONNX Runtime's at 138 GOP/s, ours at 250.
_RUNTIME_NS, _OURS_NS = 2 / 138, 2 / 250


@dataclass(frozen=True)
class NBitsProduct:
    """One product of a region."""

    form: NBitsForm

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        of = self.form
        if level not in _LEVELS:
            return Refused(f"processors of level {level} have no int8 dot products")
        if not has_bf16(level) and any(t.dtype == "bfloat16" for t in of.signature.outputs):
            return Refused(f"processors of level {level} do not round to bfloat16")
        if self._has_tiles(level):
            return None
        if of.level != INT8_LEVEL:
            tiles = f"tiles for blocks of {of.block}" if has_tiles(level) else "tiles"
            return Refused(f"processors of level {level} have no {tiles}")
        if of.bits == 8 and not has_vnni(level):
            return Refused(f"processors of level {level} have no VNNI, for weights in 8 bits")
        return None

    def _has_tiles(self, level: str) -> bool:
        """Whether many rows are multiplied in tiles of bfloat16: a step along K has one scale."""
        return has_tiles(level) and self.form.block % STEP == 0

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of the product, ONNX Runtime's and ours."""
        del level
        of = self.form
        read = of.columns * (of.depth * of.bits / 8 + 4 * of.depth / of.block)
        multiplies = product(of.leading).at(NOMINAL_SIZE) * of.depth * of.columns
        return (
            max(read * _RUNTIME_NS_PER_BYTE, multiplies * _RUNTIME_NS),
            max(read * _OURS_NS_PER_BYTE, multiplies * _OURS_NS),
        )

    def launch(self, level: str) -> Launch:
        """Units are panels of columns; points are rows."""
        of = self.form
        each = _VNNI_PICOSECONDS if has_vnni(level) else _AVX_PICOSECONDS
        each = _TILES_PICOSECONDS if self._has_tiles(level) else each
        bytes_read = of.columns * (of.depth * of.bits // 8 + of.depth // of.block * 4)
        return Launch(
            (Extent(-(-of.columns // PAIRS)),),
            product(of.leading),
            of.depth * PAIRS * each,
            shared_nanoseconds=min(bytes_read * _PICOSECONDS_PER_BYTE // 1000, _MOST_NANOSECONDS),
            slice_picoseconds=of.depth * _PICOSECONDS_TO_ROUND,
            streams_constants=True,
        )

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        writer = Bf16Writer if self._has_tiles(level) else Int8Writer
        return writer(self.form, symbol, level).function()


def match(signature: RegionSignature) -> NBitsProduct | Refused | None:
    """Return the region as a product with weights in 4 or 8 bits; None if it is something else."""
    form = read_nbits(signature)
    if not isinstance(form, NBitsForm):
        return form
    if form.depth * form.bits < BYTES * 8:
        return Refused(f"a depth of less than {BYTES * 8 // form.bits}")
    return NBitsProduct(form)


ANCHOR = Anchor("matmul_nbits", match, (("com.microsoft", "MatMulNBits"),))

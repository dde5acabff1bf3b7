"""Matrix products in bfloat16 with sums in float32: packed weights, AMX tiles or AVX512-BF16.

A region is `finish(A W)`: A rounded to bfloat16, W packed as `ortkit.kernels.layouts.bf16_blocks`
packs it, and `finish` any chain of pointwise operators with biases and tensors of the result's
shape. The work is cut into single rows of panels of 32 columns, since the number of rows may not
be known; a slice of it is taken panel by panel within blocks of rows that stay in the second level
of cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_bf16

from ...forms.gemm_bf16 import ProductForm, read_product
from .bf16_emitter import PAIRS
from .bf16_implicit_im2col import ImagePlan, ImageWriter, suits
from .bf16_plan import FEMTOSECONDS_PER_MULTIPLY, TILES, Bf16Plan
from .bf16_writer import Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

_MOST_DEPTH_OF_COPY = 8192
_FEMTOSECONDS_PER_FLOP = 2_000
# Weights come at 15 GB/s, from beyond the second level of cache.
_PICOSECONDS_PER_BYTE = 66
_MOST_NANOSECONDS = 1_000_000_000
# Of a multiply-add on one thread: ONNX Runtime's float32 at 105 GFLOP/s, ours at 1,200 with AMX
# tiles (server processor with both, 2026-11).
_RUNTIME_NS, _OURS_NS = 2 / 105, 2 / 1200


@dataclass(frozen=True)
class Bf16Product:
    """One product of a region."""

    form: ProductForm

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if not has_bf16(level):
            return Refused(f"processors of level {level} have no instructions for bfloat16")
        plan = Bf16Plan(self.form)
        if plan.is_copied and plan.depth > _MOST_DEPTH_OF_COPY:
            return Refused(f"rows of {self.form.depth} elements that have to be copied")
        return None

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of the product, ONNX Runtime's and ours."""
        del level
        count = self.form.rows.at(NOMINAL_SIZE) * self.form.depth * self.form.columns
        return count * _RUNTIME_NS, count * _OURS_NS

    def launch(self, level: str) -> Launch:
        """Say how units are counted: a row or, of images, a line, and a group of panels."""
        plan = self._plan(level)
        multiplies = plan.depth * FEMTOSECONDS_PER_MULTIPLY[level]
        flops = (self.form.finish.epilogue.flops + 2) * _FEMTOSECONDS_PER_FLOP
        cost = max(1, plan.rows_of_unit * plan.span * PAIRS * (multiplies + flops) // 1_000)
        weight = plan.depth * plan.panels * PAIRS * 2 * _PICOSECONDS_PER_BYTE // 1_000
        weight = min(weight, _MOST_NANOSECONDS)
        units = (*plan.unit_axes, Extent(plan.groups))
        return Launch(units, Extent(1), cost, shared_nanoseconds=weight)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        plan = self._plan(level)
        writer = ImageWriter if isinstance(plan, ImagePlan) else Writer
        return writer(plan, symbol, has_tiles=level == TILES).function()

    def _plan(self, level: str) -> Bf16Plan:
        """Return how the work is cut at a level of processors."""
        plan = Bf16Plan(self.form)
        return ImagePlan(self.form) if level == TILES and suits(plan) else plan


def match(signature: RegionSignature) -> Bf16Product | Refused | None:
    """Return the region as a product of bfloat16; None if it is something else."""
    form = read_product(signature)
    return Bf16Product(form) if isinstance(form, ProductForm) else form


#: Factors are rounded in front of the product; `ortkit.kernels.layouts.bf16_blocks` unpacks one.
ANCHOR = Anchor(
    "bf16_product", match, (("", "MatMul"),), weight="bfloat16",
    before={0: ("Cast",), 1: ("Slice?", "Reshape", "Transpose", "Cast")},
)  # fmt: skip

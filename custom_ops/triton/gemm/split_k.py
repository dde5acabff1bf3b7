"""Split-K matmuls of up to a few hundred rows, with the norm fused into the reduction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import Call, Passed, Scratch, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import Body, integer
from ...forms.conv_half import epilogue_text, optional
from ...forms.epilogue import Epilogue
from ...forms.gemm import MOST_OPERANDS, epilogue_of, misfit, unfit
from ...forms.gemm_norms import Norm, read_norm
from ..alignment import for_any_alignment
from ..conv.conv_tiles import power
from .gemv_tiles import k_split_of

#: Of float32.
_BYTES = 4
#: Most columns that one block reduces.
_MOST_COLUMNS = 16384
#: Depth and columns -> rows, and nanoseconds of torch's product with a kernel for sum and norm
#: behind, and of ours; measured as `gemv` says. Ours were ahead up to 256 rows, too, but not in a
#: model: of 197 rows of 3,072 a vit's take 11.0 with the norm, and ONNX Runtime's own 10.4.
_TIMES: Mapping[tuple[int, int], tuple[tuple[int, float, float], ...]] = {
    (1536, 384): ((4, 6520, 4880), (16, 6760, 4930), (64, 6850, 5260), (128, 7100, 5540)),
    (3072, 768): ((4, 8250, 7150), (16, 8380, 7160), (64, 8650, 7380), (128, 9480, 8060)),
    (4096, 1024): ((4, 9120, 8200), (16, 9290, 8200), (64, 9740, 8330), (128, 11050, 9190)),
}
#: What is like these: the depth against the columns, and the columns.
_LEAST_DEPTH, _COLUMNS = 3, (256, 1280)


@dataclass(frozen=True)
class SplitKGemm:
    """norm(epilogue(x @ w, reads ...)); numbers are the region's inputs, or its tensors.

    Args:
        signature: The region's.
        x: [..., depth].
        w: [depth, columns].
        reads: Additional operands of the epilogue.
        epilogue: Epilogue of the matmul.
        norm: Norm of the epilogue's result.
        y: The output that the norm makes.
        total: The output that the epilogue makes, None if there is none.
        rows: Of x, all leading dims.
    """

    signature: RegionSignature
    x: int
    w: int
    reads: tuple[int, ...]
    epilogue: Epilogue
    norm: Norm
    y: int
    total: int | None
    rows: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Depth and columns."""
        depth, columns = self.signature.inputs[self.w].shape
        assert isinstance(depth, int)
        assert isinstance(columns, int)
        return depth, columns

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel of two launches, and its variant for unaligned tensors."""
        depth, columns = self.sizes
        parts = k_split_of(self.rows, depth, columns)
        scratch, rows = Scratch(0, "float32"), Extent(self.rows)
        part = Call(
            "split_k_kernel",
            (
                Tensor(self.x), Tensor(self.w), scratch, Size(rows), columns, depth,
                parts.rows, parts.columns, parts.depth, parts.each,
            ),
            grid=(
                (rows, parts.rows), (Extent(columns), parts.columns), (Extent(depth), parts.each),
            ),
            warps=parts.warps,
            stages=parts.stages,
        )  # fmt: skip
        reduce = Call(
            "reduce_norm_kernel", self._reduce_arguments(scratch, -(-depth // parts.each)),
            grid=((rows, 1), (ONE, 1), (ONE, 1)), warps=4,
        )  # fmt: skip
        text = kernel_text("split_k_kernel") + epilogue_text(
            "epilogue", self.epilogue, MOST_OPERANDS
        )
        size = _BYTES * -(-depth // parts.each) * self.rows * columns
        return for_any_alignment(self.signature, (part, reduce), text, (Extent(size),))

    def _reduce_arguments(self, scratch: Scratch, count: int) -> tuple[Passed, ...]:
        """Return the arguments of the launch that reduces the partial sums."""
        columns, norm = self.sizes[1], self.norm
        inputs, whole = self.signature.inputs, self.signature.outputs[0].shape
        missing = MOST_OPERANDS - len(self.reads)
        is_whole = [inputs[number].shape == whole for number in self.reads]
        first = len(inputs)
        return (
            scratch, *map(Tensor, self.reads), *[None] * missing,
            Tensor(norm.scale), optional(norm.shift), Tensor(first + self.y),
            None if self.total is None else Tensor(first + self.total), Size(Extent(self.rows)),
            columns, power(columns), count, *is_whole, *[False] * missing,
            norm.epsilon, norm.is_centred,
        )  # fmt: skip


@refusals
def match(signature: RegionSignature) -> SplitKGemm | Refused | None:
    """Return the region as a matmul with a norm after it; None if it is something else."""
    body = Body(signature)
    nodes = [*body.nodes("MatMul"), *body.nodes("Gemm")]
    shape = signature.outputs[0].shape
    normed = [read_norm(body, name, shape) for name in body.function.output] if nodes else []
    norms = [(index, item) for index, item in enumerate(normed) if isinstance(item, Norm)]
    if len(norms) != 1 or len(nodes) != 1 or norms[0][1].source in body.inputs:
        return None
    (node,), ((y, norm),) = nodes, norms
    reason = unfit(signature, nodes, results=2)
    if reason is not None:
        return Refused(reason)
    x, w = (body.inputs.get(name) for name in node.input[:2])
    if x is None or w is None or integer(node, "transB", 0):
        return Refused("a matmul of a computed operand, or with a transposed weight")
    sizes = signature.inputs[w].shape
    rows = product(map(extent_of, shape[:-1])).static
    if len(sizes) != 2 or not all(isinstance(size, int) for size in sizes) or rows is None:
        return Refused("a matmul of unknown sizes with a norm after it")
    depth, columns = (int(size) for size in sizes)
    reason = misfit(signature, x, depth, columns)
    if reason is not None or columns > _MOST_COLUMNS:
        return Refused(reason or "a matmul with too many columns and a norm after it")
    totals = [index for index, name in enumerate(body.function.output) if name == norm.source]
    if len(totals) + 1 != len(signature.outputs):
        return Refused("a matmul with a norm, of which something else is read")
    found = needed(epilogue_of(body, nodes, (w,), norm.source))
    total = totals[0] if totals else None
    return SplitKGemm(signature, x, w, *found, norm, y, total, rows)


def estimate(_: str, sizes: ProductSizes) -> tuple[float, float] | None:
    """Return what a product with a sum and a norm after it takes before and after.

    None where nothing similar was measured, or cuBLAS was faster. Square weights gain less than a
    microsecond, wider ones nothing.
    """
    rows, (least, most) = sizes.rows, _COLUMNS
    if sizes.depth < _LEAST_DEPTH * sizes.columns or not least <= sizes.columns <= most:
        return None
    moved = sizes.depth * sizes.columns
    points = _TIMES[min(_TIMES, key=lambda one: abs(one[0] * one[1] - moved))]
    if rows is None or not 1 < rows <= points[-1][0]:
        return None
    (start, before, after), *others = points
    for end, low, high in others:
        if rows <= end:
            part = max(0.0, (rows - start) / (end - start))
            return before + part * (low - before), after + part * (high - after)
        start, before, after = end, low, high
    return None


ANCHOR = Anchor(
    "product_norm", regions="ortkit.fusion.gemm.cuda_split_k:products", estimate=estimate
)

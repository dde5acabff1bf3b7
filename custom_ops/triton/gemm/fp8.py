"""Matmuls with fp8 weights: GEMV, small M, and large M in fp8.

A matrix lies as [columns, depth] in float8e4m3fn, with a factor for each column or one for all.
Rows are in half precision, or in float8e4m3fn too, with one factor for all or one for each row.
The scales are then applied after the matmul: the sums are of the numbers as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, kernel_text
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS, SMALL_M_MAX, fp8_ns, half_ns, rounding_ns
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import Body, integer
from ...forms.conv_half import epilogue_text
from ...forms.epilogue import Step, Value
from ...forms.fp8_rounding import FP8, is_centred, quantized
from ...forms.gemm import MOST_OPERANDS, Products, epilogue_of, is_plain
from ...forms.gemm_norms import read_norm
from ..conv.conv_tiles import power
from .gemm import WHOLE, TiledProduct, fits
from .gemm_tiles import LEAST_DEPTH, PROCESSORS, SHARED, Tile, tiles_of
from .gemv import RowProduct
from .gemv_tiles import Strip

#: What a product may give.
_RESULTS = ("float16", "bfloat16", "float32")
#: Rows of matrices are read 16 bytes at a time.
_VECTOR = 16
_FLOAT = int(onnx.TensorProto.FLOAT)
#: What converts such numbers.
FP8_ARCHITECTURES = (89, 90, 100, 103, 120)
#: Steps of twice as many numbers as in half precision are as many bytes.
_TIMES = 2
#: Elements of all rows that are read at once for their statistics: reads wait for each other.
_STATISTICS = 8192
#: Additional columns of a wide tile, and its part of the columns that are worth it.
_MORE_COLUMNS, _LEAST_SAVED = 32, 0.9
#: Up to this N a block of a GEMV has two columns.
_NARROW = 2560
#: What rows may be that are not known.
_ROWS = (128, 512, 2048, 8192)


@dataclass(frozen=True)
class _Fp8Rows(RowProduct):
    """Few rows and fp8 weights."""

    architectures = FP8_ARCHITECTURES


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
        is_whole = [inputs[read].shape == output.shape for read in form.reads]
        arguments: tuple[Passed, ...] = (
            *self.operands(), *map(Tensor, form.reads), *[None] * missing, Tensor(len(inputs)),
            Size(form.rows), form.columns, form.depth, 0.0 if norm is None else norm.epsilon,
            norm is not None and norm.is_centred,
            tile.rows, tile.columns, tile.depth, tile.parts,
            min(power(form.depth), _STATISTICS // tile.rows), tile.stages,
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
        found = tuple(self._filled(tile) for tile in found)
        return tuple(replace(tile, depth=tile.depth * _TIMES) for tile in found)

    def _filled(self, tile: Tile) -> Tile:
        """Return a wider tile for deep products, if all multiprocessors then have fewer columns.

        6,304 x 3,072 x 768 takes 27.2 us instead of 29.1 (H200), less deep ones gain nothing.
        """
        form, rows = self.form, self.form.rows.static
        if rows is None or not tile.is_separate or len(form.weights) > 1:
            return tile
        if form.depth < LEAST_DEPTH or tile.rest or WHOLE in self._kinds():
            return tile
        wide = replace(tile, rest=_MORE_COLUMNS, stages=tile.stages - 1)
        columns = [
            each.width * -(-(-(-rows // each.rows) * -(-form.columns // each.width)) // PROCESSORS)
            for each in (tile, wide)
        ]
        return wide if columns[1] <= _LEAST_SAVED * columns[0] else tile


@dataclass(frozen=True)
class Scaled:
    """Numbers in fp8, or rows in half precision.

    Args:
        number: The input.
        scales: What they are multiplied by: inputs, or numbers.
        is_narrow: True for fp8.
    """

    number: int
    scales: tuple[int | float, ...]
    is_narrow: bool


@refusals
def read_fp8(signature: RegionSignature) -> Products | Refused | None:
    """Return the region as matmuls with fp8 weights; None if it is something else."""
    body = Body(signature)
    nodes = [*body.nodes("MatMul"), *body.nodes("Gemm")]
    if not nodes or not any(spec.dtype == FP8 for spec in signature.inputs):
        return None
    if len(nodes) > 2 or len({node.input[0] for node in nodes}) > 1 or len(signature.outputs) > 1:
        return Refused("more than two fp8 matmuls of one source")
    if not all(is_plain(node) for node in nodes if node.op_type == "Gemm"):
        return Refused("a Gemm with factors, or of something transposed")
    source = str(nodes[0].input[0])
    rows = signature.outputs[0].shape[:-1]
    matrices = [found for node in nodes if (found := _matrix(body, node)) is not None]
    if len(matrices) < len(nodes):
        return Refused("a matmul with weights that are not constant fp8")
    shape = signature.inputs[matrices[0].number].shape
    if any(signature.inputs[scaled.number].shape != shape for scaled in matrices):
        return Refused("products with matrices of several shapes")
    columns, depth = (int(size) for size in shape)
    x, norm = _rows(body, source), None
    if x is None and (norm := needed(read_norm(body, source, (*rows, depth)))) is not None:
        number = body.inputs.get(norm.source)
        x = None if number is None else Scaled(number, (), False)
    if x is None:
        return Refused("an fp8 matmul of something that is computed in the region")
    output, end = signature.outputs[0], str(body.function.output[0])
    divisor = None
    if output.dtype == FP8:
        divided = quantized(body, end)
        if divided is None:
            return Refused("an fp8 result with more than one scale")
        end, divisor = divided
    dtype = _type_before(body, end, matrices[0])
    if len(rows) < 1 or output.shape[-1] != columns:
        return Refused("a product of other sizes than rows and a matrix")
    if signature.inputs[x.number].shape != (*rows, depth):
        return Refused("a product of other sizes than rows and a matrix")
    if dtype not in _RESULTS or depth % _VECTOR or columns % _VECTOR:
        return Refused(f"an fp8 matmul of [{depth}, {columns}] to {dtype}")
    numbers = tuple(item.number for item in matrices)
    scales = [(*matrix.scales, *x.scales) for matrix in matrices]
    reads, epilogue = needed(epilogue_of(body, nodes, numbers, end, dtype, scales))
    if divisor is not None:
        value = Value(len(epilogue.extras) + len(epilogue.steps))
        divide = Step("Div", (value, divisor), {})
        epilogue = replace(epilogue, steps=(*epilogue.steps, divide))
    count = product(map(extent_of, rows))
    return Products(
        signature,
        x.number,
        norm,
        numbers,
        reads,
        epilogue,
        count,
        depth,
        columns,
        is_transposed=True,
    )


def _matrix(body: Body, node: onnx.NodeProto) -> Scaled | None:
    """Return a product's matrix, [columns, depth] with its scales along the columns."""
    name = str(node.input[1])
    if not (node.op_type == "Gemm" and integer(node, "transB", 0)):
        transposed = body.transposed(name, (1, 0))
        if transposed is None:
            return None
        name = transposed
    found = _dequantized(body, name, 0)
    return found if found is not None and found.is_narrow else None


def _rows(body: Body, name: str) -> Scaled | None:
    """Return what is multiplied: an input as it is, with one factor, or with one a row."""
    if name in body.inputs:
        return Scaled(body.inputs[name], (), False)
    found = _dequantized(body, name, None)
    if found is not None:
        return found
    rounded = body.producer(name, "Cast")
    scaled = body.producer(name if rounded is None else rounded.input[0], "Mul")
    wide = None if scaled is None else body.producer(scaled.input[0], "Cast")
    if scaled is None or wide is None or integer(wide, "to", 0) != _FLOAT:
        return None
    number, scale = body.inputs.get(wide.input[0]), body.inputs.get(scaled.input[1])
    inputs, factor = body.signature.inputs, body.number(scaled.input[1])
    if number is not None and factor is not None and inputs[number].dtype == FP8:
        return Scaled(number, (factor,), True)
    if number is None or scale is None:
        return None
    fits = inputs[scale].shape == (*inputs[number].shape[:-1], 1)
    return Scaled(number, (scale,), True) if fits and inputs[number].dtype == FP8 else None


def _dequantized(body: Body, name: str, axis: int | None) -> Scaled | None:
    """Return what DequantizeLinear makes `name` of, its factors along an axis or one for all."""
    node = body.producer(name, "DequantizeLinear")
    number = None if node is None else body.inputs.get(node.input[0])
    if node is None or number is None or body.signature.inputs[number].dtype != FP8:
        return None
    if not is_centred(body, node) or integer(node, "block_size", 0):
        return None
    factor = body.number(node.input[1])
    if factor is not None:
        return Scaled(number, (factor,), True)
    scale = body.inputs.get(node.input[1])
    if axis is None or scale is None or integer(node, "axis", 1) != axis:
        return None
    is_row = (
        body.signature.inputs[scale].shape == body.signature.inputs[number].shape[axis : axis + 1]
    )
    return Scaled(number, (scale,), True) if is_row else None


def _type_before(body: Body, end: str, matrix: Scaled) -> str:
    """Return the type of what the products and the steps after them give."""
    if end == body.function.output[0]:
        return body.signature.outputs[0].dtype
    node = body.producer(str(body.function.output[0]), "QuantizeLinear")
    if node is None:
        # A matrix becomes what its factors are.
        (factor, *_) = matrix.scales
        return body.signature.inputs[factor].dtype if isinstance(factor, int) else ""
    scale = body.constant(node.input[1])
    return "" if scale is None else scale.dtype.name


def match(
    signature: RegionSignature,
) -> Fp8Gemv | SmallMFp8Gemm | Fp8TiledGemm | Refused | None:
    """Return the region as matmuls with fp8 weights; None if it is something else."""
    found = read_fp8(signature)
    if found is None or isinstance(found, Refused):
        return found
    dtype = signature.inputs[found.x].dtype
    is_static = all(signature.inputs[read].shape[-1] == found.columns for read in found.reads)
    if found.rows == ONE and is_static:
        return Fp8Gemv(found)
    rows = found.rows.static
    if rows is not None and rows <= SMALL_M_MAX and is_static and dtype != "float32":
        return SmallMFp8Gemm(found)
    if signature.inputs[found.x].dtype != FP8:
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

"""Fp8 matmuls and their scales, as a region's body has them.

A matrix lies as [columns, depth] in float8e4m3fn, with a factor for each column or one for all.
Rows are in half precision, or in float8e4m3fn too, with one factor for all or one for each row.
The scales are then applied after the matmul: the sums are of the numbers as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, product
from ortkit.refusal import Refused, needed, refusals

from .body import Body, integer
from .epilogue import Epilogue, Operand, Step, Value
from .gemm import MOST_OPERANDS, Products, epilogue_of, is_plain
from .gemm_norms import read_norm

FP8 = "float8_e4m3fn"
#: What a product may give.
_RESULTS = ("float16", "bfloat16", "float32")
#: Rows of matrices are read 16 bytes at a time.
_VECTOR = 16
_FLOAT = int(onnx.TensorProto.FLOAT)


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
    if not nodes or not any(one.dtype == FP8 for one in signature.inputs):
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
    if any(signature.inputs[one.number].shape != shape for one in matrices):
        return Refused("products with matrices of several shapes")
    columns, depth = (int(size) for size in shape)
    norm = needed(None if _is_narrow(body, source) else read_norm(body, source, (*rows, depth)))
    x = _rows(body, source if norm is None else norm.source)
    if x is None:
        return Refused("an fp8 matmul of something that is computed in the region")
    output, end = signature.outputs[0], str(body.function.output[0])
    last: tuple[float, ...] = ()
    if output.dtype == FP8:
        divided = quantized(body, end)
        if divided is None:
            return Refused("an fp8 result with more than one scale")
        end, divisor = divided
        last = (divisor,)
    dtype = _type_before(body, end)
    if len(rows) < 1 or output.shape[-1] != columns:
        return Refused("a product of other sizes than rows and a matrix")
    if signature.inputs[x.number].shape != (*rows, depth):
        return Refused("a product of other sizes than rows and a matrix")
    if dtype not in _RESULTS or depth % _VECTOR or columns % _VECTOR:
        return Refused(f"an fp8 matmul of [{depth}, {columns}] to {dtype}")
    numbers = tuple(one.number for one in matrices)
    matched = needed(epilogue_of(body, nodes, numbers, end, dtype))
    scales = [(*one.scales, *x.scales) for one in matrices]
    reads, epilogue = _scaled(*matched, scales, last)
    if len(reads) > MOST_OPERANDS:
        return Refused(f"more than {MOST_OPERANDS} factors and further operands")
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


def is_narrow(form: Products) -> bool:
    """Say whether the rows are fp8, too."""
    return form.signature.inputs[form.x].dtype == FP8


def _is_narrow(body: Body, name: str) -> bool:
    """Say whether a value is made of fp8 numbers."""
    found = _rows(body, name)
    return found is not None and found.is_narrow


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
    if number is None or scale is None:
        return None
    inputs = body.signature.inputs
    fits = inputs[scale].shape == (*inputs[number].shape[:-1], 1)
    return Scaled(number, (scale,), True) if fits and inputs[number].dtype == FP8 else None


def _dequantized(body: Body, name: str, axis: int | None) -> Scaled | None:
    """Return what DequantizeLinear makes `name` of, its factors along an axis or one for all."""
    node = body.producer(name, "DequantizeLinear")
    number = None if node is None else body.inputs.get(node.input[0])
    if node is None or number is None or body.signature.inputs[number].dtype != FP8:
        return None
    if not _is_centred(body, node) or integer(node, "block_size", 0):
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


def quantized(body: Body, name: str) -> tuple[str, float] | None:
    """Return what QuantizeLinear makes `name` of, and the one number that it divides by."""
    node = body.producer(name, "QuantizeLinear")
    if node is None or not _is_centred(body, node) or not integer(node, "saturate", 1):
        return None
    factor = body.number(node.input[1])
    return None if factor is None else (str(node.input[0]), factor)


def _is_centred(body: Body, node: onnx.NodeProto) -> bool:
    """Say whether there is no zero point, or none that is not 0."""
    if len(node.input) < 3 or not node.input[2]:
        return True
    zero = body.constant(node.input[2])
    return zero is not None and not np.any(zero.astype(np.float32))


def _type_before(body: Body, end: str) -> str:
    """Return the type of what the products and the steps after them give."""
    if end == body.function.output[0]:
        return body.signature.outputs[0].dtype
    node = body.producer(str(body.function.output[0]), "QuantizeLinear")
    scale = None if node is None else body.constant(node.input[1])
    return "" if scale is None else scale.dtype.name


def _scaled(
    numbers: Sequence[int],
    epilogue: Epilogue,
    scales: Sequence[Sequence[int | float]],
    last: Sequence[float],
) -> tuple[tuple[int, ...], Epilogue]:
    """Put products' factors before all other steps, and a division after them.

    Args:
        numbers: What the steps read in addition to the products.
        epilogue: The steps.
        scales: Of each product: inputs, or numbers.
        last: What the result is divided by, if anything.
    """
    count = len(scales)
    read = tuple(dict.fromkeys(one for each in scales for one in each if isinstance(one, int)))
    extras = (*epilogue.extras[: count - 1], *read, *numbers)
    first = 1 + len(extras)
    steps: list[Step] = []
    scaled: list[Value] = []
    for index, factors in enumerate(scales):
        value = Value(index)
        for factor in factors:
            operand: Operand = (
                Value(count + read.index(factor)) if isinstance(factor, int) else factor
            )
            steps.append(Step("Mul", (value, operand), {}))
            value = Value(first + len(steps) - 1)
        scaled.append(value)
    before, old = len(steps), 1 + len(epilogue.extras)

    def moved(operand: Operand) -> Operand:
        if not isinstance(operand, Value):
            return operand
        if operand.index < count:
            return scaled[operand.index]
        if operand.index < old:
            return Value(operand.index + len(read))
        return Value(operand.index - old + first + before)

    steps += [
        Step(step.op_type, tuple(map(moved, step.operands)), step.attributes)
        for step in epilogue.steps
    ]
    for divisor in last:
        end = Value(first + len(steps) - 1) if steps else Value(0)
        steps.append(Step("Div", (end, divisor), {}))
    return (*read, *numbers), Epilogue(extras, tuple(steps))

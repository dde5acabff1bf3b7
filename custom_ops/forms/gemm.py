"""Products of rows and matrices in half precision, as a region's body has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused, needed, refusals

from .body import Body, integer
from .conv_half import HALF_DTYPES
from .epilogue import Epilogue, Operand, Step, Value, read_step
from .gemm_batch import Batch, batch_of, stride_of, transposed_input
from .gemm_norms import Norm, Rows, read_rows

#: Operands that a kernel reads in addition to its products.
MOST_OPERANDS = 4
#: Rows of the weights are read 16 bytes at a time.
VECTOR = 8


@dataclass(frozen=True)
class Products:
    """epilogue(norm(x) @ weights[0], norm(x) @ weights[1], reads ...); numbers are inputs.

    Args:
        signature: The region's.
        x: [..., depth].
        norm: What is done to the rows of x before, None if nothing is.
        weights: One or two, [N, K] if `is_transposed`, else [K, N].
        reads: What the epilogue reads in addition to the products: rows, or tensors of the
            result's shape.
        epilogue: Its values are the products, the reads, and the steps.
        rows: Of x, all leading dims.
        depth: K.
        columns: Of the result.
        is_transposed: True if the weights are stored as [N, K].
        is_lhs_transposed: True if x is [..., K, M] instead of [..., M, K].
        batch: Of many products, whose tensors have further dims in front; None for one.
        sum_of: What is added to x before the norm, and which output has the sum.
    """

    signature: RegionSignature
    x: int
    norm: Norm | None
    weights: tuple[int, ...]
    reads: tuple[int, ...]
    epilogue: Epilogue
    rows: Extent
    depth: int
    columns: int
    is_transposed: bool
    is_lhs_transposed: bool = False
    batch: Batch | None = None
    sum_of: Rows | None = None

    @property
    def made_of(self) -> Rows:
        """What the rows that are multiplied are made of."""
        return self.sum_of or Rows(self.x, self.norm)

    @property
    def y(self) -> int:
        """The number of the result among all tensors, inputs first."""
        return len(self.signature.inputs) + len(self.signature.outputs) - 1


@refusals
def read_products(signature: RegionSignature) -> Products | Refused | None:
    """Return the region as products of one source; None if it is something else."""
    body = Body(signature)
    nodes = [*body.nodes("MatMul"), *body.nodes("Gemm")]
    if not nodes:
        return None
    reason = unfit(signature, nodes, results=2)
    if reason is not None:
        return Refused(reason)
    source = nodes[0].input[0]
    inputs = signature.inputs
    matrices = [found for node in nodes if (found := _matrix(body, node)) is not None]
    if len(matrices) < len(nodes):
        return Refused("products with matrices that are computed")
    numbers = tuple(number for number, _ in matrices)
    kinds = {(inputs[number].shape, is_transposed) for number, is_transposed in matrices}
    ((shape, is_transposed), *others) = kinds
    if others or len(shape) < 2 or not all(isinstance(size, int) for size in shape[-2:]):
        return Refused("products with matrices of other shapes than one of known sizes")
    if len(shape) > 2 or transposed_input(body, source) is not None:
        if len(signature.outputs) > 1:
            return Refused("many products with more than one result")
        return _read_batch(body, nodes, numbers, is_transposed=is_transposed)
    depth, columns = (int(size) for size in (shape[::-1] if is_transposed else shape))
    rows = signature.outputs[-1].shape[:-1]
    made = needed(read_rows(body, source, (*rows, depth)))
    reason = misfit(signature, made.x, depth, columns)
    if reason is not None:
        return Refused(reason)
    matched = needed(epilogue_of(body, nodes, numbers, body.function.output[-1]))
    reads, epilogue = matched
    return Products(
        signature, made.x, made.norm, numbers, reads, epilogue,
        product(map(extent_of, rows)), depth, columns, is_transposed,
        sum_of=made,
    )  # fmt: skip


@refusals
def _read_batch(
    body: Body, nodes: Sequence[onnx.NodeProto], weights: tuple[int, ...], *, is_transposed: bool
) -> Products | Refused:
    """Return products of which there are many, or of rows that lie as columns."""
    signature, source = body.signature, nodes[0].input[0]
    inputs, whole = signature.inputs, signature.outputs[0].shape
    swapped_axes = transposed_input(body, source)
    x = body.inputs.get(source, swapped_axes)
    if x is None:
        return Refused("products of something that is computed in the region")
    depth, columns = inputs[weights[0]].shape[-2:][:: -1 if is_transposed else 1]
    rows = whole[-2] if len(whole) > 1 else 1
    left = (rows, depth) if swapped_axes is None else (depth, rows)
    if whole[-1:] != (columns,) or inputs[x].shape[-2:] != left:
        return Refused("products of other sizes than rows and a matrix")
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    # What lies innermost is copied by 16 bytes.
    innermost = (depth, columns) if swapped_axes is None else (depth, columns, rows)
    if any(not isinstance(size, int) or size % VECTOR for size in innermost):
        return Refused(f"products of {innermost}, no multiples of {VECTOR}")
    matched = needed(epilogue_of(body, nodes, weights, body.function.output[0], is_batch=True))
    batch = needed(batch_of(signature, x, weights[0], matched[0]))
    return Products(
        signature, x, None, weights, *matched, extent_of(rows), depth, columns, is_transposed,
        swapped_axes is not None, batch,
    )  # fmt: skip


def unfit(
    signature: RegionSignature, nodes: Sequence[onnx.NodeProto], results: int = 1
) -> str | None:
    """Say why the region's products or tensors are not what these kernels work on."""
    if len(nodes) > 2 or len({node.input[0] for node in nodes}) > 1:
        return "more products than two of one source"
    if len(signature.outputs) > results:
        return f"products with more than {results} results"
    dtype = signature.outputs[0].dtype
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.dtype != dtype or dtype not in HALF_DTYPES:
            return f"a product with a tensor of type {tensor.dtype}"
    for node in nodes:
        if node.op_type == "Gemm" and not is_plain(node):
            return "a Gemm with factors, or of something transposed"
    return None


def is_plain(gemm: onnx.NodeProto) -> bool:
    """Say whether a Gemm has no factors, and its rows are not transposed."""
    factors = [each.f for each in gemm.attribute if each.name in ("alpha", "beta")]
    return all(factor == 1.0 for factor in factors) and not integer(gemm, "transA", 0)


def _matrix(body: Body, node: onnx.NodeProto) -> tuple[int, bool] | None:
    """Return the input that is a product's matrix, and whether it is [columns, depth]."""
    is_transposed = node.op_type == "Gemm" and bool(integer(node, "transB", 0))
    as_it_lies = body.inputs.get(node.input[1])
    if as_it_lies is not None:
        return as_it_lies, is_transposed
    transposed = transposed_input(body, node.input[1])
    return None if transposed is None else (transposed, not is_transposed)


def misfit(signature: RegionSignature, x: int, depth: int, columns: int) -> str | None:
    """Say why sizes do not fit each other, or vectors."""
    shape, output = signature.inputs[x].shape, signature.outputs[-1].shape
    if len(shape) < 2 or shape[-1] != depth or output != (*shape[:-1], columns):
        return "a product of other sizes than rows and a matrix"
    if depth % VECTOR or columns % VECTOR:
        return f"a product of [{depth}, {columns}], no multiples of {VECTOR}"
    return None


@refusals
def epilogue_of(
    body: Body,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[int],
    end: str,
    dtype: str = "",
    scales: Sequence[Sequence[int | float]] = (),
    *,
    is_batch: bool = False,
) -> tuple[tuple[int, ...], Epilogue] | Refused:
    """Return the operands and the steps of the epilogue.

    Args:
        body: The region's.
        nodes: The products.
        weights: The numbers of their matrices.
        end: What the last step makes.
        dtype: Of all values, empty for that of the region's result.
        scales: Of each product what it is multiplied by first: numbers, or those of inputs.
        is_batch: Whether each product may have operands of its own.
    """
    products = [str(node.output[0]) for node in nodes]
    steps = body.dependent(products)
    # What rounds the end is none of them.
    steps = steps[: 1 + max((at for at, one in enumerate(steps) if end in one.output), default=-1)]
    biases = [str(node.input[2]) for node in nodes if len(node.input) > 2 and node.input[2]]
    read = [*biases, *(str(name) for node in steps for name in node.input)]
    numbers = tuple(dict.fromkeys(body.inputs[name] for name in read if name in body.inputs))
    if not all(_fits(body.signature, number, is_batch=is_batch) for number in numbers):
        return Refused("an operand of another shape than the product's, or its rows'")
    factors = [item for each in scales for item in each if isinstance(item, int)]
    numbers = tuple(dict.fromkeys((*factors, *numbers)))
    if len(numbers) > MOST_OPERANDS:
        return Refused(f"more than {MOST_OPERANDS} further operands")
    names = {number: name for name, number in body.inputs.items()}
    extras = (*weights[1:], *numbers)
    known: dict[str, Operand] = {name: Value(index) for index, name in enumerate(products)}
    first = len(products)
    known |= {names[number]: Value(first + index) for index, number in enumerate(numbers)}
    made: list[Step] = []

    def add(step: Step, name: str) -> None:
        known[name] = Value(1 + len(extras) + len(made))
        made.append(step)

    for name, each in zip(products, scales, strict=False):
        # Numbers first: a row of factors is multiplied once, a product in each element.
        scalars = [one for one in each if not isinstance(one, int)]
        rows = [known[names[one]] for one in each if isinstance(one, int)]
        for number in scalars if rows else ():
            add(Step("Mul", (rows[0], number), {}), f"{name}/factor")
            rows[0] = known[f"{name}/factor"]
        for factor in rows or scalars:
            add(Step("Mul", (known[name], factor), {}), name)
    for node in nodes:
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias:
            operand = known.get(bias, body.number(bias))
            if operand is None:
                return Refused("a Gemm with a bias that is computed")
            add(Step("Add", (known[node.output[0]], operand), {}), node.output[0])
    dtype = dtype or body.signature.outputs[-1].dtype
    for node in steps:
        step = needed(read_step(body, node, known, dtype))
        add(step, node.output[0])
    last = Value(len(extras) + len(made)) if made else Value(0)
    if known.get(end) != last:
        return Refused("a result that is not the last step's")
    return numbers, Epilogue(extras, tuple(made))


def _fits(signature: RegionSignature, number: int, *, is_batch: bool) -> bool:
    """Say whether an input has the result's shape, or is one row for all.

    With `is_batch` also one row, or rows, for some of the products.
    """
    shape, output = signature.inputs[number].shape, signature.outputs[-1].shape
    if is_batch:
        return stride_of(shape, output, is_read=True) is not None
    is_row = shape[-1:] == output[-1:] and all(size == 1 for size in shape[:-1])
    return shape == output or (is_row and 0 < len(shape) <= len(output))

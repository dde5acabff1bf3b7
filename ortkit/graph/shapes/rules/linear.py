"""Matrix products and Einsum."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError
from ortkit.graph.shapes.rules.elementwise import broadcast_shapes
from ortkit.graph.symbolic.dims import Size, broadcast


def matmul_shape(call: Call, left: Shape, right: Shape) -> Shape:
    """Return the shape of numpy's `matmul`.

    Raises:
        UnknownError: An operand is a scalar.
        ValueError: The batches do not broadcast.
    """
    if not left or not right:
        raise UnknownError
    call.equate(left[-1], right[-2] if len(right) > 1 else right[0])
    rows: Shape = left[-2:-1]
    columns: Shape = right[-1:] if len(right) > 1 else ()
    return (*broadcast_shapes(left[:-2], right[:-2]), *rows, *columns)


def matmul(call: Call) -> None:
    """Multiply inputs 0 and 1, in the type of input 0."""
    call.out(dtype=call.dtype(0))
    call.out(shape=matmul_shape(call, call.shape(0), call.shape(1)))


def _matmul_integer(call: Call) -> None:
    call.out(dtype=ir.DataType.INT32)
    call.out(shape=matmul_shape(call, call.shape(0), call.shape(1)))


def _qlinear_matmul(call: Call) -> None:
    call.out(dtype=call.dtype(7))
    call.out(shape=matmul_shape(call, call.shape(0), call.shape(3)))


def gemm(call: Call) -> None:
    """Multiply two matrices, either transposed by an attribute."""
    call.out(dtype=call.dtype(0))
    left, right = call.shape(0), call.shape(1)
    rows, inner = reversed(left) if call.integer("transA", 0) else left
    depth, columns = reversed(right) if call.integer("transB", 0) else right
    call.equate(inner, depth)
    call.out(shape=(rows, columns))


# ---- Einsum ------------------------------------------------------------------------------


def _einsum(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    equation = call.string("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != call.inputs:
        raise UnknownError
    sizes: dict[str, Size] = {}
    batch: Shape = ()
    for index, term in enumerate(terms):
        batch = broadcast_shapes(batch, _bind(term, call.shape(index), sizes))
    if not arrow:
        right = _implicit_output(left)
    call.out(shape=_named(right, sizes, batch))


def _bind(term: str, shape: Shape, sizes: dict[str, Size]) -> Shape:
    """Note the size of each letter and return the shape of the ellipsis."""
    before, dots, after = term.partition("...")
    spare = len(shape) - len(before) - len(after)
    if spare < 0 or (spare and not dots):
        raise UnknownError
    names = [*before, *("",) * spare, *after]
    for name, size in zip(names, shape, strict=True):
        if name:
            sizes[name] = broadcast(sizes[name], size) if name in sizes else size
    return shape[len(before) : len(before) + spare]


def _implicit_output(left: str) -> str:
    letters = left.replace(",", "").replace("...", "")
    once = sorted(letter for letter in letters if letters.count(letter) == 1)
    return ("..." if "..." in left else "") + "".join(once)


def _named(right: str, sizes: dict[str, Size], batch: Shape) -> Shape:
    before, dots, after = right.partition("...")
    return (
        *(sizes[letter] for letter in before),
        *(batch if dots else ()),
        *(sizes[letter] for letter in after),
    )


RULES: dict[str, Rule] = {
    "MatMul": matmul,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "Gemm": gemm,
    "Einsum": _einsum,
}

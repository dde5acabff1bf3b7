"""From a pointwise program and its layout to one TIR function over rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortkit.kernels.layout import Layout
from ortkit.kernels.tvm.emit import Buffer, Emitter, Expr
from ortkit.kernels.tvm.program import Constant, Operand, Program, Reference

# One AVX-512 register of float32; narrower machines take two or four registers a vector.
_VECTOR = 16


@dataclass(frozen=True)
class _Tensor:
    """A tensor in the kernel: which of the two loops move it."""

    buffer: Buffer
    dtype: str
    has_rows: bool
    has_columns: bool


@dataclass(frozen=True)
class _Point:
    """Where the loops stand; None where no loop runs yet."""

    row: Expr | None
    column: Expr | None
    columns: Expr


def lower(program: Program, layout: Layout, symbol: str) -> Expr:
    """Return `int32_t symbol(tensor..., int64_t rows, int64_t columns)`.

    Columns are vectorized. What does not depend on the column is computed once a row.
    """
    e = Emitter(symbol)
    tensors = _parameters(e, program, layout)
    rows, columns = e.size("rows"), e.size("columns")
    inputs, outputs = tensors[: len(program.input_dtypes)], tensors[len(program.input_dtypes) :]
    if len(layout.axes) == 1:
        # One dense axis: its points are the kernel's columns, whatever the caller calls them.
        known = _evaluate(e, program, inputs, _Point(None, None, rows), {})
        _each_column(e, rows, None, lambda at: _write_point(
            e, program, inputs, outputs, _Point(None, at, rows), known))  # fmt: skip
        return e.function()
    axis = layout.axes[-1]
    static = None if axis.symbols else axis.size
    extent = columns if static is None else e.i64(static)
    with e.loop(rows) as row:
        known = _evaluate(e, program, inputs, _Point(row, None, extent), {})
        _each_column(e, extent, static, lambda at: _write_point(
            e, program, inputs, outputs, _Point(row, at, extent), known))  # fmt: skip
    return e.function()


def _parameters(e: Emitter, program: Program, layout: Layout) -> list[_Tensor]:
    outputs = (_dtype(program, output.index) for output in program.outputs)
    dtypes = [*program.input_dtypes, *outputs]
    tensors = []
    for index, (dtype, moves) in enumerate(zip(dtypes, layout.moves, strict=True)):
        buffer = e.pointer(f"p{index}", "uint8" if dtype == "bool" else dtype)
        has_rows = len(moves) > 1 and moves[-2]
        tensors.append(_Tensor(buffer, dtype, has_rows, moves[-1]))
    return tensors


def _dtype(program: Program, index: int) -> str:
    inputs = len(program.input_dtypes)
    return program.input_dtypes[index] if index < inputs else program.steps[index - inputs].dtype


def _each_column(
    e: Emitter, extent: Expr, static: int | None, body: Callable[[Expr], None]
) -> None:
    """Run `body` on every column, in full vectors.

    The last vector ends where the row ends, and so repeats some columns of the one before; that
    is allowed as no output overlaps an input, and several times faster than a scalar tail. Rows
    shorter than a vector take the widest that fits if their size is known, else one by one.
    """
    if static is not None:
        width = min(_VECTOR, 1 << (static.bit_length() - 1)) if static else 1
        _vectors(e, extent, width, body, is_exact=static % width == 0)
        return
    with e.block() as wide:
        _vectors(e, extent, _VECTOR, body, is_exact=False)
    with e.block() as narrow:
        _vectors(e, extent, 1, body, is_exact=True)
    e.branch(extent >= e.i64(_VECTOR), wide, narrow)


def _vectors(
    e: Emitter, extent: Expr, width: int, body: Callable[[Expr], None], *, is_exact: bool
) -> None:
    if width == 1:
        with e.loop(extent) as at:
            body(at)
        return
    with e.loop(e.divide_up(extent, width)) as index:
        start = index * e.i64(width)
        if not is_exact:
            start = e.share(e.minimum(start, extent - e.i64(width)))
        with e.vector(width) as lane:
            body(start + lane)


def _write_point(
    e: Emitter,
    program: Program,
    inputs: list[_Tensor],
    outputs: list[_Tensor],
    point: _Point,
    known: dict[int, Expr],
) -> None:
    values = _evaluate(e, program, inputs, point, known)
    for tensor, output in zip(outputs, program.outputs, strict=True):
        value = values[output.index]
        if tensor.dtype == "bool":
            value = e.select(value, e.u8(1), e.u8(0))
        e.store(tensor.buffer, value, _offset(e, tensor, point))


def _evaluate(
    e: Emitter, program: Program, inputs: list[_Tensor], point: _Point, known: dict[int, Expr]
) -> dict[int, Expr]:
    """Return `known` and every further value that can be computed at `point`."""
    values = dict(known)
    for index, tensor in enumerate(inputs):
        if index not in values and (point.column is not None or not tensor.has_columns):
            value = tensor.buffer[_offset(e, tensor, point)]
            is_bool = tensor.dtype == "bool"
            values[index] = e.share(e.not_equal(value, e.u8(0)) if is_bool else value)
    for index, step in enumerate(program.steps, len(inputs)):
        if index in values or not all(_is_known(operand, values) for operand in step.operands):
            continue
        operands = [_operand(e, operand, values) for operand in step.operands]
        values[index] = e.share(step.op.write(e, step.attributes, operands))
    return values


def _is_known(operand: Operand, values: dict[int, Expr]) -> bool:
    return not isinstance(operand, Reference) or operand.index in values


def _operand(e: Emitter, operand: Operand, values: dict[int, Expr]) -> Expr | None:
    if isinstance(operand, Constant):
        return e.constant(operand.value, operand.dtype)
    return None if operand is None else values[operand.index]


def _offset(e: Emitter, tensor: _Tensor, point: _Point) -> Expr:
    offset = e.i64(0)
    if tensor.has_rows and point.row is not None:
        offset = point.row * point.columns if tensor.has_columns else point.row
    if tensor.has_columns and point.column is not None:
        offset = offset + point.column
    return offset

"""From int8 dot products to results: scales, roundings, sums of bytes and float32 steps.

Each operation rounds where ONNX Runtime's kernels do, so that results in uint8 are theirs to the
bit. Products with a scale are not fused with what is added to them; QLinearAdd's are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.region.dtypes import memory_dtype

from ...forms.gemm_int8 import (
    AddQuantized,
    Dequantize,
    Floats,
    Grid,
    Int8Form,
    Lookup,
    Quantize,
    Stage,
)
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .int8_emitter import Int8Emitter

_FLOATS = f"float32x{VECTOR}"


@dataclass(frozen=True)
class OutputVector:
    """16 results: where they lie in the result, how many there are, and in which vector."""

    at: Expr
    lanes: int
    vector: int


def _is_rounding(stage: Stage) -> bool:
    return isinstance(stage, Quantize | AddQuantized)


class Finisher:
    """Finishes rows of a panel.

    Args:
        e: The emitter that writes the statements.
        of: What is computed.
        buffers: The region's tensors.
        vectors: Of a panel.
    """

    def __init__(self, e: Int8Emitter, of: Int8Form, buffers: list[Buffer], vectors: int) -> None:
        self.e, self.of, self.buffers = e, of, buffers
        self.vectors = vectors
        self.starts = e.local(vectors * VECTOR, "int32")
        self.scales = e.scratch(vectors * VECTOR)
        self.rows = {
            number: e.local(vectors * VECTOR, memory_dtype(of.signature.inputs[number].dtype))
            for number in self._row_inputs()
        }
        self.prepared = {
            stage: self._prepared(stage) for stage in of.stages if _is_rounding(stage)
        }

    def _row_inputs(self) -> list[int]:
        found: list[int] = []
        for stage in self.of.stages:
            if isinstance(stage, AddQuantized) and stage.is_row:
                found.append(stage.other)
            if isinstance(stage, Floats):
                pairs = zip(stage.epilogue.extras, stage.rows, strict=True)
                found += [number for number, is_row in pairs if is_row]
        return list(dict.fromkeys(found))

    def open(self, column: Expr, sums: list[Buffer], lanes: int, period: int = 0) -> None:
        """Emit what all rows of a panel read: what their sums begin with, scales, and rows.

        Args:
            column: The panel's first.
            sums: Of each vector those of its weights; 0 where the kernel does not add them up.
            lanes: Columns that its last vector has.
            period: After how many vectors columns begin again; 0: never.
        """
        e = self.e
        for vector, total in enumerate(sums):
            width = VECTOR if vector < len(sums) - 1 else lanes
            at = e.share(column + e.i64((vector % period if period else vector) * VECTOR))
            start = self._start_of(total, at, width)
            e.store_row(self.starts, e.whole(start), vector * VECTOR, VECTOR)
            e.store_row(self.scales, self._scale_of(at, width), vector * VECTOR, VECTOR)
            for number, buffer in self.rows.items():
                e.store_row(buffer, self._row_of(number, at, width), vector * VECTOR, VECTOR)

    def _start_of(self, total: Buffer, at: Expr, width: int) -> Expr:
        """Return what the sums of 16 columns begin with, int32."""
        e, of = self.e, self.of
        start = e.tir.Broadcast(e.i32(0), VECTOR)
        if of.zero is not None:
            zeros = e.tir.Broadcast(e.cast(self._number(of.zero), "int32"), VECTOR)
            sums = e.sums(total)
            if of.column_sums is not None:
                sums = self._row_of(of.column_sums, at, width)
            start = start - zeros * sums
        return start if of.added is None else start + self._row_of(of.added, at, width)

    def _scale_of(self, at: Expr, width: int) -> Expr:
        e, of = self.e, self.of
        if of.signature.inputs[of.scale].shape == (of.columns,):
            scale = self._row_of(of.scale, at, width)
        else:
            scale = e.tir.Broadcast(self._number(of.scale), VECTOR)
        if of.factor is None:
            return scale
        return e.tir.Broadcast(self._number(of.factor), VECTOR) * scale

    def _row_of(self, number: int, at: Expr, lanes: int) -> Expr:
        """Return 16 neighbours of an input; beyond `lanes` they are 0."""
        dtype = memory_dtype(self.of.signature.inputs[number].dtype)
        return self.e.sixteen(self.buffers[number], at, lanes, dtype)

    def begin(self, vector: int) -> Expr:
        """Return what the sums of a vector's columns begin with, int32."""
        return self.e.row(self.starts, vector * VECTOR, VECTOR)

    def write(self, sums: Expr, at_vector: OutputVector) -> None:
        """Emit 16 results.

        Args:
            sums: int32.
            at_vector: Where to.
        """
        e = self.e
        whole = e.share_row(sums, VECTOR, "int32")
        scaled = e.cast(whole, _FLOATS) * e.row(self.scales, at_vector.vector * VECTOR, VECTOR)
        value = e.share_row(e.fenced(scaled), VECTOR, "float32")
        for number, stage in enumerate(self.of.stages):
            if number == self.of.kept:
                value = e.share_row(value, VECTOR, "float32")
                self._put(value, at_vector, 1)
            value = self._stage(stage, value, at_vector)
        self._put(value, at_vector, 0)

    def _stage(self, stage: Stage, value: Expr, at_vector: OutputVector) -> Expr:
        """Return what a stage makes: 16 float32 or, of bytes, int32."""
        e = self.e
        match stage:
            case Quantize():
                return e.share_row(self._quantized(stage, value), VECTOR, "int32")
            case Dequantize(grid):
                return e.share_row(self._widened(value, grid), VECTOR, "float32")
            case AddQuantized():
                found = self._sum(stage, e.cast(value, _FLOATS), at_vector)
                return e.share_row(found, VECTOR, "int32")
            case Lookup(table):
                found = e.looked_up(self.buffers[table], value)
                return e.share_row(found, VECTOR, "int32")
            case Floats():
                return self._floats(stage, value, at_vector)

    # ---- numbers that are inputs
    def _number(self, number: int) -> Expr:
        return self.buffers[number][self.e.i64(0)]

    def _scale(self, grid: Grid) -> Expr:
        return self.e.f32(1.0) if grid.scale is None else self._number(grid.scale)

    def _zero(self, grid: Grid) -> Expr:
        return self.e.cast(self._number(grid.zero), "float32")

    def _all(self, number: Expr) -> Expr:
        return self.e.tir.Broadcast(number, VECTOR)

    def _prepared(self, stage: Stage) -> tuple[Expr, ...]:
        """Return what all results of a stage are made with, computed once."""
        e = self.e
        if isinstance(stage, Quantize):
            zero = e.share(self._zero(stage.grid))
            whole = e.share(e.cast(self._number(stage.grid.zero), "int32"))
            return e.share(e.f32(0.0) - zero), e.share(e.f32(255.0) - zero), whole
        if isinstance(stage, AddQuantized):
            step = self._scale(stage.result)
            grids = (stage.own, stage.others) if stage.is_first else (stage.others, stage.own)
            ratios = [e.share(self._scale(grid) / step) for grid in grids]
            zeros = [e.share(self._zero(grid)) for grid in grids]
            # As MLAS's compiler rounds it: one product is fused with the sum of both.
            second = e.fence(ratios[1] * zeros[1])
            name = "llvm.fma"
            both = e.tir.call_llvm_pure_intrin("float32", name, ratios[0], zeros[0], second)
            fixed = self._zero(stage.result) - both
            return (*ratios, e.share(fixed))
        return ()

    def _widened(self, numbers: Expr, grid: Grid) -> Expr:
        moved = self.e.cast(numbers, _FLOATS) - self._all(self._zero(grid))
        return self.e.fenced(moved * self._all(self._scale(grid)))

    def _quantized(self, stage: Quantize, value: Expr) -> Expr:
        low, high, zero = self.prepared[stage]
        scale = stage.grid.scale
        steps = value if scale is None else value / self._all(self._number(scale))
        return self.e.nearest_within(steps, self._all(low), self._all(high)) + self._all(zero)

    def _sum(self, stage: AddQuantized, value: Expr, at_vector: OutputVector) -> Expr:
        """Return the sum as MLAS adds: fma(a, A / C, fma(b, B / C, fixed)), a the first one."""
        e, first = self.e, at_vector.vector * VECTOR
        if stage.is_row:
            other = e.row(self.rows[stage.other], first, VECTOR)
        else:
            other = self._row_of(stage.other, at_vector.at, at_vector.lanes)
        other = e.share_row(e.cast(other, _FLOATS), VECTOR, "float32")
        ratio, ratio_of_second, fixed = self.prepared[stage]
        a, b = (value, other) if stage.is_first else (other, value)
        inner = e.fused(b, self._all(ratio_of_second), self._all(fixed))
        found = e.fused(a, self._all(ratio), inner)
        return e.nearest_within(found, self._all(e.f32(0.0)), self._all(e.f32(255.0)))

    def _floats(self, stage: Floats, value: Expr, at_vector: OutputVector) -> Expr:
        e, first = self.e, at_vector.vector * VECTOR
        source, sink = e.scratch(), e.scratch()
        e.store_row(source, value, 0, VECTOR)
        operands: list[Callable[[Expr], Expr]] = []
        extras = zip(stage.epilogue.extras, stage.rows, stage.grids, strict=True)
        for number, is_row, grid in extras:
            some = e.scratch()
            if is_row:
                numbers = e.row(self.rows[number], first, VECTOR)
            else:
                numbers = self._row_of(number, at_vector.at, at_vector.lanes)
            if grid is not None:
                numbers = self._widened(numbers, grid)
            e.store_row(some, numbers, 0, VECTOR)
            operands.append(some.__getitem__)
        with e.vector(VECTOR) as lane:
            read = [operand(lane) for operand in operands]
            value = stage.epilogue.write(e, source[lane], read, is_fenced=True)
            e.store(sink, value, lane)
        return e.row(sink, 0, VECTOR)

    def _put(self, value: Expr, at_vector: OutputVector, number: int) -> None:
        spec = self.of.signature.outputs[number]
        output = self.buffers[len(self.of.signature.inputs) + number]
        self.e.put_sixteen(output, at_vector.at, value, at_vector.lanes, spec.dtype)

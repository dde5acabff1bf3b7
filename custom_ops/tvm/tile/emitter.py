"""The emitter with what tiles need: local buffers and sizes known at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ortkit.kernels.region.dtypes import bits_of, memory_dtype
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.kernels.tvm.emit import Buffer, Emitter, Expr

from .registers import VECTOR

Size = TypeVar("Size")
# Bytes of a line of the cache.
_LINE = 64


@dataclass
class TileEmitter(Emitter):
    """One kernel over whole tensors and a range of units."""

    symbols: dict[str, Expr] = field(default_factory=dict)
    dtypes: list[str] = field(default_factory=list)
    """Of the tensors, inputs first."""
    processor: str = ""
    """The level that the kernel is for."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        return ()

    def function(self) -> Expr:
        """Return the finished function, with what it calls."""
        from tvm.ir import StringImm

        made = super().function()
        for text in self.llvm:
            body = self.tir.AttrStmt(self.i32(0), "pragma_import_llvm", StringImm(text), made.body)
            made = made.with_body(body)
        return made

    def parameters(self, signature: RegionSignature) -> tuple[list[Buffer], Expr, Expr]:
        """Add the kernel's parameters: the tensors, the first unit and the one after the last."""
        tensors = (*signature.inputs, *signature.outputs)
        self.dtypes = [tensor.dtype for tensor in tensors]
        buffers = [self.pointer(f"p{i}", memory_dtype(t)) for i, t in enumerate(self.dtypes)]
        for index, symbol in enumerate(symbols_of(tensors)):
            self.symbols[symbol] = self.size(f"s{index}")
        return buffers, self.size("begin"), self.size("end")

    def extent(self, extent: Extent | int | str) -> Expr:
        """Return a size as a value."""
        extent = extent if isinstance(extent, Extent) else extent_of(extent)
        result = self.i64(extent.factor)
        for symbol in extent.symbols:
            result = result * self.symbols[symbol]
        return result

    def scratch(self, count: int = VECTOR) -> Buffer:
        """Declare float32 numbers on the stack; LLVM keeps one vector of them in a register."""
        return self.local(count, "float32")

    def aligned(self, count: int, dtype: str) -> tuple[Buffer, Expr]:
        """Declare an array on the stack; return it and the element at which a cache line begins.

        Vectors that lie across two lines are read and written at half the speed.
        """
        size = _LINE // bits_of(dtype) * 8
        buffer = self.local(count + size, dtype)
        line = self.constant(_LINE - 1, "uint64")
        address = self.tir.reinterpret("uint64", self.tir.address_of(buffer[self.i64(0)]))
        # TVM promises LLVM that nothing overflows: 0 - address would be taken for 0.
        away = (self.constant(_LINE, "uint64") - (address & line)) & line
        return buffer, self.share(self.divide_down(self.cast(away, "int64"), _LINE // size))

    def each_block(self, count: int, body: Callable[[Expr, int], None]) -> None:
        """Run `body` on the start and the lanes of each vector of `count` places.

        What is left after whole vectors comes in parts of 8, 4, 2 and 1.
        """
        full = count // VECTOR
        if full:
            with self.loop(self.i64(full)) as number:
                body(self.share(number * self.i64(VECTOR)), VECTOR)
        for start, width in parts(count % VECTOR):
            body(self.i64(full * VECTOR + start), width)

    def peel_last(
        self, number: Expr, count: int, whole: Size, last: Size, emit: Callable[[Size], None]
    ) -> None:
        """Emit number `number` of `count`, of which all but the last are `whole`."""
        if count == 1 or whole == last:
            emit(last)
            return
        with self.block() as wide:
            emit(whole)
        with self.block() as rest:
            emit(last)
        self.branch(number < self.i64(count - 1), wide, rest)

    def when(self, condition: Expr, then: list[Expr]) -> None:
        """Emit a collected block that runs on a condition."""
        statement = self.tir.IfThenElse(condition, self._sequence(then), None)
        self._blocks[-1].statements.append(statement)

    @contextmanager
    def lanes(self, width: int) -> Iterator[Expr]:
        """Emit a vector loop, or for a width of 1 a loop of one turn."""
        if width == 1:
            with self.loop(self.i64(1)) as index:
                yield index
            return
        with self.vector(width) as lane:
            yield lane

    @contextmanager
    def each_vector(self, count: Expr, start: Expr | None = None) -> Iterator[tuple[Expr, Expr]]:
        """Emit a loop over whole vectors; yield where each begins, from `start` on, and a lane."""
        with self.loop(count) as number:
            offset = number * self.i64(VECTOR)
            at = self.share(offset if start is None else start + offset)
            with self.vector(VECTOR) as lane:
                yield at, lane

    def decode(self, unit: Expr, sizes: tuple[Extent, ...]) -> list[Expr]:
        """Return the coordinates of a unit in the product of `sizes`, the last one fastest."""
        result: list[Expr] = []
        left = self.share(unit)
        for size in reversed(sizes[1:]):
            count = self.extent(size)
            result.append(self.share(self.tir.floormod(left, count)))
            left = self.share(self.tir.floordiv(left, count))
        return [left, *reversed(result)]


def parts(width: int) -> list[tuple[int, int]]:
    """Return (start, size) of the powers of two, up to a vector, that make up a width."""
    result, start = [], 0
    for size in (VECTOR, 8, 4, 2, 1):
        if width - start >= size:
            result.append((start, size))
            start += size
    return result

"""A small emitter of TIR: statements in order, loops as context managers, values in registers.

A function has bare pointers and int64 sizes as parameters and the C calling convention; nothing of
TVM's run time is referred to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

# A TIR expression or buffer; tvm has no types that mypy could follow.
Expr: TypeAlias = Any
Buffer: TypeAlias = Any

# The C calling convention, as tvm::CallingConv numbers it.
_C_PACKED_FREE = 2


@dataclass(frozen=True)
class _Lanes:
    """The vector loop that statements are emitted into."""

    count: int
    index: Expr
    outside: list[Expr]  # the statements around the loop: lane-wide buffers are declared there


@dataclass
class Emitter:
    """One function in the making."""

    symbol: str
    tir: ModuleType = field(default_factory=lambda: import_module("tvm.tirx"))
    ir: ModuleType = field(default_factory=lambda: import_module("tvm.ir"))
    _parameters: list[Expr] = field(default_factory=list)
    _declarations: list[Expr] = field(default_factory=list)
    _blocks: list[list[Expr]] = field(default_factory=lambda: [[]])
    _lanes: list[_Lanes] = field(default_factory=list)
    _count: int = 0

    # ---- parameters and memory
    def pointer(self, name: str, dtype: str) -> Buffer:
        """Add a pointer parameter; index the buffer with element offsets."""
        parameter = self.tir.Var(f"{name}_pointer", self.ir.PointerType(self.ir.PrimType(dtype)))
        # The extent is never checked: accesses are flat offsets from the pointer.
        buffer = self.tir.decl_buffer((self.i64(2**40),), dtype, name=name)
        self._parameters.append(parameter)
        self._declarations.append(self.tir.DeclBuffer(buffer, data=parameter))
        return buffer

    def size(self, name: str) -> Expr:
        """Add an int64 parameter."""
        parameter = self.tir.Var(name, "int64")
        self._parameters.append(parameter)
        return parameter

    def store(self, buffer: Buffer, value: Expr, index: Expr) -> None:
        """Write one element (of every lane)."""
        self._blocks[-1].append(self.tir.BufferStore(buffer, value, [index]))

    def share(self, value: Expr) -> Expr:
        """Compute `value` once here; the result may be used any number of times.

        Through a local buffer as wide as the vector loop, which LLVM keeps in a register. A
        tirx.Bind is walked again and again by TVM's simplifier: 5.5 s for a GELU, against 16 ms.
        """
        dtype = self.dtype(value)
        if dtype == "bool":  # stored as bytes
            return self.tir.NE(self.share(self.select(value, self.u8(1), self.u8(0))), self.u8(0))
        lanes = self._lanes[-1] if self._lanes else _Lanes(1, self.i64(0), self._blocks[-1])
        buffer = self.tir.decl_buffer((lanes.count,), dtype, name=self._name("t"), scope="local")
        lanes.outside.append(self.tir.AllocBuffer(buffer))
        self.store(buffer, value, lanes.index)
        return buffer[lanes.index]

    # ---- loops
    @contextmanager
    def loop(self, extent: Expr) -> Iterator[Expr]:
        """Emit a serial loop over 0 .. extent - 1."""
        with self._for(extent, self.tir.ForKind.SERIAL) as index:
            yield index

    @contextmanager
    def vector(self, count: int) -> Iterator[Expr]:
        """Emit `count` lanes at once; yields the lane's number."""
        outside = self._blocks[-1]
        with self._for(self.i64(count), self.tir.ForKind.VECTORIZED) as lane:
            self._lanes.append(_Lanes(count, lane, outside))
            yield lane
            self._lanes.pop()

    @contextmanager
    def _for(self, extent: Expr, kind: Expr) -> Iterator[Expr]:
        index = self.tir.Var(self._name("i"), "int64")
        self._blocks.append([])
        yield index
        body = self._blocks.pop()
        self._blocks[-1].append(
            self.tir.For(index, self.i64(0), extent, kind, self._sequence(body))
        )

    @contextmanager
    def block(self) -> Iterator[list[Expr]]:
        """Collect statements aside, for `branch`."""
        self._blocks.append([])
        yield self._blocks[-1]
        self._blocks.pop()

    def branch(self, condition: Expr, then: list[Expr], otherwise: list[Expr]) -> None:
        """Emit one of two collected blocks."""
        statement = self.tir.IfThenElse(condition, self._sequence(then), self._sequence(otherwise))
        self._blocks[-1].append(statement)

    def function(self) -> Expr:
        """Return the finished function. No two of its pointers may overlap, unless only read."""
        body = self._sequence(self._declarations + self._blocks[0])
        return self.tir.PrimFunc(self._parameters, body, self.ir.PrimType("int32")).with_attrs(
            {
                "global_symbol": self.symbol,
                "self.tir.noalias": True,
                "calling_conv": _C_PACKED_FREE,
            }
        )

    # ---- expressions
    def constant(self, value: float | int | bool, dtype: str) -> Expr:
        """Return a constant of `dtype`."""
        return self.tir.const(value, dtype)

    def f32(self, value: float) -> Expr:
        """Return a float32 constant."""
        return self.tir.const(value, "float32")

    def i32(self, value: int) -> Expr:
        """Return an int32 constant."""
        return self.tir.const(value, "int32")

    def i64(self, value: int) -> Expr:
        """Return an int64 constant."""
        return self.tir.const(value, "int64")

    def u8(self, value: int) -> Expr:
        """Return a uint8 constant."""
        return self.tir.const(value, "uint8")

    def select(self, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
        """Return one of two values; both are computed."""
        return self.tir.Select(condition, then, otherwise)

    def negative(self, x: Expr) -> Expr:
        """Return -x; the sign of a floating zero flips too."""
        return x * self.tir.const(-1, self.dtype(x))

    def absolute(self, x: Expr) -> Expr:
        """Return |x|."""
        return self.tir.abs(x)

    def floor(self, x: Expr) -> Expr:
        """Return x rounded down."""
        return self.tir.floor(x)

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Convert the value; out of range is undefined."""
        return x.astype(dtype)

    def bitcast(self, x: Expr, dtype: str) -> Expr:
        """Reinterpret the bits."""
        return self.tir.reinterpret(dtype, x)

    def equal(self, a: Expr, b: Expr) -> Expr:
        """Return a == b."""
        return self.tir.EQ(a, b)

    def not_equal(self, a: Expr, b: Expr) -> Expr:
        """Return a != b; true where one is NaN. Not for x != x, which TVM folds to false."""
        return self.tir.NE(a, b)

    def is_nan(self, x: Expr) -> Expr:
        """Return whether x is NaN; false for integers."""
        return self.tir.isnan(x) if self.dtype(x) == "float32" else self.tir.const(False, "bool")

    def both(self, a: Expr, b: Expr) -> Expr:
        """Return a and b."""
        return self.tir.all(a, b)

    def either(self, a: Expr, b: Expr) -> Expr:
        """Return a or b."""
        return self.tir.any(a, b)

    def differ(self, a: Expr, b: Expr) -> Expr:
        """Return a xor b."""
        return self.tir.Select(a, self.tir.Not(b), b)

    def invert(self, a: Expr) -> Expr:
        """Return not a."""
        return self.tir.Not(a)

    def ceil(self, x: Expr) -> Expr:
        """Return x rounded up."""
        return self.tir.ceil(x)

    def round_half_even(self, x: Expr) -> Expr:
        """Return x rounded to the nearest integer, halves to even."""
        return self.tir.round(x)

    def sqrt(self, x: Expr) -> Expr:
        """Return the square root, correctly rounded."""
        return self.tir.sqrt(x)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        """Return the smaller integer."""
        return self.tir.min(a, b)

    def divide_up(self, a: Expr, by: int) -> Expr:
        """Return a / by rounded up, for a >= 0."""
        return self.tir.floordiv(a + self.i64(by - 1), self.i64(by))

    def dtype(self, x: Expr) -> str:
        """Return numpy's name of the element type."""
        return str(x.ty.dtype)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _sequence(self, statements: list[Expr]) -> Expr:
        return statements[0] if len(statements) == 1 else self.tir.SeqStmt(statements)

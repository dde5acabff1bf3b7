"""A small emitter of TIR: statements in order, loops as context managers, values in registers.

A function has bare pointers and int64 sizes as parameters and the C calling convention; nothing of
TVM's run time is referred to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

# A TIR expression or buffer; tvm has no types that mypy could follow.
Expr: TypeAlias = Any
Buffer: TypeAlias = Any

# Twice the width, for those whose operators may not overflow.
_WIDER = {"int32": "int64", "uint32": "uint64", "int64": "int128", "uint64": "uint128"}
# The C calling convention, as tvm::CallingConv numbers it.
_C_PACKED_FREE = 2
# How near to bring memory, as llvm.prefetch counts: to the first level of cache, or the second.
NEAREST, NEAR = 3, 2


@dataclass(frozen=True)
class _Lanes:
    """The vector loop that statements are emitted into."""

    count: int
    index: Expr
    outside: list[Expr]  # the statements around the loop: lane-wide buffers are declared there


@dataclass
class _Block:
    """The statements of one loop's body, and what is known to have been computed there."""

    statements: list[Expr] = field(default_factory=list)
    lanes: _Lanes | None = None
    known: dict[Hashable, Expr] = field(default_factory=dict)


@dataclass
class Emitter:
    """One function in the making."""

    symbol: str
    tir: ModuleType = field(default_factory=lambda: import_module("tvm.tirx"))
    ir: ModuleType = field(default_factory=lambda: import_module("tvm.ir"))
    may_alias: bool = False
    """Whether an output may lie where an input lies."""
    is_rough: bool = False
    """No functions are less exact here."""
    _parameters: list[Expr] = field(default_factory=list)
    _declarations: list[Expr] = field(default_factory=list)
    _blocks: list[_Block] = field(default_factory=lambda: [_Block()])
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

    def local(self, count: int, dtype: str) -> Buffer:
        """Declare an array on the stack, outside of the vector loop if there is one."""
        buffer = self.tir.decl_buffer((count,), dtype, name=self._name("t"), scope="local")
        block = self._blocks[-1]
        into = block.statements if block.lanes is None else block.lanes.outside
        into.append(self.tir.AllocBuffer(buffer))
        return buffer

    def store(self, buffer: Buffer, value: Expr, index: Expr) -> None:
        """Write one element (of every lane)."""
        self._blocks[-1].statements.append(self.tir.BufferStore(buffer, value, [index]))

    def prefetch(self, buffer: Buffer, index: Expr, nearness: int = NEAR) -> None:
        """Ask for the cache line of an element, which may lie outside of the buffer."""
        flags = (self.i32(0), self.i32(nearness), self.i32(1))  # to read; data
        address = self.tir.address_of(buffer[index])
        call = self.tir.call_intrin("void", "tirx.prefetch", address, *flags)
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

    def row(self, buffer: Buffer, start: int, count: int) -> Expr:
        """Return `count` elements as one vector; not in a vector loop."""
        return self.tir.BufferLoad(buffer, [self.tir.Ramp(self.i64(start), self.i64(1), count)])

    def store_row(self, buffer: Buffer, value: Expr, start: int, count: int) -> None:
        """Write one vector of `count` elements; not in a vector loop."""
        self.store(buffer, value, self.tir.Ramp(self.i64(start), self.i64(1), count))

    def share_row(self, value: Expr, count: int, dtype: str) -> Expr:
        """Compute one vector once here."""
        buffer = self.local(count, dtype)
        self.store_row(buffer, value, 0, count)
        return self.row(buffer, 0, count)

    def shuffled(self, a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
        """Return a vector of lanes of two others; those of `b` count on from those of `a`."""
        return self.tir.Shuffle([a, b], [self.i32(lane) for lane in lanes])

    def share(self, value: Expr) -> Expr:
        """Compute `value` once here; the result may be used any number of times.

        Through a local buffer as wide as the vector loop, which LLVM keeps in a register. A
        tirx.Bind is walked again and again by TVM's simplifier: 5.5 s for a GELU, against 16 ms.
        """
        dtype = self.dtype(value)
        if dtype == "bool":  # stored as bytes
            return self.tir.NE(self.share(self.select(value, self.u8(1), self.u8(0))), self.u8(0))
        buffer, lane = self.variable(dtype)
        self.store(buffer, value, lane)
        return buffer[lane]

    def variable(self, dtype: str) -> tuple[Buffer, Expr]:
        """Declare a value that may be written again: a buffer, and where this lane's is in it."""
        lanes = self._blocks[-1].lanes
        if lanes is None:
            return self.local(1, dtype), self.i64(0)
        return self.local(lanes.count, dtype), lanes.index

    # ---- where statements go
    @property
    def level(self) -> int:
        """How many loops and branches the current statement stands in."""
        return len(self._blocks) - 1

    @property
    def known(self) -> dict[Hashable, Expr]:
        """What was computed in the current block; it can be used until the block ends."""
        return self._blocks[-1].known

    @contextmanager
    def at(self, level: int) -> Iterator[None]:
        """Emit into the open block of that level, before the loop that stands open in it."""
        inner = self._blocks[level + 1 :]
        del self._blocks[level + 1 :]
        yield
        self._blocks += inner

    # ---- loops
    @contextmanager
    def loop(self, extent: Expr) -> Iterator[Expr]:
        """Emit a serial loop over 0 .. extent - 1."""
        with self._for(extent, self.tir.ForKind.SERIAL, self._blocks[-1].lanes) as index:
            yield index

    @contextmanager
    def unrolled(self, count: int) -> Iterator[Expr]:
        """Emit the body `count` times."""
        kind = self.tir.ForKind.UNROLLED
        with self._for(self.i64(count), kind, self._blocks[-1].lanes) as index:
            yield index

    @contextmanager
    def vector(self, count: int) -> Iterator[Expr]:
        """Emit `count` lanes at once; yields the lane's number."""
        index = self.tir.Var(self._name("i"), "int64")
        lanes = _Lanes(count, index, self._blocks[-1].statements)
        with self._for(self.i64(count), self.tir.ForKind.VECTORIZED, lanes, index):
            yield index

    @contextmanager
    def _for(
        self, extent: Expr, kind: Expr, lanes: _Lanes | None, index: Expr | None = None
    ) -> Iterator[Expr]:
        index = self.tir.Var(self._name("i"), "int64") if index is None else index
        self._blocks.append(_Block(lanes=lanes))
        yield index
        body = self._blocks.pop().statements
        if body:
            statement = self.tir.For(index, self.i64(0), extent, kind, self._sequence(body))
            self._blocks[-1].statements.append(statement)

    @contextmanager
    def block(self) -> Iterator[list[Expr]]:
        """Collect statements aside, for `branch`."""
        self._blocks.append(_Block(lanes=self._blocks[-1].lanes))
        yield self._blocks[-1].statements
        self._blocks.pop()

    def branch(self, condition: Expr, then: list[Expr], otherwise: list[Expr]) -> None:
        """Emit one of two collected blocks."""
        statement = self.tir.IfThenElse(condition, self._sequence(then), self._sequence(otherwise))
        self._blocks[-1].statements.append(statement)

    def function(self) -> Expr:
        """Return the finished function. Unless `may_alias`, no output may overlap an input."""
        body = self._sequence(self._declarations + self._blocks[0].statements)
        return self.tir.PrimFunc(self._parameters, body, self.ir.PrimType("int32")).with_attrs(
            {
                "global_symbol": self.symbol,
                "tirx.noalias": not self.may_alias,
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

    def add(self, a: Expr, b: Expr) -> Expr:
        """Return a + b; integers wrap around, which with the operator + they must not."""
        return self._wrapping(lambda a, b: a + b, a, b)

    def subtract(self, a: Expr, b: Expr) -> Expr:
        """Return a - b; integers wrap around."""
        return self._wrapping(lambda a, b: a - b, a, b)

    def multiply(self, a: Expr, b: Expr) -> Expr:
        """Return a b; integers wrap around."""
        return self._wrapping(lambda a, b: a * b, a, b)

    def _wrapping(self, operator: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        # TVM promises LLVM that no operator on 32 or 64 bits overflows, and LLVM goes by it. Of
        # twice the width LLVM keeps the half that is asked for, and no promise.
        wider = _WIDER.get(self.dtype(a))
        if wider is None:
            return operator(a, b)
        return operator(a.astype(wider), b.astype(wider)).astype(self.dtype(a))

    def fence(self, x: Expr) -> Expr:
        """Return x, a floating-point number that is not fused with what is computed from it.

        LLVM makes one operation of a b - c, rounded once: where c is the largest of all a b, the
        difference is then not 0 at the largest, but what rounding a b took away.
        """
        name = "llvm.arithmetic.fence"
        return self.tir.call_llvm_pure_intrin(self.dtype(x), name, x)

    def negative(self, x: Expr) -> Expr:
        """Return -x; the sign of a floating zero flips too, and the lowest integer stays."""
        if self.dtype(x).startswith("float"):
            return x * self.tir.const(-1, self.dtype(x))
        return self.subtract(self.tir.const(0, self.dtype(x)), x)

    def absolute(self, x: Expr) -> Expr:
        """Return |x|; the lowest integer stays."""
        if self.dtype(x).startswith("float"):
            return self.tir.abs(x)
        return self.tir.Select(x < self.tir.const(0, self.dtype(x)), self.negative(x), x)

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
        """Return a != b; true where one is NaN."""
        if not self.dtype(a).startswith("float"):
            return self.tir.NE(a, b)
        # TVM's own is false where one is NaN, and folds x != x.
        return self.tir.any(self.tir.NE(a, b), self.is_nan(a), self.is_nan(b))

    def is_nan(self, x: Expr) -> Expr:
        """Return whether x is NaN; false for integers."""
        if self.dtype(x).startswith("float"):
            return self.tir.isnan(x)
        return self.tir.const(False, "bool")

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

    def power_of_two(self, x: Expr) -> Expr | None:  # noqa: ARG002
        """Return None: there is no instruction for 2^x."""
        return None

    def sqrt(self, x: Expr) -> Expr:
        """Return the square root, correctly rounded."""
        return self.tir.sqrt(x)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        """Return the smaller integer."""
        return self.tir.min(a, b)

    def divide_up(self, a: Expr, by: int) -> Expr:
        """Return a / by rounded up, for a >= 0."""
        return self.tir.truncdiv(a + self.i64(by - 1), self.i64(by))

    def divide_down(self, a: Expr, by: Expr | int) -> Expr:
        """Return a / by rounded down, for a >= 0 and by > 0."""
        return self.tir.truncdiv(a, self.i64(by) if isinstance(by, int) else by)

    def lowest(self, dtype: str) -> Expr:
        """Return the smallest number of an integer type."""
        return self.tir.min_value(dtype)

    def highest(self, dtype: str) -> Expr:
        """Return the largest number of an integer type."""
        return self.tir.max_value(dtype)

    def truncated_quotient(self, a: Expr, b: Expr) -> Expr:
        """Return a / b of integers, rounded toward 0; b is neither 0, nor -1 for the lowest a."""
        return self.tir.truncdiv(a, b)

    def truncated_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return what is left of a then: it has the sign of a."""
        return self.tir.truncmod(a, b)

    def floored_remainder(self, a: Expr, b: Expr) -> Expr:
        """Return what is left of a when a / b is rounded down: it has the sign of b."""
        return self.tir.floormod(a, b)

    def dtype(self, x: Expr) -> str:
        """Return numpy's name of the element type."""
        return str(x.ty.dtype)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _sequence(self, statements: list[Expr]) -> Expr:
        return statements[0] if len(statements) == 1 else self.tir.SeqStmt(statements)

"""Dynamic quantization of a tensor to uint8: its extremes, then its numbers.

A region is `DynamicQuantizeLinear(x)`, where x is float32, or bfloat16 that a Cast widens. Results
are those of ONNX Runtime's kernel to the bit.

Each slice of units looks for the extremes of the whole tensor itself: they stand in no order in
which units would have to run.

A quotient of vectors takes 16 cycles and decides the time (Emerald Rapids, 2026-11-29). Here it is
a product with the reciprocal that two steps correct: q += r (x - q s), with r = 1 / s. After the
first q is next to x / s, and after the second it is x / s correctly rounded (Markstein, 1990).
That holds while nothing but quotients near 0 underflows; for other scales numbers are divided.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused

from ...forms.body import Body
from ...forms.casts import wide_input
from ..tile.registers import VECTOR
from .int8 import LEVELS
from .int8_emitter import Int8Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# Extremes of lanes are kept side by side, four times 8 as in ONNX Runtime's kernel.
_LANES, _SIDE_BY_SIDE = 8, 4
# Numbers that units are cut between.
_BLOCK = 64
# Scales beyond these are divided by.
_LEAST_SCALE, _MOST_SCALE = 2.0**-100, 2.0**100
# Whether a number lies beyond what is known, at the lower and the upper end.
_ENDS = (operator.lt, operator.gt)
# The least and the largest of 8 numbers, and of 32 those of 8 lanes: of halves, halves of these,
# and so on.
_NAMES = ("ortkit_least", "ortkit_largest")


def _of_halves(name: str, comparison: str, lanes: int, left: int) -> str:
    """Return a function that makes `left` numbers of `lanes`."""
    lines, last, widths = [], "x", [lanes >> step for step in range(1, lanes.bit_length())]
    for width in (width for width in widths if width >= left):
        whole, kind = f"<{2 * width} x float>", f"<{width} x float>"
        for part, first in (("low", 0), ("high", width)):
            positions = ", ".join(f"i32 {first + lane}" for lane in range(width))
            lines.append(
                f"  %{part}{width} = shufflevector {whole} %{last}, {whole} poison,"
                f" <{width} x i32> <{positions}>"
            )
        low, high = f"%low{width}", f"%high{width}"
        lines.append(f"  %is{width} = fcmp {comparison} {kind} {low}, {high}")
        choice = f"select <{width} x i1> %is{width}, {kind} {low}, {kind} {high}"
        lines.append(f"  %of{width} = {choice}")
        last = f"of{width}"
    kind = f"<{left} x float>"
    if left == 1:
        lines.append(f"  %one = extractelement {kind} %{last}, i32 0")
        kind, last = "float", "one"
    body = "\n".join(lines)
    return f"""
define internal {kind} @{name}{lanes}(<{lanes} x float> %x) alwaysinline {{
{body}
  ret {kind} %{last}
}}
"""


_LLVM = "".join(
    _of_halves(name, comparison, lanes, left)
    for name, comparison in zip(_NAMES, ("olt", "ogt"), strict=True)
    for lanes, left in ((2 * _LANES, _LANES), (_LANES, 1))
)
# Units that a tensor is cut into.
_UNITS = 32
# Of a number: to round it, and to look at it once more.
_PICOSECONDS, _PICOSECONDS_TO_LOOK = 120, 45
# One thread of an Emerald Rapids, 2026-11-29, a number: ONNX Runtime's kernel, and ours.
_RUNTIME_NS, _OURS_NS = 0.34, 0.24


@dataclass(frozen=True)
class DynamicQuantize:
    """One tensor: the region's only input."""

    signature: RegionSignature

    @property
    def _count(self) -> Extent:
        return product(map(extent_of, self.signature.inputs[0].shape))

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level not in LEVELS:
            return Refused(f"dynamic quantization for processors of level {level}")
        return None

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds, ONNX Runtime's and ours."""
        del level
        count = self._count.at(NOMINAL_SIZE)
        return count * _RUNTIME_NS, count * _OURS_NS

    def launch(self, level: str) -> Launch:
        """Units are parts of the tensor."""
        del level
        count = self._count
        if count.static is not None:
            count = Extent(-(-count.static // _UNITS))
        looks = _PICOSECONDS_TO_LOOK * (_UNITS if self._count.static is not None else 1)
        each = _PICOSECONDS if self._count.static is not None else _PICOSECONDS // _UNITS
        return Launch((Extent(_UNITS),), count, max(1, each), slice_picoseconds=looks)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        return _Writer(self, symbol, level).function()


class _Emitter(Int8Emitter):
    @property
    def llvm(self) -> tuple[str, ...]:
        return (*super().llvm, _LLVM)


class _Ends:
    """The least and the largest number of each lane, 0 at first."""

    def __init__(self, e: Int8Emitter, lanes: int, dtype: str) -> None:
        self.e, self.lanes, self.dtype = e, lanes, dtype
        self.buffers = [e.local(lanes, dtype) for _ in _ENDS]
        for each in self.buffers:
            e.store_row(each, e.tir.Broadcast(e.constant(0, dtype), lanes), 0, lanes)

    @property
    def known(self) -> list[Expr]:
        """What they are, float32."""
        kind = f"float32x{self.lanes}"
        return [
            self.e.tir.reinterpret(kind, self.e.row(each, 0, self.lanes)) for each in self.buffers
        ]

    def keep(self, ends: Sequence[Expr]) -> None:
        """Emit that they are these, whatever they were."""
        for each, end in zip(self.buffers, ends, strict=True):
            bits = self.e.tir.reinterpret(f"{self.dtype}x{self.lanes}", end)
            self.e.store_row(each, bits, 0, self.lanes)

    def look(self, others: Sequence[Expr]) -> None:
        """Emit a look at further numbers, of which there are two for each lane."""
        self.keep(
            [
                self.e.select(is_beyond(known, x), known, x)
                for known, x, is_beyond in zip(self.known, others, _ENDS, strict=True)
            ]
        )


class _Writer:
    """One kernel in the making."""

    def __init__(self, of: DynamicQuantize, symbol: str, level: str) -> None:
        self.e = e = _Emitter(symbol, processor=level)
        (self.x, *self.results), self.begin, self.end = e.parameters(of.signature)
        self.dtype = of.signature.inputs[0].dtype
        self.count = e.share(e.extent(of._count))

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e = self.e
        scale, zero = self._grid()
        e.store(self.results[1], scale, e.i64(0))
        e.store(self.results[2], e.cast(zero, "uint8"), e.i64(0))
        blocks = e.share(e.divide_up(self.count, _BLOCK))
        first, last = (
            e.share(e.divide_down(number * blocks, _UNITS) * e.i64(_BLOCK))
            for number in (self.begin, self.end)
        )
        last = e.share(e.minimum(last, self.count))
        with e.block() as fast:
            reciprocal = e.share(e.f32(1.0) / scale)
            self._round(first, last, zero, lambda x: self._quotient(x, scale, reciprocal))
        with e.block() as slow:
            self._round(first, last, zero, lambda x: x / self._all(scale))
        is_usual = e.both(scale > e.f32(_LEAST_SCALE), scale < e.f32(_MOST_SCALE))
        e.branch(is_usual, fast, slow)
        return e.function()

    def _grid(self) -> tuple[Expr, Expr]:
        """Emit what the numbers stand for: the scale, and the zero point as float32."""
        e = self.e
        low, high = self._extremes()
        span = e.share(high - low)
        scale = e.share(e.select(e.equal(high, low), e.f32(1.0), span / e.f32(255.0)))
        zero = e.share(e.f32(0.0) - low / scale)
        # In this order: what is no number becomes 255, as in ONNX Runtime.
        zero = e.share(e.select(zero < e.f32(255.0), zero, e.f32(255.0)))
        zero = e.share(e.select(zero > e.f32(0.0), zero, e.f32(0.0)))
        return scale, e.share(e.round_half_even(zero))

    def _extremes(self) -> tuple[Expr, Expr]:
        """Emit the least and the largest number of the tensor and 0.

        What is no number makes a lane forget what was before: the order is ONNX Runtime's.
        """
        e, size = self.e, _LANES * _SIDE_BY_SIDE
        blocks = e.share(e.divide_down(self.count, size))
        # Not as float32: TVM (0.27) lays numbers of one type side by side, and vectors behind
        # single numbers are then moved about lane by lane. Of 16 lanes, as LLVM makes such of
        # the extremes of 8, and takes them apart again.
        pairs = [_Ends(e, 2 * _LANES, "int32") for _ in range(_SIDE_BY_SIDE // 2)]
        with e.loop(blocks) as number:
            for half, ends in enumerate(pairs):
                at = e.share(number * e.i64(size) + e.i64(half * 2 * _LANES))
                ends.look([self._read(at, 2 * _LANES)] * 2)
        kept = _Ends(e, _LANES, "uint32")
        for number, ends in enumerate(pairs):
            halves = [
                e.tir.call_extern(f"float32x{_LANES}", f"{name}{2 * _LANES}", each)
                for name, each in zip(_NAMES, ends.known, strict=True)
            ]
            kept.look(halves) if number else kept.keep(halves)
        first = e.share(blocks * e.i64(size))
        vectors = e.share(e.divide_down(self.count - first, _LANES))
        with e.loop(vectors) as number:
            kept.look([self._read(e.share(first + number * e.i64(_LANES)), _LANES)] * 2)
        rest = e.share(first + vectors * e.i64(_LANES))
        low, high = (
            self._of_rest(e.tir.call_extern("float32", f"{name}{_LANES}", each), rest, is_beyond)
            for each, name, is_beyond in zip(kept.known, _NAMES, _ENDS, strict=True)
        )
        return low, high

    def _of_rest(self, found: Expr, rest: Expr, is_beyond: Callable[[Expr, Expr], Expr]) -> Expr:
        """Emit the farthest of what was found, of the numbers behind all vectors, and of 0."""
        e, best, first = self.e, self.e.scratch(1), self.e.i64(0)
        e.store(best, found, first)
        with e.loop(self.count - rest) as index:
            x, known = e.share(self._read(rest + index, 1)), best[first]
            e.store(best, e.select(is_beyond(x, known), x, known), first)
        zero, known = e.f32(0.0), e.share(best[first])
        return e.share(e.select(is_beyond(zero, known), zero, known))

    def _round(
        self, first: Expr, last: Expr, zero: Expr, quotient: Callable[[Expr], Expr]
    ) -> None:
        """Emit the numbers of a part of the tensor."""
        e = self.e
        low, high = self._all(e.f32(0.0) - zero), self._all(e.f32(255.0) - zero)
        whole = self._all(e.cast(zero, "int32"))
        vectors = e.share(e.divide_down(last - first, VECTOR))

        def some(at: Expr, x: Expr, lanes: int) -> None:
            found = e.nearest_within(quotient(x), low, high) + whole
            e.put_sixteen(self.results[0], at, found, lanes, "uint8")

        with e.loop(vectors) as number:
            at = e.share(first + number * e.i64(VECTOR))
            some(at, e.share_row(self._read(at, VECTOR), VECTOR, "float32"), VECTOR)
        rest = e.share(first + vectors * e.i64(VECTOR))
        with e.loop(last - rest) as index:
            at = e.share(rest + index)
            some(at, e.share_row(self._all(self._read(at, 1)), VECTOR, "float32"), 1)

    def _quotient(self, x: Expr, scale: Expr, reciprocal: Expr) -> Expr:
        """Return x / scale; see above."""
        e, by = self.e, self._all(reciprocal)
        negative = self._all(e.f32(0.0) - scale)
        found = e.share_row(x * by, VECTOR, "float32")
        for _ in range(2):
            left = e.fused(found, negative, x)
            found = e.share_row(e.fused(left, by, found), VECTOR, "float32")
        return found

    def _read(self, at: Expr, lanes: int) -> Expr:
        """Return neighbours as float32."""
        e = self.e
        part = e.part(self.x, at, lanes)
        if self.dtype == "float32":
            return part
        kind = "" if lanes == 1 else f"x{lanes}"
        wide = e.cast(part, f"uint32{kind}")
        bits = e.constant(16, "uint32")
        shift = bits if lanes == 1 else e.tir.Broadcast(bits, lanes)
        return e.tir.reinterpret(f"float32{kind}", e.tir.shift_left(wide, shift))

    def _all(self, number: Expr) -> Expr:
        return self.e.tir.Broadcast(number, VECTOR)


def match(signature: RegionSignature) -> DynamicQuantize | Refused | None:
    """Return the region as the quantization of a tensor; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("DynamicQuantizeLinear")
    if not nodes:
        return None
    (node, *others), outputs = nodes, [*body.function.output]
    if others or len(body.function.node) > 2 or len(signature.inputs) != 1:
        return Refused("dynamic quantization with more around it")
    if outputs != [*node.output] or len(outputs) != 3 or wide_input(body, node.input[0]) is None:
        return Refused("dynamic quantization of another form")
    return DynamicQuantize(signature)


#: What a Cast widens from bfloat16 is read as it is.
ANCHOR = Anchor(
    "dynamic_quantize", match, (("", "DynamicQuantizeLinear"),), before={0: ("Cast?",)},
    epilogue=frozenset(), must_pay=True,
)  # fmt: skip

"""The emitter with exact int8 dot products: int32, whatever the operands are.

VNNI adds up four products in one instruction. Without it bytes become 16 bits and pairs of
products are added up (pmaddwd), which no operands saturate: sums of two lie in 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.targets.cpu import has_vnni

from ..tile.registers import VECTOR
from .nbits_emitter import BYTES, NBitsEmitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


_PAIRS = f"uint16x{2 * VECTOR}"


def _numbers(first: int, count: int, step: int = 1) -> str:
    lanes = ", ".join(f"i32 {first + step * lane}" for lane in range(count))
    return f"<{count} x i32> <{lanes}>"


def _pairs(width: int, instruction: str) -> str:
    """Return functions for pairs of 16 bits in vectors of `width` of them."""
    half, parts = width // 2, 2 * VECTOR // width
    lines = [
        f"declare <{half} x i32> @{instruction}(<{width} x i16>, <{width} x i16>)",
        "define internal <16 x i32> @ortkit_pairs(<16 x i32> %sum, <32 x i16> %a, <32 x i16> %w)"
        " alwaysinline {",
    ]
    for part in range(parts):
        lanes = _numbers(part * width, width)
        lines += [
            f"  %{name}{part} = shufflevector <32 x i16> %{name}, <32 x i16> poison, {lanes}"
            for name in "aw"
        ]
        lines.append(
            f"  %p{part} = call <{half} x i32> @{instruction}(<{width} x i16> %a{part},"
            f" <{width} x i16> %w{part})"
        )
    whole = "%p0"
    if parts == 2:
        whole = "%both"
        lines.append(
            "  %both = shufflevector <8 x i32> %p0, <8 x i32> %p1, " + _numbers(0, VECTOR)
        )
    lines += [f"  %new = add <16 x i32> %sum, {whole}", "  ret <16 x i32> %new", "}"]
    # The second byte of four comes last: an arithmetic shift then widens pairs where they lie.
    lanes = ", ".join(f"i32 {4 * (at // 4) + (0, 2, 1, 3)[at % 4]}" for at in range(BYTES))
    for name, steps in (("first", ("shl", "ashr")), ("second", ("ashr",))):
        lines += [
            f"define internal <32 x i16> @ortkit_{name}_pair(<64 x i8> %x) alwaysinline {{",
            f"  %y = shufflevector <64 x i8> %x, <64 x i8> poison, <64 x i32> <{lanes}>",
            "  %z0 = bitcast <64 x i8> %y to <32 x i16>",
        ]
        for number, step in enumerate(steps):
            lines.append(f"  %z{number + 1} = {step} <32 x i16> %z{number}, splat (i16 8)")
        lines += [f"  ret <32 x i16> %z{len(steps)}", "}"]
    return "\n".join([*lines, ""])


#: Weights of 7 bits, -64 .. 64: 255 by two of them fit 16 bits.
_NARROW = """
declare <64 x i8> @llvm.smax.v64i8(<64 x i8>, <64 x i8>)
declare <64 x i8> @llvm.smin.v64i8(<64 x i8>, <64 x i8>)
define internal <64 x i8> @ortkit_narrow(<64 x i8> %x) alwaysinline {
  %y = call <64 x i8> @llvm.smax.v64i8(<64 x i8> %x, <64 x i8> splat (i8 -64))
  %z = call <64 x i8> @llvm.smin.v64i8(<64 x i8> %y, <64 x i8> splat (i8 64))
  ret <64 x i8> %z
}
"""


def _unpacked(name: str, width: int, lane: int, first: int) -> str:
    """Return a shuffle of two vectors: neighbours of each 128 bits from `first` on, in turn."""
    lanes = ", ".join(
        f"i32 {block * lane + first + at // 2 + (at % 2) * width}"
        for block in range(width // lane)
        for at in range(lane)
    )
    return f"{name}, <{width} x i32> <{lanes}>"


def _interleaved(width: int) -> str:
    """Return functions that put four vectors of bytes side by side, part by part of 128 bits."""
    words, parts = width // 2, []
    for part in range(4):
        half, quarter = part // 2, part % 2
        lines = [
            f"define internal <{width} x i8> @ortkit_mixed{width}_{part}(<{width} x i8> %a,"
            f" <{width} x i8> %b, <{width} x i8> %c, <{width} x i8> %d) alwaysinline {{"
        ]
        for name, (one, other) in (("x", "ab"), ("y", "cd")):
            operands = f"<{width} x i8> %{one}, <{width} x i8> %{other}"
            lines += [
                f"  %{name} = shufflevector {_unpacked(operands, width, 16, half * 8)}",
                f"  %{name}w = bitcast <{width} x i8> %{name} to <{words} x i16>",
            ]
        operands = f"<{words} x i16> %xw, <{words} x i16> %yw"
        lines += [
            f"  %z = shufflevector {_unpacked(operands, words, 8, quarter * 4)}",
            f"  %result = bitcast <{words} x i16> %z to <{width} x i8>",
            f"  ret <{width} x i8> %result",
            "}",
        ]
        parts.append("\n".join([*lines, ""]))
    return "".join(parts)


def _blocks(number: int) -> str:
    """Return the function of the given blocks of 128 bits of four vectors of int32."""

    def shuffle(name: str, a: str, b: str, *, odd: bool) -> str:
        positions = [4 * block + lane for block in (1, 3) for lane in range(4)]
        positions = positions if odd else [position - 4 for position in positions]
        lanes = ", ".join(
            f"i32 {position}" for position in (*positions, *(16 + p for p in positions))
        )
        kind = "<16 x i32>"
        return f"  %{name} = shufflevector {kind} %{a}, {kind} %{b}, {kind} <{lanes}>"

    return "\n".join(
        [
            f"define internal <16 x i32> @ortkit_blocks{number}(<16 x i32> %a, <16 x i32> %b,"
            " <16 x i32> %c, <16 x i32> %d) alwaysinline {",
            shuffle("x", "a", "b", odd=bool(number % 2)),
            shuffle("y", "c", "d", odd=bool(number % 2)),
            shuffle("result", "x", "y", odd=number > 1),
            "  ret <16 x i32> %result",
            "}",
            "",
        ]
    )


#: Four bytes of each of 16 lanes, of four vectors of 16.
_MIXED = f"""{_interleaved(16)}
define internal <64 x i8> @ortkit_mixed16(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d) alwaysinline {{
  %p = call <16 x i8> @ortkit_mixed16_0(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d)
  %q = call <16 x i8> @ortkit_mixed16_1(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d)
  %r = call <16 x i8> @ortkit_mixed16_2(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d)
  %s = call <16 x i8> @ortkit_mixed16_3(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d)
  %low = shufflevector <16 x i8> %p, <16 x i8> %q, {_numbers(0, 32)}
  %high = shufflevector <16 x i8> %r, <16 x i8> %s, {_numbers(0, 32)}
  %result = shufflevector <32 x i8> %low, <32 x i8> %high, {_numbers(0, 64)}
  ret <64 x i8> %result
}}
{_interleaved(64)}{"".join(map(_blocks, range(4)))}"""  # noqa: E501
_AVX2 = _pairs(16, "llvm.x86.avx2.pmadd.wd")
_AVX512 = _pairs(32, "llvm.x86.avx512.pmaddw.d.512")
_FUNCTIONS = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float>)
define internal <16 x float> @ortkit_fma(<16 x float> %a, <16 x float> %b, <16 x float> %c) alwaysinline {
  %result = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %result
}
define internal <16 x float> @ortkit_fence(<16 x float> %x) alwaysinline {
  %result = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %x)
  ret <16 x float> %result
}
define internal <16 x i32> @ortkit_whole(<16 x i32> %x) alwaysinline {
  %bits = bitcast <16 x i32> %x to <16 x float>
  %same = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %bits)
  %result = bitcast <16 x float> %same to <16 x i32>
  ret <16 x i32> %result
}
"""  # noqa: E501


def _lookup() -> str:
    """Return the function that reads a table of 256 bytes: as 128 pairs, of which one half."""
    first = ", ".join(f"i32 {min(lane, VECTOR)}" for lane in range(2 * VECTOR))
    low, words = _numbers(0, VECTOR), "<32 x i16>"
    permute = "@llvm.x86.avx512.vpermi2var.hi.512"
    lines = [
        f"declare {words} {permute}({words}, {words}, {words})",
        "define internal <16 x i32> @ortkit_lookup(<16 x i32> %q, ptr %table) alwaysinline {",
        "  %pair = lshr <16 x i32> %q, splat (i32 1)",
        "  %narrow = trunc <16 x i32> %pair to <16 x i16>",
        "  %at = shufflevector <16 x i16> %narrow, <16 x i16> zeroinitializer,"
        f" <32 x i32> <{first}>",
    ]
    for part in range(4):
        lines += [
            f"  %p{part} = getelementptr i8, ptr %table, i64 {64 * part}",
            f"  %t{part} = load {words}, ptr %p{part}, align 1",
        ]
    for name, part in (("a", 0), ("b", 2)):
        lines += [
            f"  %{name}w = call {words} {permute}({words} %t{part}, {words} %at,"
            f" {words} %t{part + 1})",
            f"  %{name} = shufflevector {words} %{name}w, {words} poison, {low}",
        ]
    lines += [
        "  %is_low = icmp ult <16 x i32> %q, splat (i32 128)",
        "  %both = select <16 x i1> %is_low, <16 x i16> %a, <16 x i16> %b",
        "  %wide = zext <16 x i16> %both to <16 x i32>",
        "  %odd = and <16 x i32> %q, splat (i32 1)",
        "  %by = shl <16 x i32> %odd, splat (i32 3)",
        "  %moved = lshr <16 x i32> %wide, %by",
        "  %byte = and <16 x i32> %moved, splat (i32 255)",
        "  ret <16 x i32> %byte",
        "}",
        "",
    ]
    return "\n".join(lines)


def _nearest_within(width: int, minimum: str, maximum: str, convert: str) -> str:
    """Return the function that rounds 16 float32 in a range, in vectors of `width`.

    As one instruction each: what LLVM makes of the general ones is twice as many.
    """
    parts, floats, whole = VECTOR // width, f"<{width} x float>", f"<{width} x i32>"
    is_wide = width == VECTOR
    rounding = ", i32 4" if is_wide else ""
    lines = [
        f"declare {floats} @{minimum}({floats}, {floats}{', i32' if is_wide else ''})",
        f"declare {floats} @{maximum}({floats}, {floats}{', i32' if is_wide else ''})",
        f"declare {whole} @{convert}({floats}{f', {whole}, i16, i32' if is_wide else ''})",
        "define internal <16 x i32> @ortkit_nearest_within(<16 x float> %x, <16 x float> %low,"
        " <16 x float> %high) alwaysinline {",
    ]
    for part in range(parts):
        lines += [
            f"  %{name}{part} = shufflevector <16 x float> %{name}, <16 x float> poison,"
            f" {_numbers(part * width, width)}"
            for name in ("x", "low", "high")
        ]
        rest = f", {whole} zeroinitializer, i16 -1, i32 4" if is_wide else ""
        lines += [
            f"  %a{part} = call {floats} @{maximum}({floats} %x{part}, {floats} %low{part}"
            f"{rounding})",
            f"  %b{part} = call {floats} @{minimum}({floats} %a{part}, {floats} %high{part}"
            f"{rounding})",
            f"  %r{part} = call {whole} @{convert}({floats} %b{part}{rest})",
        ]
    if is_wide:
        return "\n".join([*lines, "  ret <16 x i32> %r0", "}", ""])
    both = f"  %both = shufflevector {whole} %r0, {whole} %r1, {_numbers(0, VECTOR)}"
    return "\n".join([*lines, both, "  ret <16 x i32> %both", "}", ""])


_NEAREST_AVX2 = _nearest_within(
    8, "llvm.x86.avx.min.ps.256", "llvm.x86.avx.max.ps.256", "llvm.x86.avx.cvt.ps2dq.256"
)
_NEAREST_AVX512 = _nearest_within(
    16, "llvm.x86.avx512.min.ps.512", "llvm.x86.avx512.max.ps.512",
    "llvm.x86.avx512.mask.cvtps2dq.512",
)  # fmt: skip


_LLVM_TYPES = {"uint8": "i8", "int32": "i32", "float32": "float"}


def _some(kind: str) -> str:
    """Return functions that read and write the first of 16 neighbours: one instruction each.

    Lanes that are copied one by one make what reads all of them wait for the writes.
    """
    whole, name = f"<16 x {kind}>", "v16" + ("f32" if kind == "float" else kind)
    numbers = _numbers(0, VECTOR)
    mask = f"""  %one = insertelement <16 x i32> poison, i32 %count, i32 0
  %all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %mask = icmp ult {numbers}, %all"""
    return f"""
declare {whole} @llvm.masked.load.{name}.p0(ptr, i32, <16 x i1>, {whole})
declare void @llvm.masked.store.{name}.p0({whole}, ptr, i32, <16 x i1>)
define internal {whole} @ortkit_some_{kind}(ptr %p, i32 %count) alwaysinline {{
{mask}
  %x = call {whole} @llvm.masked.load.{name}.p0(ptr %p, i32 1, <16 x i1> %mask, {whole} zeroinitializer)
  ret {whole} %x
}}
define internal i32 @ortkit_put_some_{kind}(ptr %p, {whole} %x, i32 %count) alwaysinline {{
{mask}
  call void @llvm.masked.store.{name}.p0({whole} %x, ptr %p, i32 1, <16 x i1> %mask)
  ret i32 0
}}
define internal i32 @ortkit_put_first_{kind}(ptr %p, {whole} %x) alwaysinline {{
  %first = extractelement {whole} %x, i32 0
  store {kind} %first, ptr %p, align 1
  ret i32 0
}}
"""  # noqa: E501


_SOME = "".join(map(_some, _LLVM_TYPES.values()))


@dataclass
class Int8Emitter(NBitsEmitter):
    """One kernel for a level of processors from AVX2 on."""

    is_narrow: bool = False
    """Whether weights are within -64 .. 64."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        pairs = _AVX512 if self.has_avx512 else _AVX2
        lookup = (_lookup(), _NEAREST_AVX512) if self.has_avx512 else (_NEAREST_AVX2,)
        own = (_MIXED,) if self.has_vnni else (_NARROW, pairs)
        return (*super().llvm, _FUNCTIONS, _SOME, *lookup, *own)

    @property
    def has_avx512(self) -> bool:
        """Whether vectors have 64 bytes."""
        return "-v4" in self.processor

    @property
    def has_vnni(self) -> bool:
        """Whether the processor adds up four products at once, whatever they are."""
        return has_vnni(self.processor)

    @property
    def has_dot4(self) -> bool:
        """Whether four products are added up at once: by VNNI, or as two of them fit 16 bits."""
        return self.is_narrow or self.has_vnni

    def narrow(self, weights: Expr) -> Expr:
        """Return 64 bytes of int8 cut to -64 .. 64."""
        return self.tir.call_extern("uint8x64", "ortkit_narrow", weights)

    def begin_sum(self, start: Expr | None = None) -> Buffer:
        """Declare the sums of 16 columns: 0, or what is given."""
        total = self.local(VECTOR, "int32")
        zero = self.tir.Broadcast(self.i32(0), VECTOR)
        self.store_row(total, zero if start is None else start, 0, VECTOR)
        return total

    def add_fours(self, total: Buffer, four: Expr, weights: Expr) -> None:
        """Add to the sums of 16 columns.

        Args:
            total: The sums.
            four: Neighbours along K of a row, uint8, as one uint32.
            weights: Those of 16 columns, int8 in 64 bytes.
        """
        new = self.dot4(self.sums(total), self.everywhere(four), weights)
        self.store_row(total, new, 0, VECTOR)

    def add_pairs(self, total: Buffer, pair: Expr, weights: Expr) -> None:
        """Add to the sums of 16 columns.

        Args:
            total: The sums.
            pair: Two neighbours along K of a row, in 16 bits, as one uint32.
            weights: Those of 16 columns, 32 numbers of 16 bits.
        """
        both = self.tir.reinterpret(_PAIRS, self.tir.Broadcast(pair, VECTOR))
        new = self.tir.call_extern("int32x16", "ortkit_pairs", self.sums(total), both, weights)
        self.store_row(total, new, 0, VECTOR)

    def add_mixed(self, total: Buffer, values: Expr, weights: Expr) -> None:
        """Add to the sums of 16 lanes: of each, four bytes times four; see `mixed`."""
        self.store_row(total, self.dot4(self.sums(total), values, weights), 0, VECTOR)

    def add_two(self, total: Buffer, values: Sequence[Expr], weights: Expr) -> None:
        """Add to the sums of 16 lanes.

        Args:
            total: The sums.
            values: Two vectors of 16 numbers of 16 bits.
            weights: Two numbers of 16 bits for each lane, side by side.
        """
        lanes = [lane // 2 + lane % 2 * VECTOR for lane in range(2 * VECTOR)]
        both = self.shuffled(values[0], values[1], lanes)
        new = self.tir.call_extern("int32x16", "ortkit_pairs", self.sums(total), both, weights)
        self.store_row(total, new, 0, VECTOR)

    def mixed(self, four: Sequence[Expr], part: int | None = None) -> Expr:
        """Return 64 bytes: of each lane those of four vectors, side by side.

        Args:
            four: Vectors of 16 bytes; of 64, if a part is given.
            part: Which four neighbours of every 16 lanes are wanted.
        """
        name = "ortkit_mixed16" if part is None else f"ortkit_mixed64_{part}"
        return self.tir.call_extern("uint8x64", name, *four)

    def blocks(self, four: Sequence[Expr], number: int) -> Expr:
        """Return 16 int32: four neighbours of each of four vectors, from 4 `number` on."""
        return self.tir.call_extern("int32x16", f"ortkit_blocks{number}", *four)

    def widened(self, weights: Expr) -> list[Expr]:
        """Return the first and second pairs of 64 bytes of int8, in 16 bits."""
        names = "ortkit_first_pair", "ortkit_second_pair"
        return [self.tir.call_extern(_PAIRS, name, weights) for name in names]

    def sums(self, total: Buffer) -> Expr:
        """Return the sums of 16 columns, int32."""
        return self.row(total, 0, VECTOR)

    def sixteen(self, buffer: Buffer, at: Expr, lanes: int, dtype: str) -> Expr:
        """Return 16 neighbours of a tensor; those beyond `lanes` are 0, and not read."""
        if lanes == VECTOR:
            return self.part(buffer, at, VECTOR)
        pointer, name = self.tir.address_of(buffer[at]), f"ortkit_some_{_LLVM_TYPES[dtype]}"
        return self.tir.call_extern(f"{dtype}x{VECTOR}", name, pointer, self.i32(lanes))

    def put_sixteen(self, buffer: Buffer, at: Expr, value: Expr, lanes: int, dtype: str) -> None:
        """Write the first `lanes` of 16 numbers, which become `dtype`."""
        value = self.cast(value, f"{dtype}x{VECTOR}")
        if lanes == VECTOR:
            self.put(buffer, at, value, VECTOR)
            return
        pointer, kind = self.tir.address_of(buffer[at]), _LLVM_TYPES[dtype]
        # Of one lane LLVM (TVM 0.27) writes all four bytes of an int32 that becomes a byte.
        call = (
            self.tir.call_extern("int32", f"ortkit_put_first_{kind}", pointer, value)
            if lanes == 1
            else self.tir.call_extern(
                "int32", f"ortkit_put_some_{kind}", pointer, value, self.i32(lanes)
            )
        )
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

    def looked_up(self, table: Buffer, values: Expr) -> Expr:
        """Return what a table of 256 bytes has for 16 bytes; both are int32."""
        if self.has_avx512:
            pointer = self.tir.address_of(table[self.i64(0)])
            return self.tir.call_extern(f"int32x{VECTOR}", "ortkit_lookup", values, pointer)
        places, found = (self.local(VECTOR, "int32") for _ in range(2))
        self.store_row(places, values, 0, VECTOR)
        with self.unrolled(VECTOR) as lane:
            self.store(found, self.cast(table[places[lane]], "int32"), lane)
        return self.row(found, 0, VECTOR)

    def nearest_within(self, values: Expr, low: Expr, high: Expr) -> Expr:
        """Return 16 float32 in a range as int32, rounded to the nearest, halves to even."""
        return self.tir.call_extern("int32x16", "ortkit_nearest_within", values, low, high)

    def fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """Return a b + c of 16 float32, rounded once."""
        return self.tir.call_extern("float32x16", "ortkit_fma", a, b, c)

    def whole(self, x: Expr) -> Expr:
        """Return 16 int32 that LLVM keeps in one vector.

        Where not all of them are used it computed some sums number by number: a convolution with
        24 filters took 10 times as long (TVM 0.27, 2026-11-28).
        """
        return self.tir.call_extern("int32x16", "ortkit_whole", x)

    def fenced(self, x: Expr) -> Expr:
        """Return 16 float32 that no later operation is fused with; see `Emitter.fence`."""
        return self.tir.call_extern("float32x16", "ortkit_fence", x)

"""The emitter with what int8 matrix products need: dot products of groups, parts of vectors."""

# mypy: ignore-errors

from dataclasses import dataclass

from ortkit.custom_ops.tvm.gemm.bf16_emitter import Bf16Emitter

from ortkit.targets.cpu import has_bf16

#: Numbers in a vector of sums.
LANES = 16

_TILES = "x86-64-v4-amx"

# Parts of vectors: LLVM makes masked instructions of them where there are some, else branches.
_PARTS = """
declare <16 x i8> @llvm.masked.load.v16i8.p0(ptr, i32, <16 x i1>, <16 x i8>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
define internal <16 x i1> @ortkit_first(i64 %count) alwaysinline {
  %one = insertelement <16 x i64> poison, i64 %count, i64 0
  %all = shufflevector <16 x i64> %one, <16 x i64> poison, <16 x i32> zeroinitializer
  %is = icmp ugt <16 x i64> %all, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  ret <16 x i1> %is
}
define internal <32 x i8> @ortkit_row(ptr %p) alwaysinline {
  %x = load <32 x i8>, ptr %p, align 1
  ret <32 x i8> %x
}
define internal <16 x i8> @ortkit_bytes(ptr %p, i64 %count) alwaysinline {
  %is = call <16 x i1> @ortkit_first(i64 %count)
  %x = call <16 x i8> @llvm.masked.load.v16i8.p0(ptr %p, i32 1, <16 x i1> %is, <16 x i8> zeroinitializer)
  ret <16 x i8> %x
}
define internal <16 x float> @ortkit_floats(ptr %p, i64 %count) alwaysinline {
  %is = call <16 x i1> @ortkit_first(i64 %count)
  %x = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %p, i32 4, <16 x i1> %is, <16 x float> zeroinitializer)
  ret <16 x float> %x
}
define internal i32 @ortkit_put_floats(ptr %p, i64 %count, <16 x float> %x) alwaysinline {
  %is = call <16 x i1> @ortkit_first(i64 %count)
  call void @llvm.masked.store.v16f32.p0(<16 x float> %x, ptr %p, i32 4, <16 x i1> %is)
  ret i32 0
}
"""  # noqa: E501

# Sums of four products of an unsigned byte and a signed one (VNNI).
_BYTES = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
define internal <16 x i32> @ortkit_dot(<16 x i32> %sum, <64 x i8> %a, <64 x i8> %b) alwaysinline {
  %x = bitcast <64 x i8> %a to <16 x i32>
  %y = bitcast <64 x i8> %b to <16 x i32>
  %new = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %sum, <16 x i32> %x, <16 x i32> %y)
  ret <16 x i32> %new
}
declare <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32>, <8 x i32>, <8 x i32>)
define internal <8 x i32> @ortkit_dot_half(<8 x i32> %sum, <32 x i8> %a, <32 x i8> %b) alwaysinline {
  %x = bitcast <32 x i8> %a to <8 x i32>
  %y = bitcast <32 x i8> %b to <8 x i32>
  %new = call <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32> %sum, <8 x i32> %x, <8 x i32> %y)
  ret <8 x i32> %new
}
"""  # noqa: E501


def _merge(to, a, b, bits, start):
    """Return text: of each 16 bytes of two vectors, the elements of one half, interleaved.

    It is one instruction on x86; of four rows at once LLVM makes worse.
    """
    count = 256 // bits
    part = count // 4
    order = [
        half * 2 * part + start * part + lane + vector * count
        for half in range(2) for lane in range(part) for vector in range(2)
    ]  # fmt: skip
    lanes = ", ".join(f"i32 {lane}" for lane in order)
    kind = f"<{count} x i{bits}>"
    return f"  {to} = shufflevector {kind} {a}, {kind} {b}, <{count} x i32> <{lanes}>\n"


def _quarter(number):
    """Return the function of a quarter of four rows; see `Int8Emitter.quarter`."""
    side, part = divmod(number, 2)
    text = _merge("%ab", "%a", "%b", 8, side) + _merge("%cd", "%c", "%d", 8, side)
    text += "  %x = bitcast <32 x i8> %ab to <16 x i16>\n"
    text += "  %y = bitcast <32 x i8> %cd to <16 x i16>\n"
    text += _merge("%xy", "%x", "%y", 16, part)
    rows = ", ".join(f"<32 x i8> %{row}" for row in "abcd")
    return (
        f"define internal <32 x i8> @ortkit_quarter{number}({rows}) alwaysinline {{\n{text}"
        "  %new = bitcast <16 x i16> %xy to <32 x i8>\n  ret <32 x i8> %new\n}\n"
    )


def _half(number):
    lanes = ", ".join(f"i32 {lane}" for lane in range(number * 16, number * 16 + 16))
    return (
        f"define internal <16 x i8> @ortkit_half{number}(<32 x i8> %x) alwaysinline {{\n"
        f"  %new = shufflevector <32 x i8> %x, <32 x i8> poison, <16 x i32> <{lanes}>\n"
        "  ret <16 x i8> %new\n}\n"
    )


_BYTES += "".join(map(_quarter, range(4))) + "".join(map(_half, range(2)))
_EVEN = ", ".join(f"i32 {lane}" for lane in range(0, 2 * LANES, 2))
_ODD = ", ".join(f"i32 {lane}" for lane in range(1, 2 * LANES, 2))
# Sums of two products of 16 bits: on x86 one instruction, which LLVM finds in this.
_PAIRS = f"""
define internal <16 x i32> @ortkit_dot(<16 x i32> %sum, <32 x i16> %a, <32 x i16> %b) alwaysinline {{
  %x = sext <32 x i16> %a to <32 x i32>
  %y = sext <32 x i16> %b to <32 x i32>
  %xy = mul nsw <32 x i32> %x, %y
  %even = shufflevector <32 x i32> %xy, <32 x i32> poison, <16 x i32> <{_EVEN}>
  %odd = shufflevector <32 x i32> %xy, <32 x i32> poison, <16 x i32> <{_ODD}>
  %both = add <16 x i32> %even, %odd
  %new = add <16 x i32> %sum, %both
  ret <16 x i32> %new
}}
"""  # noqa: E501


@dataclass
class Int8Emitter(Bf16Emitter):
    """One kernel for a level of processors, with its instructions for 8 bits or for 16."""

    processor: str = ""
    """Its level."""
    may_use_tiles: bool = True

    @property
    def has_tiles(self):
        """Whether there are tiles of bytes."""
        return self.may_use_tiles and self.processor == _TILES

    @property
    def group(self):
        """How many neighbours along the depth one instruction sums."""
        return 4 if has_bf16(self.processor) else 2

    @property
    def operand(self):
        """What the operands of a dot product are, of which the packed second one is bytes."""
        return "int8" if self.group == 4 else "int16"

    @property
    def llvm(self):
        """Modules of LLVM with functions that the kernel calls."""
        return (_PARTS + (_BYTES if self.group == 4 else _PAIRS),)

    def dot(self, total, a, b):
        """Return total + a b of each of 16 groups; of bytes, those of `a` are unsigned."""
        return self.tir.call_extern(f"int32x{LANES}", "ortkit_dot", total, a, b)

    def dot_half(self, total, a, b):
        """Return total + a b of each of 8 groups of bytes."""
        return self.tir.call_extern(f"int32x{LANES // 2}", "ortkit_dot_half", total, a, b)

    def quarter(self, rows, number):
        """Return a quarter of four rows of 32 bytes: groups of 4 columns of either strip."""
        return self.tir.call_extern("int8x32", f"ortkit_quarter{number}", *rows)

    def half(self, vector, number):
        """Return 16 of 32 bytes."""
        return self.tir.call_extern("int8x16", f"ortkit_half{number}", vector)

    def zeros(self, count, lanes):
        """Declare sums: this many vectors of int32, which are 0."""
        made = [self.local(lanes, "int32") for _ in range(count)]
        for one in made:
            self.store_row(one, self.tir.Broadcast(self.i32(0), lanes), 0, lanes)
        return made

    def clamped(self, count):
        """Return how many of the next 16 there are, where `count` are left, or fewer than 0."""
        return self.tir.max(self.minimum(count, self.i64(LANES)), self.i64(0))

    def everywhere(self, bits):
        """Return a vector of one group, given as a uint32, 16 times."""
        lanes = f"{self.operand}x{LANES * self.group}"
        return self.tir.reinterpret(lanes, self.tir.Broadcast(bits, LANES))

    def row_bytes(self, buffer, start):
        """Return 32 bytes; TVM itself reads this many one by one."""
        place = self.tir.address_of(buffer[start])
        return self.tir.call_extern(f"int8x{2 * LANES}", "ortkit_row", place)

    def some_bytes(self, buffer, start, count):
        """Return 16 bytes: `count` of a buffer, then zeros."""
        place = self.tir.address_of(buffer[start])
        return self.tir.call_extern(f"int8x{LANES}", "ortkit_bytes", place, count)

    def unsigned_bytes(self, buffer, start, count):
        """Return the same of a buffer of uint8."""
        return self.tir.reinterpret(f"uint8x{LANES}", self.some_bytes(buffer, start, count))

    def some_floats(self, buffer, start, count):
        """Return 16 float32: `count` of a buffer, then zeros."""
        place = self.tir.address_of(buffer[start])
        return self.tir.call_extern(f"float32x{LANES}", "ortkit_floats", place, count)

    def put_floats(self, buffer, start, count, value):
        """Write the first `count` of 16 float32."""
        place = self.tir.address_of(buffer[start])
        call = self.tir.call_extern("int32", "ortkit_put_floats", place, count, value)
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

    def multiply_tiles(self, total, a, b):
        """Add the product of two tiles of bytes, the first one's unsigned, to one of int32."""
        self._tile("tdpbusd", *map(self._number, (total, a, b)))

"""Weights in 4 bits with a factor for each block, written in half precision.

The first launch of a product of many rows. The second one is cuBLAS, or `gemm_kernel`.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def nbits_dequantize_kernel(
    w, scale, zero, y, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    WORDS: tl.constexpr, TURNS: tl.constexpr, IS_BFLOAT: tl.constexpr,
):  # fmt: skip
    """Write (weight - zero) * factor, rounded as ONNX Runtime rounds it.

    Args:
        w: uint8 [N, K / 2], of two weights the first in the low bits.
        scale: [N, K / BLOCK].
        zero: uint8 [N, K / BLOCK / 2], two in a byte; None if all are 8.
        y: [N, K].
        BLOCK: Weights with one factor, a multiple of 32.
        WORDS: Of 8 weights, that a block of threads has at once.
        TURNS: How often.
        IS_BFLOAT: Whether numbers are of bfloat16.
    """
    ALL: tl.constexpr = N * K // 8
    EACH: tl.constexpr = BLOCK // 8
    words = w.to(tl.pointer_type(tl.int32))
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    BITS: tl.constexpr = 0x43004300 if IS_BFLOAT else 0x64006400
    first = tl.program_id(0).to(tl.int64) * (WORDS * TURNS)
    for turn in tl.static_range(TURNS):
        word = first + turn * WORDS + tl.arange(0, WORDS)
        is_word = word < ALL
        b = tl.load(words + word, mask=is_word, other=0)
        factor = tl.load(scale + word // EACH, mask=is_word, other=0.0)
        # Two neighbours are the halves of a word.
        p0 = (b & 15) | ((b & 240) << 12)
        p1 = ((b >> 8) & 15) | ((b & 61440) << 4)
        p2 = ((b >> 16) & 15) | ((b >> 4) & 983040)
        p3 = ((b >> 24) & 15) | ((b >> 12) & 983040)
        pairs = tl.reshape(tl.join(tl.join(p0, p2), tl.join(p1, p3)), (WORDS * 4,)) | BITS
        low, high = (pairs & 0xFFFF).to(tl.uint16), (pairs >> 16).to(tl.uint16)
        halves = tl.reshape(tl.join(low, high), (WORDS, 8)).to(DTYPE, bitcast=True)
        if zero is None:
            halves -= 136.0 if IS_BFLOAT else 1032.0
        else:
            row, block = word // (K // 8), word % (K // 8) // EACH
            offset = row * ((K // BLOCK + 1) // 2) + block // 2
            pair = tl.load(zero + offset, mask=is_word, other=0).to(tl.int32)
            one = ((pair >> ((block % 2) * 4).to(tl.int32)) & 15).to(tl.uint16)
            halves -= (one | (BITS & 0xFFFF)).to(DTYPE, bitcast=True)[:, None]
        offset = word[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(y + offset, halves * factor[:, None], mask=is_word[:, None])

"""One row by matrices with weights in 4 bits and a factor for each block: MatMulNBits.

Such a product takes the time in which its matrix is read, and each weight few instructions. A
thread has 32 weights of each of some columns, 16 bytes, and the 32 numbers of the row that they
are multiplied by.

The bits of a weight, masked, are a float32 below the least normal number: the weight n at bit p is
n 2^(p - 149). Numbers of the row are multiplied by 2^(100 - p) before, so that all products have
the factor 2^-49. A product of 4 and 11 bits is exact. Zeros come off once for 32 weights: as many
times the sum of the row's numbers. Before this text stands a `begin`, see `launch_plain_kernel`.
The source of `epilogue` is appended to it for each region: a function of the products and of
further operands.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def loaded(p, offset, mask, IS_EVEN: tl.constexpr):
    """Return what is at some offsets; 0 where the mask is false, unless all is there."""
    return tl.load(p + offset) if IS_EVEN else tl.load(p + offset, mask=mask, other=0)


@triton.jit
def numbers_of(x, chunk, WORD: tl.constexpr, is_chunk, IS_EVEN: tl.constexpr):
    """Return the row's numbers for one word of each chunk's weights, scaled, and their sum.

    Args:
        x: float16 [K].
        chunk: int32 [T]: of 32 numbers.
        WORD: 0 to 3.
        is_chunk: bool [T].

    Returns:
        Eight tensors [T], of the weights from the lowest bits on, and [T].
    """
    T: tl.constexpr = chunk.shape[0]
    at = chunk[:, None] * 32 + (8 * WORD + tl.arange(0, 8))[None, :]
    a = loaded(x, at, is_chunk[:, None], IS_EVEN).to(tl.float32)
    even, odd = tl.split(tl.reshape(a, (T, 2, 2, 2)))
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    a0, a4 = tl.split(even_0)
    a2, a6 = tl.split(even_1)
    a1, a5 = tl.split(odd_0)
    a3, a7 = tl.split(odd_1)
    total = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    # The upper four are shifted by 12 bits, so that they begin at the fourth.
    low = (a0 * 2.0**100, a1 * 2.0**96, a2 * 2.0**92, a3 * 2.0**88)
    high = (a4 * 2.0**96, a5 * 2.0**92, a6 * 2.0**88, a7 * 2.0**84)
    return low, high, total


@triton.jit
def weight_of(words, BIT: tl.constexpr):
    """Return the four bits from `BIT` on as a float32 below the least normal number."""
    return (words & (15 << BIT)).to(tl.float32, bitcast=True)


@triton.jit
def with_word(total, words, numbers):
    """Return sums and what eight weights add to them.

    Args:
        total: float32 [BN, T].
        words: uint32 [BN, T].
        numbers: See `numbers_of`.
    """
    (a0, a1, a2, a3), (a4, a5, a6, a7), _ = numbers
    total += weight_of(words, 0) * a0[None, :]
    total += weight_of(words, 4) * a1[None, :]
    total += weight_of(words, 8) * a2[None, :]
    total += weight_of(words, 12) * a3[None, :]
    words = words >> 12
    total += weight_of(words, 4) * a4[None, :]
    total += weight_of(words, 8) * a5[None, :]
    total += weight_of(words, 12) * a6[None, :]
    total += weight_of(words, 16) * a7[None, :]
    return total


@triton.jit
def zeros_of(bytes_, block):
    """Return the zeros of blocks in float32, of bytes with two of them; 8 if there are none."""
    value = 8.0
    if bytes_ is not None:
        bits = (block % 2 * 4)[None, :].to(tl.uint8)
        value = ((bytes_ >> bits) & 15).to(tl.float32)
    return value


@triton.jit
def sums_of(words, factor, zeros, n0, n1, n2, n3):
    """Return the sums of chunks times their factors, 2^-49 of what they are.

    Args:
        words: uint32 [BN, T, 4].
        factor: float16 [BN, T].
        zeros: float32 [BN, T], or a number.
        n0: The row's numbers of the first word, see `numbers_of`; so are n1, n2 and n3 of others.
    """
    BN: tl.constexpr = words.shape[0]
    T: tl.constexpr = words.shape[1]
    even, odd = tl.split(tl.reshape(words, (BN, T, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    row = ((n0[2] + n1[2]) + (n2[2] + n3[2])) * -(2.0**-49)
    total = tl.zeros((BN, T), tl.float32) + row[None, :] * zeros
    total = with_word(total, w0, n0)
    total = with_word(total, w1, n1)
    total = with_word(total, w2, n2)
    total = with_word(total, w3, n3)
    return total * factor.to(tl.float32)


@triton.jit
def zeros_at(zero, known, block, is_chunk, BLOCKS: tl.constexpr, IS_EVEN: tl.constexpr):
    """Return the bytes that zeros are in; None if there are none."""
    value = None
    if zero is not None:
        offset = known * ((BLOCKS + 1) // 2) + (block // 2)[None, :]
        value = loaded(zero, offset, is_chunk[None, :], IS_EVEN)
    return value


@triton.jit
def read_row(p, columns, mask):
    """Return an operand of the epilogue in float32; 0 where there is none."""
    value = 0.0
    if p is not None:
        value = tl.load(p + columns, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def nbits_row_kernel(
    x, w, scale, zero, v, v_scale, v_zero, e0, e1, e2, e3, y,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
    IS_PAIR: tl.constexpr,
):  # fmt: skip
    """Write some columns of `epilogue(x @ w, x @ v, e0, ...)`, sums in float32.

    Args:
        x: float16 [K].
        w: uint8 [N, K / 2], of two weights the first in the low bits.
        scale: [N, K / BLOCK].
        zero: uint8 [N, K / BLOCK / 2], two in a byte; None if all are 8.
        v: The second matrix if `IS_PAIR`, else None; likewise its factors and zeros.
        e0: A further operand of the epilogue, [N], or None; so are e1, e2 and e3.
        y: [N].
        BLOCK: Weights with one factor, a multiple of 32.
        BN: Columns of a block of threads.
        T: Chunks of 32 weights of a step, one for each thread.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    chunk = tl.arange(0, T)
    CHUNKS: tl.constexpr = K // 32
    BLOCKS: tl.constexpr = K // BLOCK
    EACH: tl.constexpr = BLOCK // 32
    STEPS: tl.constexpr = (CHUNKS + T - 1) // T
    IS_EVEN: tl.constexpr = CHUNKS % T == 0
    # A step behind the last has no chunk.
    IS_ONE: tl.constexpr = IS_EVEN and STEPS == 1
    # What is read for columns that there are none of is not written.
    is_column = columns < N
    known = tl.minimum(columns, N - 1)[:, None].to(tl.int64)
    words, others = w.to(tl.pointer_type(tl.uint32)), None
    if IS_PAIR:
        others = v.to(tl.pointer_type(tl.uint32))
    at = known[:, :, None] * (K // 8) + (chunk[:, None] * 4 + tl.arange(0, 4)[None, :])[None]
    # The first of the matrices is on its way while the launch before ends.
    is_chunk, block = chunk < CHUNKS, chunk // EACH
    next_w = loaded(words, at, is_chunk[None, :, None], IS_EVEN)
    if IS_PAIR:
        next_v = loaded(others, at, is_chunk[None, :, None], IS_EVEN)
    next_s = loaded(scale, known * BLOCKS + block[None, :], is_chunk[None, :], IS_EVEN)
    next_z = zeros_at(zero, known, block, is_chunk, BLOCKS, IS_EVEN)
    if IS_PAIR:
        next_t = loaded(v_scale, known * BLOCKS + block[None, :], is_chunk[None, :], IS_EVEN)
        next_u = zeros_at(v_zero, known, block, is_chunk, BLOCKS, IS_EVEN)
    begin()  # noqa: F821  of `launch_plain_kernel`
    r0 = read_row(e0, columns, is_column)
    r1 = read_row(e1, columns, is_column)
    r2 = read_row(e2, columns, is_column)
    r3 = read_row(e3, columns, is_column)
    first = tl.zeros((BN, T), tl.float32)
    second = tl.zeros((BN, T), tl.float32)
    for _ in tl.range(0, STEPS):
        n0 = numbers_of(x, chunk, 0, is_chunk, IS_EVEN)
        n1 = numbers_of(x, chunk, 1, is_chunk, IS_EVEN)
        n2 = numbers_of(x, chunk, 2, is_chunk, IS_EVEN)
        n3 = numbers_of(x, chunk, 3, is_chunk, IS_EVEN)
        one_w, one_s, one_z = next_w, next_s, zeros_of(next_z, block)
        if IS_PAIR:
            one_v, one_t, one_u = next_v, next_t, zeros_of(next_u, block)
        if not IS_ONE:
            chunk += T
            at += 4 * T
            is_chunk, block = chunk < CHUNKS, chunk // EACH
            next_w = loaded(words, at, is_chunk[None, :, None], False)
            next_s = loaded(scale, known * BLOCKS + block[None, :], is_chunk[None, :], False)
            if zero is not None:
                next_z = zeros_at(zero, known, block, is_chunk, BLOCKS, False)
            if IS_PAIR:
                next_v = loaded(others, at, is_chunk[None, :, None], False)
                next_t = loaded(v_scale, known * BLOCKS + block[None, :], is_chunk[None, :], False)
                if v_zero is not None:
                    next_u = zeros_at(v_zero, known, block, is_chunk, BLOCKS, False)
        first += sums_of(one_w, one_s, one_z, n0, n1, n2, n3)
        if IS_PAIR:
            second += sums_of(one_v, one_t, one_u, n0, n1, n2, n3)
    first_sum, second_sum = tl.sum(first, 1) * 2.0**49, tl.sum(second, 1) * 2.0**49
    if IS_PAIR:
        made = epilogue(first_sum, second_sum, r0, r1, r2, r3)  # noqa: F821
    else:
        made = epilogue(first_sum, r0, r1, r2, r3, 0.0)  # noqa: F821
    tl.store(y + columns, made.to(y.dtype.element_ty), mask=is_column)

"""Products with weights in 4 bits and a factor for each block: MatMulNBits.

Where M is small, they take the time in which the matrix is read, and each weight few instructions.
A word of 32 bits has 8 weights. Those at places i and i + 4 become two halves of a word by a
shift and a mask. A half is a number in half precision: it has the bits of 2^10 (2^7 in bfloat16)
and the weight. The matrix is the left factor, so that a few rows fill what the tensor cores take.
The source of `epilogue` is appended to this text for each region: a function of the product and
of five further operands.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read(p, rows, columns, M, N: tl.constexpr, KIND: tl.constexpr, IS_LEFT: tl.constexpr):
    """Return an operand of the epilogue in float32: 0 where none is, a row, or all rows.

    Tiles are [columns, rows] if `IS_LEFT`, else [rows, columns].
    """
    if KIND == 0:
        value = 0.0
    elif KIND == 1:
        to = tl.load(p + columns, mask=columns < N, other=0.0).to(tl.float32)
        value = to[:, None] if IS_LEFT else to[None, :]
    elif IS_LEFT:
        mask = (columns < N)[:, None] & (rows < M)[None, :]
        offset = rows.to(tl.int64)[None, :] * N + columns[:, None]
        value = tl.load(p + offset, mask=mask, other=0.0).to(tl.float32)
    else:
        mask = (rows < M)[:, None] & (columns < N)[None, :]
        offset = rows.to(tl.int64)[:, None] * N + columns[None, :]
        value = tl.load(p + offset, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def halves_of(words, IS_BFLOAT: tl.constexpr):
    """Return numbers in half precision, of each word first the one in its low bits.

    Args:
        words: int32 [A, B, C].

    Returns:
        [A, B, 2 C].
    """
    A: tl.constexpr = words.shape[0]
    B: tl.constexpr = words.shape[1]
    C: tl.constexpr = words.shape[2]
    low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
    both = tl.reshape(tl.join(low, high), (A, B, 2 * C))
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    return both.to(DTYPE, bitcast=True)


@triton.jit
def twice(numbers):
    """Return words of which both halves are the number in the low half of an int32."""
    return numbers | (numbers << 16)


@triton.jit
def words_of(halves):
    """Return words of which both halves are the same number in half precision."""
    return twice(halves.to(tl.uint16, bitcast=True).to(tl.int32))


@triton.jit
def zeros_of(pairs, BITS: tl.constexpr):
    """Return the zeros of blocks, two in a byte, as words of halves; see `weights_of`.

    Args:
        pairs: uint8 [A, B].

    Returns:
        int32 [A, 2 B].
    """
    A: tl.constexpr = pairs.shape[0]
    B: tl.constexpr = pairs.shape[1]
    both = tl.reshape(tl.join(pairs & 15, pairs >> 4), (A, 2 * B))
    return twice(both.to(tl.int32)) | BITS


@triton.jit
def spread(blocks, LENGTH: tl.constexpr):
    """Return numbers of blocks for what is in them: of [A, B] made [A, LENGTH]."""
    A: tl.constexpr = blocks.shape[0]
    B: tl.constexpr = blocks.shape[1]
    return tl.reshape(tl.broadcast_to(blocks[:, :, None], (A, B, LENGTH // B)), (A, LENGTH))


@triton.jit
def grouped(words, GROUPS: tl.constexpr):
    """Return words in groups of 8: of [A, 8 GROUPS] made [GROUPS, A, 8]."""
    A: tl.constexpr = words.shape[0]
    return tl.permute(tl.reshape(words, (A, GROUPS, 8)), (1, 0, 2))


@triton.jit
def step_of(b, SHIFT: tl.constexpr, zeros, factor, a, acc, IS_BFLOAT: tl.constexpr):
    """Add the products of two weights of each word, at the bits s and s + 16.

    Args:
        b: int32 [GROUPS, BN, 8].
        zeros: int32 [GROUPS, BN, 8], in each half the zero of the word's weights, added to 2^10
            (2^7); None if all are 8.
        factor: The same of their factors; None if these come later.
        a: int32 [BM, GROUPS, 8], the numbers of x that they are multiplied by.
        acc: float32 [GROUPS, BN, BM].
    """
    BITS: tl.constexpr = 0x43004300 if IS_BFLOAT else 0x64006400
    weights = halves_of(((b >> SHIFT) & 0x000F000F) | BITS, IS_BFLOAT)
    if zeros is None:
        weights -= 136.0 if IS_BFLOAT else 1032.0
    else:
        weights -= halves_of(zeros, IS_BFLOAT)
    if factor is not None:
        weights *= halves_of(factor, IS_BFLOAT)
    return tl.dot(weights, tl.permute(halves_of(a, IS_BFLOAT), (1, 2, 0)), acc)


@triton.jit
def nbits_small_m_kernel(
    x, w, scale, zero, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUPS: tl.constexpr, IS_LATE: tl.constexpr, STAGES: tl.constexpr, IS_EVEN: tl.constexpr,
    IS_BFLOAT: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
):  # fmt: skip
    """Write some columns of `epilogue(x @ w, e0, ...)` where M is small, sums in float32.

    Args:
        x: [M, K].
        w: uint8 [N, K / 2], of two weights the first in the low bits.
        scale: [N, K / BLOCK].
        zero: uint8 [N, K / BLOCK / 2], two in a byte; None if all are 8.
        e0: A further operand of the epilogue: [N] if `KIND0` is 1, [M, N] if it is 2; unread if it
            is 0. So are e1, e2 and e3.
        y: [M, N].
        M: Rows.
        BLOCK: Weights with one factor, a multiple of 32.
        BM: Rows of a block of threads.
        BN: Columns of a block of threads.
        GROUPS: Of 64 weights, in one step.
        IS_LATE: Whether factors come after the sums of blocks, in float32; of blocks of 32 there
            are half as many rows then. Else weights are rounded with their factor, as ONNX
            Runtime rounds them.
        STAGES: Steps that are loaded ahead.
        IS_EVEN: Whether steps make up the depth.
        IS_BFLOAT: Whether numbers are of bfloat16.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    at, pair = tl.arange(0, GROUPS * 8), tl.arange(0, GROUPS * 32)
    BITS: tl.constexpr = 0x43004300 if IS_BFLOAT else 0x64006400
    WORDS: tl.constexpr = K // 8
    BLOCKS: tl.constexpr = K // BLOCK
    EACH: tl.constexpr = GROUPS * 64 // BLOCK
    # A group has a block, or two, whose sums are apart: each is of all its weights, times the rows
    # where the block is its own, and times 0 elsewhere.
    PARTS: tl.constexpr = 2 if IS_LATE and BLOCK == 32 else 1
    ROWS: tl.constexpr = BM // PARTS
    rows, part = tl.arange(0, BM) % ROWS, tl.arange(0, BM) // ROWS
    rows += tl.program_id(1) * ROWS
    words, pairs = w.to(tl.pointer_type(tl.int32)), x.to(tl.pointer_type(tl.int32))
    # What is read for columns that there are none of is not written.
    known = tl.minimum(columns, N - 1)[:, None].to(tl.int64)
    block, two = tl.arange(0, EACH), tl.arange(0, EACH // 2)
    right = rows[:, None].to(tl.int64) * (WORDS * 4) + pair[None, :]
    is_row = (rows < M)[:, None]
    if PARTS == 2:
        is_row = is_row & ((pair // 16 % 2)[None, :] == part[:, None])
    acc = tl.zeros((GROUPS, BN, BM), tl.float32)
    # Counted in steps, so that it is known how many factors are read at once.
    for step in tl.range(0, (K + GROUPS * 64 - 1) // (GROUPS * 64), num_stages=STAGES):
        k, first = step * (GROUPS * 8), step * EACH
        if IS_EVEN:
            b = tl.load(words + known * WORDS + (k + at)[None, :])
            a = tl.load(pairs + right + k * 4, mask=is_row, other=0)
            s = tl.load(scale + known * BLOCKS + (first + block)[None, :])
        else:
            inside = (k * 4 + pair < WORDS * 4)[None, :]
            b = tl.load(
                words + known * WORDS + (k + at)[None, :], mask=(k + at < WORDS)[None, :], other=0
            )
            a = tl.load(pairs + right + k * 4, mask=is_row & inside, other=0)
            s = tl.load(
                scale + known * BLOCKS + (first + block)[None, :],
                mask=(first + block < BLOCKS)[None, :], other=0.0,
            )  # fmt: skip
        zeros = None
        if zero is not None:
            z = tl.load(
                zero + known * ((BLOCKS + 1) // 2) + (step * (EACH // 2) + two)[None, :],
                mask=(step * (EACH // 2) + two < (BLOCKS + 1) // 2)[None, :], other=0,
            )  # fmt: skip
            zeros = grouped(spread(zeros_of(z, BITS), GROUPS * 8), GROUPS)
        factor, total = None, acc
        if IS_LATE:
            total = tl.zeros((GROUPS, BN, BM), tl.float32)
        else:
            factor = grouped(spread(words_of(s), GROUPS * 8), GROUPS)
        b = grouped(b, GROUPS)
        # Of the 8 numbers of x that a word of weights is multiplied by: pairs 0 and 2, 1 and 3.
        even, odd = tl.split(tl.reshape(a, (BM, GROUPS, 8, 2, 2)))
        p0, p2 = tl.split(even)
        p1, p3 = tl.split(odd)
        a0, a1 = (p0 & 0xFFFF) | (p2 << 16), ((p0 >> 16) & 0xFFFF) | (p2 & -65536)
        a2, a3 = (p1 & 0xFFFF) | (p3 << 16), ((p1 >> 16) & 0xFFFF) | (p3 & -65536)
        total = step_of(b, 0, zeros, factor, a0, total, IS_BFLOAT)
        total = step_of(b, 4, zeros, factor, a1, total, IS_BFLOAT)
        total = step_of(b, 8, zeros, factor, a2, total, IS_BFLOAT)
        total = step_of(b, 12, zeros, factor, a3, total, IS_BFLOAT)
        if IS_LATE:
            late = spread(s.to(tl.float32), GROUPS * PARTS)
            late = tl.permute(tl.reshape(late, (BN, GROUPS, PARTS)), (1, 0, 2))
            late = tl.broadcast_to(late[:, :, :, None], (GROUPS, BN, PARTS, ROWS))
            acc += total * tl.reshape(late, (GROUPS, BN, BM))
        else:
            acc = total
    total = tl.sum(acc, 0)
    if PARTS == 2:
        total = tl.sum(tl.reshape(total, (BN, PARTS, ROWS)), 1)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    made = epilogue(  # noqa: F821
        total, read(e0, rows, columns, M, N, KIND0, True),
        read(e1, rows, columns, M, N, KIND1, True), read(e2, rows, columns, M, N, KIND2, True),
        read(e3, rows, columns, M, N, KIND3, True), 0.0,
    )  # fmt: skip
    mask = (columns < N)[:, None] & (rows < M)[None, :]
    offset = rows.to(tl.int64)[None, :] * N + columns[:, None]
    tl.store(y + offset, made.to(y.dtype.element_ty), mask=mask)


@triton.jit
def factors_of(scale, columns, block, BLOCKS: tl.constexpr):
    """Return the factors of blocks, 0 behind the last."""
    offset = columns * BLOCKS + block[None, :]
    return tl.load(scale + offset, mask=(block < BLOCKS)[None, :], other=0.0)


@triton.jit
def bytes_of(zero, columns, block, BLOCKS: tl.constexpr):
    """Return the bytes that the zeros of blocks are in."""
    offset = columns * ((BLOCKS + 1) // 2) + block[None, :] // 2
    return tl.load(zero + offset, mask=(block < BLOCKS)[None, :], other=0)


@triton.jit
def nbits_large_m_kernel(
    x, w, scale, zero, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, IS_WHOLE: tl.constexpr, STAGES: tl.constexpr, IS_EVEN: tl.constexpr,
    IS_BFLOAT: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
):  # fmt: skip
    """Write one tile of `epilogue(x @ w, e0, ...)`; see `nbits_small_m_kernel`.

    The matrix is the left factor: it goes from registers into the tensor cores. Weights are
    rounded to half precision with their factor, as ONNX Runtime rounds them.

    Args:
        BK: Depth of a step; it is a multiple of `BLOCK`, or a part of it.
        IS_WHOLE: Whether tiles make up the rows.
    """
    # Neighbouring blocks have the same columns: w is read from memory once.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at, byte = tl.arange(0, BK), tl.arange(0, BK // 2)
    BLOCKS: tl.constexpr = K // BLOCK
    EACH: tl.constexpr = BK // BLOCK if BK > BLOCK else 1
    BITS: tl.constexpr = 0x4300 if IS_BFLOAT else 0x6400
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    # What is read for columns that there are none of is not written. Rows that there are none of
    # are not read: as many reads of one row would wait for each other.
    known = tl.minimum(columns, N - 1)[:, None].to(tl.int64)
    right = rows[None, :].to(tl.int64) * K + at[:, None]
    is_row = (rows < M)[None, :]
    block = tl.arange(0, EACH)
    # The factors of a step are on their way while the step before is computed.
    s = factors_of(scale, known, block, BLOCKS)
    if zero is not None:
        z = bytes_of(zero, known, block, BLOCKS)
    acc = tl.zeros((BN, BM), tl.float32)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        if IS_EVEN:
            if IS_WHOLE:
                a = tl.load(x + right + k)
            else:
                a = tl.load(x + right + k, mask=is_row, other=0.0)
            b = tl.load(w + known * (K // 2) + (k // 2 + byte)[None, :])
        else:
            is_byte = (k // 2 + byte < K // 2)[None, :]
            a = tl.load(x + right + k, mask=(k + at < K)[:, None] & is_row, other=0.0)
            b = tl.load(w + known * (K // 2) + (k // 2 + byte)[None, :], mask=is_byte, other=0)
        low, high = (b & 15).to(tl.uint16) | BITS, (b >> 4).to(tl.uint16) | BITS
        weights = tl.reshape(tl.join(low, high), (BN, BK)).to(DTYPE, bitcast=True)
        if zero is None:
            weights -= 136.0 if IS_BFLOAT else 1032.0
        else:
            one = (z >> (((k // BLOCK + block) % 2) * 4)[None, :].to(tl.uint8)) & 15
            weights -= spread((one.to(tl.uint16) | BITS).to(DTYPE, bitcast=True), BK)
            z = bytes_of(zero, known, (k + BK) // BLOCK + block, BLOCKS)
        factor = spread(s, BK)
        s = factors_of(scale, known, (k + BK) // BLOCK + block, BLOCKS)
        acc = tl.dot(weights * factor, a, acc)
    made = epilogue(  # noqa: F821
        acc, read(e0, rows, columns, M, N, KIND0, True),
        read(e1, rows, columns, M, N, KIND1, True), read(e2, rows, columns, M, N, KIND2, True),
        read(e3, rows, columns, M, N, KIND3, True), 0.0,
    )  # fmt: skip
    mask = (rows < M)[None, :] & (columns < N)[:, None]
    offset = rows.to(tl.int64)[None, :] * N + columns[:, None]
    tl.store(y + offset, made.to(y.dtype.element_ty), mask=mask)

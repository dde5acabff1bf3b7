"""Squeeze-and-excite: the two layers after the means of an image.

The source of `inner` and `outer` is appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def sums(means, image, ROWS, C: tl.constexpr, start, BR: tl.constexpr, BC: tl.constexpr):
    """Return the sums of the rows' means of some channels of one image, float32 [BC]."""
    channel = start + tl.arange(0, BC)
    total = tl.zeros((BC,), tl.float32)
    for first in tl.range(0, ROWS, BR):
        row = first + tl.arange(0, BR)
        part = tl.load(
            means + (image.to(tl.int64) * ROWS + row)[:, None] * C + channel[None, :],
            mask=(row < ROWS)[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        total += tl.sum(part.to(tl.float32), 0)
    return total


@triton.jit
def squeeze_kernel(
    means, w, bias, hidden,
    ROWS, C: tl.constexpr, HIDDEN: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Write some hidden units of one image: `inner(w @ mean(means) + bias)`.

    Args:
        means: [N, ROWS, C], of rows of as many pixels each.
        w: [HIDDEN, C].
        bias: [HIDDEN], or None.
        hidden: float32 [N, HIDDEN].
    """
    image = tl.program_id(1)
    unit = tl.program_id(0) * BH + tl.arange(0, BH)
    is_unit = unit < HIDDEN
    acc = tl.zeros((BH, BC), tl.float32)
    if C <= BC:
        # Weights are read before the launch before has ended.
        channel = tl.arange(0, BC)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=is_unit[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        begin()  # noqa: F821
        acc = weight.to(tl.float32) * sums(means, image, ROWS, C, 0, BR, BC)[None, :]
    else:
        begin()  # noqa: F821
    for start in tl.range(0, C if C > BC else 0, BC):
        channel = start + tl.arange(0, BC)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=is_unit[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        acc += weight.to(tl.float32) * sums(means, image, ROWS, C, start, BR, BC)[None, :]
    value = tl.sum(acc, 1) / ROWS
    if bias is not None:
        value += tl.load(bias + unit, mask=is_unit, other=0.0).to(tl.float32)
    value = inner(value)  # noqa: F821
    tl.store(hidden + image * HIDDEN + unit, value, mask=is_unit)


@triton.jit
def excite_kernel(
    hidden, w, bias, y,
    C: tl.constexpr, HIDDEN: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Write some factors of one image: `outer(w @ hidden + bias)`.

    Args:
        hidden: float32 [N, HIDDEN].
        w: [HIDDEN, C].
        bias: [C], or None.
        y: [N, 1, 1, C].
    """
    image = tl.program_id(1)
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    is_channel = channel < C
    acc = tl.zeros((BH, BC), tl.float32)
    if HIDDEN <= BH:
        unit = tl.arange(0, BH)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=(unit < HIDDEN)[:, None] & is_channel[None, :],
            other=0.0,
        )
        begin()  # noqa: F821
        value = tl.load(hidden + image * HIDDEN + unit, mask=unit < HIDDEN, other=0.0)
        acc = weight.to(tl.float32) * value[:, None]
    else:
        begin()  # noqa: F821
    for start in tl.range(0, HIDDEN if HIDDEN > BH else 0, BH):
        unit = start + tl.arange(0, BH)
        value = tl.load(hidden + image * HIDDEN + unit, mask=unit < HIDDEN, other=0.0)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=(unit < HIDDEN)[:, None] & is_channel[None, :],
            other=0.0,
        )
        acc += weight.to(tl.float32) * value[:, None]
    total = tl.sum(acc, 0)
    if bias is not None:
        total += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    total = outer(total)  # noqa: F821
    tl.store(y + image * C + channel, total.to(y.dtype.element_ty), mask=is_channel)


@triton.jit
def squeeze_excite_kernel(
    means, w, bias, v, shift, y,
    ROWS, C: tl.constexpr, HIDDEN: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write some factors of one image, of hidden units that each block computes for itself.

    Args:
        means: [N, ROWS, C], of rows of as many pixels each.
        w: [HIDDEN, C].
        bias: [HIDDEN], or None.
        v: [HIDDEN, C].
        shift: [C], or None.
        y: [N, 1, 1, C].
        BH: At least HIDDEN.
        BN: Channels of a block.
    """
    image = tl.program_id(1)
    unit = tl.arange(0, BH)
    is_unit = unit < HIDDEN
    made = tl.program_id(0) * BN + tl.arange(0, BN)
    is_made = made < C
    # Weights are read before the launch before has ended.
    second = tl.load(
        v + unit[:, None] * C + made[None, :], mask=is_unit[:, None] & is_made[None, :], other=0.0
    )
    acc = tl.zeros((BH, BC), tl.float32)
    if C <= BC:
        channel = tl.arange(0, BC)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=is_unit[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        begin()  # noqa: F821
        acc = weight.to(tl.float32) * sums(means, image, ROWS, C, 0, BR, BC)[None, :]
    else:
        begin()  # noqa: F821
    for start in tl.range(0, C if C > BC else 0, BC):
        channel = start + tl.arange(0, BC)
        weight = tl.load(
            w + unit[:, None] * C + channel[None, :],
            mask=is_unit[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        acc += weight.to(tl.float32) * sums(means, image, ROWS, C, start, BR, BC)[None, :]
    value = tl.sum(acc, 1) / ROWS
    if bias is not None:
        value += tl.load(bias + unit, mask=is_unit, other=0.0).to(tl.float32)
    value = tl.where(is_unit, inner(value), 0.0)  # noqa: F821
    total = tl.sum(second.to(tl.float32) * value[:, None], 0)
    if shift is not None:
        total += tl.load(shift + made, mask=is_made, other=0.0).to(tl.float32)
    tl.store(y + image * C + made, outer(total).to(y.dtype.element_ty), mask=is_made)  # noqa: F821

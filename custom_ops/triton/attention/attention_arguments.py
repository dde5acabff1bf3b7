"""Arguments of both attention kernels that describe heads and masks."""

from __future__ import annotations

from math import inf

from ...forms.attention_cuda import AttentionForm, Heads, Mask

#: Positions within a head have 32 bits.
MOST_ELEMENTS = 2**31 - 2**17


class Number(float):
    """A number as Triton's source has it."""

    def __repr__(self) -> str:
        return f'float("{float.__repr__(self)}")' if abs(self) == inf else float.__repr__(self)


def parts_of(width: int) -> tuple[int, int]:
    """Return a width as one power of two, or the sum of two; not less than it, from 16 on."""
    largest = 1 << (width.bit_length() - 1)
    if largest == width or width < 16:
        return max(largest if largest == width else 2 * largest, 16), 0
    rest = max(16, 1 << (width - largest - 1).bit_length())
    return (largest, rest) if rest < largest else (2 * largest, 0)


def layout_of(heads: Heads) -> tuple[int, int, int]:
    """Return the kernel's arguments for the layout of heads: pitch, step and first column."""
    return heads.pitch, step_of(heads), heads.first


def step_of(heads: Heads) -> int:
    """Return the columns from a head to the next; 0 if every head lies for itself."""
    return 0 if heads.stacked else heads.width


def kind_of(mask: Mask | None) -> int:
    """Return the kernel's argument for a mask: none, a condition, or numbers to be added."""
    if mask is None:
        return 0
    return 2 if mask.fill is None else 1


def fill_of(mask: Mask | None) -> float:
    """Return what a condition adds where it does not hold, as Triton's source has it."""
    return Number(0.0 if mask is None or mask.fill is None else mask.fill)


def inverse_of(form: AttentionForm) -> float:
    """Return what the result is multiplied by; 1 where it is not rounded to eight bits."""
    return 1.0 if form.factor is None else 1.0 / form.factor

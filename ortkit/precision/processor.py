"""What a processor's 8-bit products hold."""

from __future__ import annotations

from ortkit.targets.cpu import has_bf16, multiplies_bytes, native_level


def weight_bits(level: str) -> int:
    """Return how many bits a weight may have: 7 where pairs of products are summed in 16 bits.

    Args:
        level: A processor level of `ortkit.targets.cpu`, or `native`.
    """
    return 8 if multiplies_bytes(level) else 7


def bf16_refusal(level: str) -> str:
    """Return why a processor has no products of bfloat16, empty if it has.

    Args:
        level: A processor level of `ortkit.targets.cpu`, or `native`.
    """
    if level == "native":
        level = native_level()
    return "" if has_bf16(level) else f"processors of level {level} have no bfloat16 products"

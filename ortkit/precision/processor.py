"""What a processor's 8-bit products hold."""

from __future__ import annotations

from pathlib import Path

from ortkit.targets.cpu import has_bf16, native_level

#: Levels that have int8 dot products summed in 32 bits.
_EXACT = ("x86-64-v4-bf16", "x86-64-v4-amx", "aarch64")
_FLAGS = ("avx512_vnni", "avx_vnni")


def weight_bits(level: str) -> int:
    """Return how many bits a weight may have: 7 where pairs of products are summed in 16 bits.

    Args:
        level: A processor level of `ortkit.targets.cpu`, or `native`.
    """
    if level == "native":
        level = native_level()
        if not level.startswith("x86") or _has_vnni():
            return 8
    return 8 if level in _EXACT else 7


def bf16_refusal(level: str) -> str:
    """Return why a processor has no products of bfloat16, empty if it has.

    Args:
        level: A processor level of `ortkit.targets.cpu`, or `native`.
    """
    if level == "native":
        level = native_level()
    return "" if has_bf16(level) else f"processors of level {level} have no bfloat16 products"


def _has_vnni() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return not set(found.split()).isdisjoint(_FLAGS)

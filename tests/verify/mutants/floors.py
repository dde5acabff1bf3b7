"""The least share of observable faults that verification must catch, in percent, by row."""

from __future__ import annotations

from math import ceil

from mutants.runner import Share

#: By row of the table: what is held, and what the design asks for.
FLOORS: dict[str, tuple[float, float]] = {
    "float32, unconditional": (99, 99),
    "float32, conditional": (90, 90),
    "float16, unconditional": (90, 90),
    "float16, conditional": (90, 90),
    "bfloat16, unconditional": (85, 85),
    "bfloat16, conditional": (85, 85),
    "quantized, unconditional": (85, 85),
    "quantized, conditional": (85, 85),
    "kernels, unconditional": (99, 99),
    "kernels, conditional": (90, 90),
    "triton, unconditional": (99, 99),
    "triton, conditional": (90, 90),
    "fp16, lowering": (90, 90),
    "bf16, lowering": (85, 85),
    "int8, lowering": (85, 85),
    "int4, lowering": (85, 85),
}


def missing(rows: dict[str, Share]) -> list[str]:
    """Say which rows are below their floor; one more may pass where a floor is no whole fault."""
    found = []
    for row in rows.values():
        floor = FLOORS[row.group][0]
        allowed = ceil(row.observable * (100 - floor) / 100)
        if row.observable - row.caught > allowed:
            found.append(f"{row.group}: {row.percent:.1f}% caught, the floor is {floor:g}%")
    return found

"""How much kernels round beyond what their function bodies do, where that is by design."""

from __future__ import annotations

#: By the kind of a kernel: how many times the rounding errors of its body it makes.
#: Winograd's minimal filtering F(4 x 4, 3 x 3) adds and subtracts what it then multiplies: sums of
#: 256 channels are off by 7.5 times as much as a direct convolution (docs/kernels.md).
ROUNDINGS: dict[str, float] = {"winograd_conv": 8.0}
#: Kinds that answer NaN and infinities otherwise than their bodies: all results of one tile of
#: Winograd's are NaN where one is, and attention does not read what a mask hides.
SPECIAL_VALUES_DIFFER = ("winograd_conv", "attention")


def roundings_of(op_type: str) -> float:
    """Return how many times its body's rounding errors a fused operator makes."""
    return ROUNDINGS.get(op_type.rpartition("_")[0], 1.0)


def special_values_differ(op_type: str) -> bool:
    """Return whether a fused operator may answer NaN and infinities otherwise than its body."""
    return op_type.rpartition("_")[0].endswith(SPECIAL_VALUES_DIFFER)

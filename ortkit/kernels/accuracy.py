"""How much kernels round beyond what their function bodies do, where that is by design."""

from __future__ import annotations

#: Kernels that add up the whole depth in one accumulator for each result: sums of 1,280 terms are
#: off by 17 to 19 epsilons where ONNX Runtime's, in blocks, are by 3.5 (2026-11, AVX-512).
_IN_ONE_SUM = 4.0
#: By the kind of a kernel: how many times the rounding errors of its body it makes.
#: Winograd's minimal filtering F(4 x 4, 3 x 3) adds and subtracts what it then multiplies: sums of
#: 256 channels are off by 7.5 times as much as a direct convolution (docs/concepts/kernels.md).
ROUNDINGS: dict[str, float] = {
    "winograd_conv": 8.0,
    "product": _IN_ONE_SUM,
    "pointwise_conv": _IN_ONE_SUM,
    "conv": _IN_ONE_SUM,
    "stem_conv": _IN_ONE_SUM,
    "expand_depthwise": _IN_ONE_SUM,
    "squeeze_excite": _IN_ONE_SUM,
    # With tiles both operands become bfloat16, of which the body rounds one, at most; see
    # `rounded_as_allowed`.
    "matmul_nbits": 2.0,
}
#: Kinds that answer NaN and infinities otherwise than their bodies: all results of one tile of
#: Winograd's are NaN where one is, and attention does not read what a mask hides.
#: The maximum of a window with NaN is NaN; ONNX Runtime passes over NaN there. Rows of a product
#: are rounded to int8: an infinite number leaves others of its block 0, or NaN. A Resize
#: multiplies some pixels by 0; which these are is rounded.
SPECIAL_VALUES_DIFFER = ("winograd_conv", "attention", "max_pool", "matmul_nbits", "resize")
#: Kinds whose kernels for CUDA give numbers where their bodies divide 0 by 0: a query that sees no
#: key gets 0, or the bias of the values.
NUMBER_FOR_NAN = ("attention",)


def roundings_of(op_type: str) -> float:
    """Return how many times its body's rounding errors a fused operator makes."""
    kind = op_type.rpartition("_")[0]
    found = (times for name, times in ROUNDINGS.items() if f"{kind}_".startswith(f"{name}_"))
    return max(found, default=1.0)


def special_values_differ(op_type: str) -> bool:
    """Return whether a fused operator may answer NaN and infinities otherwise than its body."""
    return _has_part(op_type, SPECIAL_VALUES_DIFFER)


def is_number_for_nan(op_type: str) -> bool:
    """Return whether a fused operator for CUDA gives a number where its body gives NaN."""
    return _has_part(op_type, NUMBER_FOR_NAN)


def _has_part(op_type: str, parts: tuple[str, ...]) -> bool:
    """Return whether the kind of a fused operator names one of the parts: `cast_max_pool`."""
    kind = f"_{op_type.rpartition('_')[0]}_"
    return any(f"_{part}_" in kind for part in parts)

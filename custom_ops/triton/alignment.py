"""Variants of one kernel for tensors that start at multiples of 16 bytes, and for any others."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import Call, hand_variant
from ortkit.kernels.triton.source import VariantSource
from ortkit.targets.cuda import PTX_ARCHITECTURE

#: What ONNX Runtime allocates is aligned, and what is bound from outside hardly ever is not: for
#: that PTX is enough, which takes half the time to make.
UNALIGNED_ARCHITECTURES = (PTX_ARCHITECTURE,)


def for_any_alignment(
    signature: RegionSignature,
    calls: Sequence[Call],
    text: str,
    scratch: Sequence[Extent] = (),
    conditions: Sequence[Condition] = (),
    architectures: tuple[int, ...] | None = None,
) -> tuple[VariantSource, ...]:
    """Return both variants of a kernel; the arguments are those of `hand_variant`."""
    return (
        hand_variant(
            signature, calls, text, conditions, scratch=scratch, architectures=architectures
        ),
        hand_variant(
            signature, calls, text, conditions, scratch=scratch, is_aligned=False,
            architectures=architectures or UNALIGNED_ARCHITECTURES,
        ),
    )  # fmt: skip

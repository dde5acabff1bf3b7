"""Rows of a norm that products read: in a launch before, or one row within the product."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Passed, Scratch, Size, Tensor, kernel_text

from ...forms.conv_half import optional
from ...forms.gemm_norms import Rows
from ..conv.conv_tiles import power

#: Most elements of a row; those of a block's rows, and of a warp.
MOST_DEPTH = 16384
_BLOCK, _EACH = 2048, 512
_HALF_BYTES = 2


@dataclass(frozen=True)
class NormedRows:
    """Rows [rows, depth] of a region's products.

    Args:
        signature: The region's.
        made: What they are made of.
        rows: Their number.
        depth: Of one.
        scratch: Blocks of scratch memory that a variant has in addition: the next has the norm.
        is_within: Whether a product of one row computes the norm by itself.
    """

    signature: RegionSignature
    made: Rows
    rows: Extent
    depth: int
    scratch: int = 0
    is_within: bool = False

    @property
    def is_normed(self) -> bool:
        """Whether there is a norm."""
        return self.made.norm is not None

    @property
    def place(self) -> int:
        """What many rows are read from: a tensor, or -1 - n of the scratch block n."""
        return -1 - self.scratch if self.is_normed else self.made.x

    @property
    def passed(self) -> Tensor | Scratch:
        """The same as an argument of a launch."""
        if not self.is_normed:
            return Tensor(self.made.x)
        return Scratch(self.scratch, self.signature.outputs[-1].dtype)

    def blocks(self) -> tuple[Extent, ...]:
        """Return the bytes of scratch memory that the norm goes to, if there is one."""
        return (self.rows * Extent(_HALF_BYTES * self.depth),) if self.is_normed else ()

    def launches(self) -> tuple[Call, ...]:
        """Return the launch that computes the norm before products; none without a norm."""
        norm = self.made.norm
        if norm is None:
            return ()
        block = power(self.depth)
        height = max(1, _BLOCK // block)
        arguments: tuple[Passed, ...] = (
            *self._terms(), Tensor(norm.scale), optional(norm.shift), self.total(), self.passed,
            Size(self.rows), self.depth, height, block, norm.epsilon, norm.is_centred,
        )  # fmt: skip
        return (
            Call(
                "norm_rows_kernel", arguments, ((self.rows, height), (ONE, 1), (ONE, 1)),
                max(1, min(16, power(height * block // _EACH))), fp_fusion=False,
                text=kernel_text("norm_rows_kernel"), has_early_start=True,
            ),
        )  # fmt: skip

    @property
    def is_before(self) -> bool:
        """Whether one row has a launch for its norm, too."""
        return self.is_normed and not self.is_within

    def before_one(self) -> tuple[Call, ...]:
        """Return the launch before a product of one row; none without a norm, or within."""
        return self.launches() if self.is_before else ()

    def blocks_of_one(self) -> tuple[Extent, ...]:
        """Return the bytes of scratch memory that this launch writes to, if there is one."""
        return self.blocks() if self.is_before else ()

    def of_one(self) -> tuple[Passed, ...]:
        """Return the row, what is added to it, and the norm, as arguments of a product."""
        norm = self.made.norm
        if self.is_before:
            return self.passed, None, None, None, None, None
        return (
            *self._terms(),
            None if norm is None else Tensor(norm.scale),
            optional(None if norm is None else norm.shift),
            self.total(),
        )

    def constants(self) -> tuple[float, bool]:
        """Return the epsilon of the norm within, and whether it takes the mean off."""
        norm = self.made.norm
        return (0.0, False) if norm is None or self.is_before else (norm.epsilon, norm.is_centred)

    def total(self) -> Tensor | None:
        """Return the output that has the sum before the norm; None where nothing reads it."""
        total = self.made.total
        return None if total is None else Tensor(len(self.signature.inputs) + total)

    def _terms(self) -> tuple[Passed, ...]:
        return Tensor(self.made.x), optional(self.made.skip), optional(self.made.added)

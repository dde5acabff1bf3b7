"""The products that may be lowered, as measured, and which of them are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ortkit.precision.budget import Choice
from ortkit.precision.calibrate import Method
from ortkit.precision.forms import BlockInt4, Form
from ortkit.precision.gains import Gain
from ortkit.precision.static import Range, StaticInt8

#: The part of its time that a convolution may lose before it leaves its neighbours.
_CHAINED = 0.25


@dataclass(frozen=True)
class Asked:
    """What the caller wants."""

    precision: str
    max_error: float
    method: Method = "auto"
    threads: int = 0
    bits: int = 8
    """Of 8-bit weights; see `forms.DynamicInt8`."""
    level: str = "native"
    """Of processors; see `ortkit.targets.cpu`."""
    mixes: bool = False
    """Whether bfloat16 may stand beside int8: there are kernels of both."""


@dataclass(frozen=True)
class Measured:
    """One candidate, as measured on its own."""

    form: Form
    own_error: float
    harm: float
    gain: Gain | None
    is_ours: bool = False
    """Whether a kernel of ours is to compute it: ONNX Runtime's time of a convolution alone does
    not say what one among others costs."""

    @property
    def saved_us(self) -> float | None:
        """What the form saves; None if it was not timed.

        A convolution that hardly loses stays among its neighbours: leaving would cost more.
        """
        if self.gain is None:
            return None
        saved = self.gain.saved_us
        if isinstance(self.form, StaticInt8):
            stays = (
                self.is_ours or self.form.feeds_pooling or saved > -_CHAINED * self.gain.float_us
            )
            return max(saved, 1.0) if stays else saved
        if isinstance(self.form, BlockInt4):
            return max(saved, 1.0)  # it is asked for to save memory
        return saved


@dataclass(frozen=True)
class Chosen:
    """The candidates, what is chosen of them, and with which ranges."""

    measured: tuple[Measured, ...] = ()
    choice: Choice | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    smoothing: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What norms are divided by; see `smooth.py`."""
    notes: tuple[str, ...] = ()
    plain: Choice | None = None
    """Without products in bfloat16: what becomes of those of which there is no kernel."""
    others: tuple[Choice, ...] = ()
    """Choices that may be faster as a whole."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By key, why products are in bfloat16 whatever the budget."""

    def lowered(self) -> dict[str, Form]:
        """Return the forms that are taken, by the products' keys."""
        return self._forms(self.choice)

    def without_rounded(self) -> dict[str, Form]:
        """Return the forms that are taken if no product is in bfloat16, by the products' keys."""
        return self._forms(self.plain)

    def _forms(self, choice: Choice | None) -> dict[str, Form]:
        if choice is None:
            return {}
        pairs = zip(self.measured, choice.flags, strict=True)
        return {measured.form.product.key: measured.form for measured, flag in pairs if flag}

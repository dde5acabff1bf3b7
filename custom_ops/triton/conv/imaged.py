"""What geometry of convolutions in half precision and in bytes have in common."""

from __future__ import annotations

from typing import Protocol

from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.operators.window import Window


class Imaged(Protocol):
    """A convolution, as far as its grid and its operands depend on it."""

    @property
    def planar(self) -> bool:
        """Whether channels are outermost."""

    @property
    def gate(self) -> int | None:
        """The input that has a factor for each channel; None if there is none."""

    @property
    def window(self) -> Window:
        """How the filter moves."""

    @property
    def image(self) -> tuple[Extent, Extent, int]:
        """Height, width and channels of what is convolved."""

    @property
    def channels(self) -> int:
        """How many the result has."""

    @property
    def output(self) -> TensorSpec:
        """The result."""

    @property
    def pixels(self) -> Extent:
        """Of the result, of all images."""

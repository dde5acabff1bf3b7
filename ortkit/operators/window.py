"""How a convolution's filter or a pooling's window moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Of a two-dimensional convolution or pooling; pairs are (vertical, horizontal)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    """Top, left, bottom, right."""

    @property
    def taps(self) -> int:
        """How many numbers of a channel it looks at."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_point(self) -> bool:
        """Whether each output pixel reads the one input pixel in its place."""
        return self == Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))

    @property
    def attributes(self) -> dict[str, list[int]]:
        """As an operator states it."""
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": list(self.pads),
        }

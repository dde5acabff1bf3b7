"""What a template says of an operator on images that stands between convolutions in NHWC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ImageSizes:
    """An operator on images with what goes with it, as far as its time depends on it.

    Args:
        given: Elements of the image, sizes that are not known nominal.
        made: Elements of the result.
        taps: How many numbers of a channel a window looks at.
        modes: Of Resizes: that of each.
        nodes: How many there are in all.
        biases: Those of its convolutions.
    """

    given: int
    made: int
    taps: int = 1
    modes: tuple[str, ...] = ()
    nodes: int = 1
    biases: int = 0


@dataclass(frozen=True)
class ImageAnchor:
    """A kind of operator that keeps NHWC. The target's row names it.

    Args:
        kind: Of blocks; begins the names of their nodes.
        operators: Domain and type of what a block is looked for at.
        blocks: A `BodyWriter` of the graph side, as `module:object`. Its `find` returns the block
            of a node of a `BlockFinder`, None if there is none; its `describe` what kernels see.
        estimate: Nanoseconds by ONNX Runtime's kernels, and by ours. None on GPUs, where times are
            those of what is moved.
        layers: Of a gate how many 1x1 convolutions are behind the means over an image. It makes a
            factor for each channel of what 1x1 convolutions read, from the means over rows that a
            depthwise kernel makes. Such blocks are found first, and `find` is given the anchor.
        is_pixel: Whether the result is one pixel, which lies alike in both layouts.
        alone: What such operators are called in the reason for which no chain is of them alone;
            empty where one may be.
    """

    kind: str
    operators: tuple[tuple[str, str], ...]
    blocks: str
    estimate: Callable[[ImageSizes], tuple[float, float]] | None = None
    layers: int = 0
    is_pixel: bool = False
    alone: str = ""

    @property
    def is_gate(self) -> bool:
        """Whether it makes a factor for each channel."""
        return self.layers > 0

"""What a template says of the two-dimensional convolutions that its kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ortkit.kernels.prepack import Prepack
from ortkit.refusal import Refused


@dataclass(frozen=True)
class ConvSizes:
    """A convolution with constant filters, as far as kernels and times depend on it.

    Args:
        given: N, C, H and W of what is convolved, nominal where they are not known.
        made: The same of the result.
        filters: [M, C / groups, kh, kw].
        strides: Vertical and horizontal.
        dilations: The same.
        pads: Top, left, bottom, right.
        groups: Of channels.
        is_image_known: Whether both images are of known sizes.
        steps: In bytes: roundings behind it; where the result stays float32, all nodes with it.
        is_rounded: In bytes: whether the result is rounded at once.
        microarchitecture: Of the processor; empty where it is not one that is known apart.
    """

    given: tuple[int, int, int, int]
    made: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    is_image_known: bool = True
    steps: int = 0
    is_rounded: bool = False
    microarchitecture: str = ""

    @property
    def taps(self) -> int:
        """How many numbers of a channel the filter looks at."""
        return prod(self.filters[2:])

    @property
    def outputs(self) -> int:
        """Elements of the result."""
        return prod(self.made)

    @property
    def moves_by_one(self) -> bool:
        """Whether neighbours in the result look at neighbours, and at such alone."""
        return self.strides == self.dilations == (1, 1)

    @property
    def is_point(self) -> bool:
        """Whether each output pixel reads the one input pixel in its place."""
        return self.taps == 1 and self.moves_by_one and not any(self.pads)


@dataclass(frozen=True)
class ConvAnchor:
    """A kind of convolution in NHWC. The target's row names them in the order of asking.

    Args:
        kind: Of blocks; begins the names of their nodes.
        takes: Whether the kernel is the one for a convolution, or why none is.
        layout: Of the filters' sizes, in bytes also of groups and dilations: how the kernel reads
            them.
        estimate: Nanoseconds on one thread with the result written, by ONNX Runtime's kernel in
            its blocked layout, and by ours. Only their ratio decides. None on GPUs, where times
            are those of what is moved.
        is_planar: Whether it reads NCHW.
        is_narrow: Whether what it reads and makes may be bfloat16.
        dtype: Of the images that it reads, as numpy names it.
        has_points: In bytes: whether filters of single pixels are convolutions as all others, and
            not matrices.
        rounds: In bytes: whether it reads images in float32, too, which it rounds.
    """

    kind: str
    takes: Callable[[ConvSizes], bool | Refused]
    layout: Callable[..., Prepack]
    estimate: Callable[[ConvSizes], tuple[float, float]] | None = None
    is_planar: bool = False
    is_narrow: bool = False
    dtype: str = "float32"
    has_points: bool = False
    rounds: bool = False

"""Squeeze-and-excite after the means of rows: one launch, or two where much is to be read."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ortkit.kernels.cuda import Condition
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of
from ortkit.kernels.triton.hand import Call, Scratch, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS
from ortkit.refusal import Refused

from ...forms.conv_half import epilogue_text, optional, unfit
from ...forms.squeeze_excite import SqueezeExciteForm, read_squeeze_excite
from ..alignment import for_any_alignment
from .conv_tiles import power

_MOST_CHANNELS, _MOST_HIDDEN = 65536, 4096
#: Of one block: means that are read at once, and channels of the second layer. What is read one
#: after the other is what the first layer takes its time for.
_MEANS, _MOST_ROWS, _CHANNELS, _UNITS = 8192, 128, 64, 64
#: The same for few blocks, which read all that they can before they wait: no more of them than
#: multiprocessors, or those of the next launch come where there is room. 8 images of 960 channels
#: took 25 microseconds so with the convolution behind them, and 15 without (H200, 2026-11).
_MOST_EARLY, _EARLY_MEANS, _EARLY_CHANNELS, _EARLY_WEIGHTS = 132, 16384, 32, 8192
#: Weights of the first layer that each block may read, so that one launch does for both.
_SMALL = 16384
#: Hidden units of one block: each block reads all means of an image, so that blocks have no fewer
#: than it takes to leave two for each multiprocessor.
_FEWEST_UNITS, _MOST_UNITS, _BLOCKS = 2, 16, 264
#: Where the number of images is not known: up to this many, and for how many where there are more.
_FEW, _MANY = 4, 32


@dataclass(frozen=True)
class Squeeze:
    """All is of one type in half precision.

    Products are not fused with sums: lanes that add each other's product would round one of the
    two differently, and write two values of one sum to shared memory.
    """

    form: SqueezeExciteForm

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for few images, one for many, and one unaligned."""
        batch = extent_of(self.form.signature.outputs[0].shape[0])
        if batch.static is not None:
            blocks = batch.static * ceil(self.form.channels / _EARLY_CHANNELS)
            is_small = self.form.hidden * self.form.channels <= _SMALL
            if is_small and blocks <= _MOST_EARLY:
                return self._in_one()
            return self._variants(batch.static)
        few, *_ = self._variants(_FEW, (Condition(batch, at_most=_FEW),))
        return (few, *self._variants(_MANY))

    def _variants(
        self, images: int, conditions: tuple[Condition, ...] = ()
    ) -> tuple[VariantSource, ...]:
        """Return the kernel for about this many images, and one for tensors that lie anywhere."""
        form, inputs = self.form, self.form.signature.inputs
        hidden, channels = form.hidden, form.channels
        batch, rows = (extent_of(size) for size in inputs[form.means].shape[:2])
        rows_at_once = min(_MOST_ROWS, power(rows.static or _MOST_ROWS))
        units = units_of(images, hidden)
        blocks = images * max(ceil(hidden / units), ceil(channels / _EARLY_CHANNELS))
        is_bounded = batch.static is not None or bool(conditions)
        is_early = is_bounded and blocks <= _MOST_EARLY
        at_once, width, depth = _MEANS // max(rows_at_once, units), _CHANNELS, _UNITS
        if is_early:
            at_once = min(_EARLY_MEANS // rows_at_once, _EARLY_WEIGHTS // units)
            width, depth = _EARLY_CHANNELS, _EARLY_WEIGHTS // _EARLY_CHANNELS
        squeeze = Call(
            "squeeze_kernel",
            (
                Tensor(form.means), *map(optional, form.squeeze), Scratch(0, "float32"),
                Size(rows),
                channels, hidden, rows_at_once, min(at_once, power(channels)), units,
            ),
            grid=((Extent(hidden), units), (batch, 1), (ONE, 1)),
            warps=8,
            stages=2,
            fp_fusion=False,
            has_early_start=is_early,
        )  # fmt: skip
        excite = Call(
            "excite_kernel",
            (
                Scratch(0, "float32"), *map(optional, form.excite), Tensor(len(inputs)),
                channels, hidden, width, min(depth, power(hidden)),
            ),
            grid=((Extent(channels), width), (batch, 1), (ONE, 1)),
            warps=4,
            stages=2,
            fp_fusion=False,
            has_early_start=is_early,
        )  # fmt: skip
        scratch = (batch * Extent(4 * hidden),)
        text = ("" if is_early else kernel_text("launch_plain_kernel")) + self._text()
        return for_any_alignment(form.signature, (squeeze, excite), text, scratch, conditions)

    def _in_one(self) -> tuple[VariantSource, ...]:
        """Return a kernel of one launch, whose blocks compute all hidden units each."""
        form, inputs = self.form, self.form.signature.inputs
        hidden, channels = form.hidden, form.channels
        batch, rows = (extent_of(size) for size in inputs[form.means].shape[:2])
        rows_at_once = min(_MOST_ROWS, power(rows.static or _MOST_ROWS))
        units = max(2, power(hidden))
        at_once = min(_EARLY_MEANS // max(rows_at_once, units), power(channels))
        call = Call(
            "squeeze_excite_kernel",
            (
                Tensor(form.means), *map(optional, form.squeeze), *map(optional, form.excite),
                Tensor(len(inputs)), Size(rows),
                channels, hidden, rows_at_once, at_once, units, _EARLY_CHANNELS,
            ),
            grid=((Extent(channels), _EARLY_CHANNELS), (batch, 1), (ONE, 1)),
            warps=8,
            stages=2,
            fp_fusion=False,
            has_early_start=True,
        )  # fmt: skip
        return for_any_alignment(form.signature, (call,), self._text())

    def _text(self) -> str:
        text = kernel_text("squeeze_excite_kernel")
        for name, follows in (("inner", self.form.inner), ("outer", self.form.outer)):
            text += epilogue_text(name, follows, 0, is_rough=True)
        return text


def units_of(images: int, hidden: int) -> int:
    """Return how many hidden units a block of the first layer computes."""
    units = _FEWEST_UNITS
    while units < _MOST_UNITS and images * (-(-hidden // (2 * units))) >= _BLOCKS:
        units *= 2
    return units


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return what the launches take: ONNX Runtime adds a bias in one of its own."""
    return (1 + sizes.nodes + sizes.biases) * LAUNCH_NS, 2 * LAUNCH_NS


ANCHOR = ImageAnchor(
    "squeeze_excite", (("", "GlobalAveragePool"), ("", "ReduceMean")),
    "ortkit.fusion.conv.gates:Gate", estimate, layers=2,
)  # fmt: skip


def match(signature: RegionSignature) -> Squeeze | Refused | None:
    """Return the region as squeeze-and-excite; None if it is something else."""
    found = read_squeeze_excite(signature)
    if not isinstance(found, SqueezeExciteForm):
        return found
    if refused := unfit(signature):
        return refused
    if found.channels > _MOST_CHANNELS or found.hidden > _MOST_HIDDEN:
        return Refused("squeeze-and-excite over too many channels")
    return Squeeze(found)

"""Squeeze-and-excite after the means of rows: two small launches, one for each layer."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of
from ortkit.kernels.triton.hand import Call, Scratch, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.body import TO_NHWC, Body
from ...forms.conv_half import epilogue_text, optional, unfit
from ...forms.epilogue import Epilogue, read_epilogue
from ..alignment import for_any_alignment
from .conv_tiles import power

_MOST_CHANNELS, _MOST_HIDDEN = 65536, 4096
#: Of one block: means that are read at once, channels of the second layer. What is read one after
#: the other is what the first layer takes its time for.
_MEANS, _MOST_ROWS, _CHANNELS = 8192, 128, 64
#: Hidden units of one block: each block reads all means of an image, so that blocks have no fewer
#: than it takes to leave two for each multiprocessor.
_FEWEST_UNITS, _MOST_UNITS, _BLOCKS = 2, 16, 264
#: Where the number of images is not known: up to this many, and for how many where there are more.
_FEW, _MANY = 4, 32


@dataclass(frozen=True)
class Squeeze:
    """Numbers are the region's inputs.

    Args:
        signature: The region's.
        means: [N, rows, C].
        first: Weight [H, C, 1, 1] and bias [H], None if there is none.
        second: Weight [1, 1, H, C] and bias [C].
        inner: What follows the first layer.
        outer: What follows the second.
    """

    signature: RegionSignature
    means: int
    first: tuple[int, int | None]
    second: tuple[int, int | None]
    inner: Epilogue
    outer: Epilogue

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel of two launches for few images, one for many, and one unaligned."""
        batch = extent_of(self.signature.inputs[self.means].shape[0])
        if batch.static is not None:
            return self._variants(batch.static)
        few, *_ = self._variants(_FEW, (Condition(batch, at_most=_FEW),))
        return (few, *self._variants(_MANY))

    def _variants(
        self, images: int, conditions: tuple[Condition, ...] = ()
    ) -> tuple[VariantSource, ...]:
        """Return the kernel for about this many images, and one for tensors that lie anywhere."""
        inputs = self.signature.inputs
        hidden, channels = inputs[self.first[0]].shape[:2]
        assert isinstance(hidden, int)
        assert isinstance(channels, int)
        batch, rows = (extent_of(size) for size in inputs[self.means].shape[:2])
        rows_at_once = min(_MOST_ROWS, power(rows.static or _MOST_ROWS))
        units = units_of(images, hidden)
        at_once = min(_MEANS // max(rows_at_once, units), power(channels))
        squeeze = Call(
            "squeeze_kernel",
            (
                Tensor(self.means), *map(optional, self.first), Scratch(0, "float32"), Size(rows),
                channels, hidden, rows_at_once, at_once, units,
            ),
            grid=((Extent(hidden), units), (batch, 1), (ONE, 1)),
            warps=8,
            stages=2,
        )  # fmt: skip
        excite = Call(
            "excite_kernel",
            (
                Scratch(0, "float32"), *map(optional, self.second), Tensor(len(inputs)),
                channels, hidden, _CHANNELS, min(64, power(hidden)),
            ),
            grid=((Extent(channels), _CHANNELS), (batch, 1), (ONE, 1)),
            warps=4,
            stages=2,
        )  # fmt: skip
        text = kernel_text("squeeze_excite_kernel")
        for name, follows in (("inner", self.inner), ("outer", self.outer)):
            text += epilogue_text(name, follows, 0, is_rough=True)
        scratch = (batch * Extent(4 * hidden),)
        return for_any_alignment(self.signature, (squeeze, excite), text, scratch, conditions)


def units_of(images: int, hidden: int) -> int:
    """Return how many hidden units a block of the first layer computes."""
    units = _FEWEST_UNITS
    while units < _MOST_UNITS and images * (-(-hidden // (2 * units))) >= _BLOCKS:
        units *= 2
    return units


def match(signature: RegionSignature) -> Squeeze | Refused | None:
    """Return the region as squeeze-and-excite; None if it is something else."""
    body = Body(signature)
    pools, convs = body.nodes("GlobalAveragePool"), body.nodes("Conv")
    if len(pools) != 1 or len(convs) != 2 or len(signature.outputs) != 1:
        return None
    if refused := unfit(signature):
        return refused
    first, second = sorted(convs, key=lambda conv: conv.input[0] != pools[0].output[0])
    means = _means(body, pools[0].input[0])
    result = body.transposed(body.function.output[0], TO_NHWC)
    if means is None or result is None or first.input[0] != pools[0].output[0]:
        return Refused("squeeze-and-excite of something else than means over rows")
    excite = body.input_through(second.input[1], (3, 2, 0, 1))
    weight = body.inputs.get(first.input[1])
    biases = [_bias(body, conv) for conv in (first, second)]
    if weight is None or excite is None or any(isinstance(one, Refused) for one in biases):
        return Refused("squeeze-and-excite with weights that are not the region's inputs")
    dtype = signature.outputs[0].dtype
    inner = read_epilogue(body, first.output[0], second.input[0], dtype)
    outer = read_epilogue(body, second.output[0], result, dtype)
    if isinstance(inner, Refused):
        return inner
    if isinstance(outer, Refused):
        return outer
    bias, other = (None if isinstance(one, Refused) else one for one in biases)
    found = Squeeze(signature, means, (weight, bias), (excite, other), inner, outer)
    return _misfit(found) or found


def _bias(body: Body, conv: onnx.NodeProto) -> int | Refused | None:
    """Return the input that is the bias, None if there is none."""
    if len(conv.input) < 3 or not conv.input[2]:
        return None
    number = body.inputs.get(conv.input[2])
    return Refused("a bias that is computed") if number is None else number


def _means(body: Body, name: str) -> int | None:
    """Return the input [N, rows, C] that `name` is in NCHW, with a width of 1."""
    shaped = body.producer(name, "Reshape")
    if shaped is None:
        return None
    shape = body.constant(shaped.input[1])
    if shape is None or [*shape.flat] != [0, 0, -1, 1]:
        return None
    return body.input_through(shaped.input[0], (0, 2, 1))


def _misfit(found: Squeeze) -> Refused | None:
    inputs = found.signature.inputs
    weight, means = inputs[found.first[0]].shape, inputs[found.means].shape
    hidden, channels = weight[:2] if len(weight) == 4 else ("", "")
    if not isinstance(hidden, int) or not isinstance(channels, int):
        return Refused("squeeze-and-excite with weights of unknown sizes")
    expected = [
        (found.first[0], (hidden, channels, 1, 1)),
        (found.first[1], (hidden,)),
        (found.second[0], (1, 1, hidden, channels)),
        (found.second[1], (channels,)),
        (found.means, (*means[:2], channels)),
    ]
    if any(number is not None and inputs[number].shape != shape for number, shape in expected):
        return Refused("squeeze-and-excite with sizes that do not fit")
    if channels > _MOST_CHANNELS or hidden > _MOST_HIDDEN:
        return Refused("squeeze-and-excite over too many channels")
    if found.inner.extras or found.outer.extras:
        return Refused("squeeze-and-excite with further operands")
    return None

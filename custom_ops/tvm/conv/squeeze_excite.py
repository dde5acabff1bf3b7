"""Squeeze-and-excite: from means over rows of pixels, through two layers, to a gate a channel."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused

from ...forms.body import TO_NHWC, Body
from ...forms.epilogue import Epilogue, read_epilogue
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Both lie on the stack of whichever thread runs.
_MOST_CHANNELS = 8192
_SUMS = 4
_PICOSECONDS_PER_MULTIPLY = 30


@dataclass(frozen=True)
class SqueezeExcite:
    """act2(W2 act1(W1 m + b1) + b2) of m, the mean over the rows of [N, rows, C].

    Args:
        signature: The region's; its result is [N, 1, 1, C].
        means: The input [N, rows, C].
        squeeze: The inputs W1 [R, C, 1, 1] and b1 [R].
        excite: The inputs W2 transposed, [1, 1, R, C], and b2 [C].
        inner: act1.
        outer: act2.
    """

    signature: RegionSignature
    means: int
    squeeze: tuple[int, int]
    excite: tuple[int, int]
    inner: Epilogue
    outer: Epilogue

    @property
    def _sizes(self) -> tuple[int, int]:
        hidden, channels = self.signature.inputs[self.squeeze[0]].shape[:2]
        assert isinstance(hidden, int)
        assert isinstance(channels, int)
        return hidden, channels

    def launch(self, level: str) -> Launch:
        """Units are images."""
        del level
        batch = extent_of(self.signature.inputs[self.means].shape[0])
        hidden, channels = self._sizes
        return Launch((batch,), Extent(hidden * channels), 2 * _PICOSECONDS_PER_MULTIPLY, ())

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        del level
        from ..tile.emitter import TileEmitter

        e = TileEmitter(symbol)
        buffers, begin, end = e.parameters(self.signature)
        hidden, channels = self._sizes
        rows = e.extent(self.signature.inputs[self.means].shape[1])
        with e.loop(end - begin) as index:
            image = e.share(begin + index)
            mean = e.scratch(ceil(channels / VECTOR) * VECTOR)
            self._mean(e, buffers[self.means], mean, image * rows, rows)
            inner = e.scratch(ceil(hidden / VECTOR) * VECTOR)
            with e.loop(e.i64(hidden)) as unit:
                self._squeeze(e, buffers, mean, inner, unit)
            e.each_block(hidden, lambda at, lanes: self._activate(e, inner, at, lanes))
            output = buffers[len(self.signature.inputs)]
            e.each_block(
                channels,
                lambda at, lanes: self._excite(e, buffers, inner, output, image, at, lanes),
            )
        return e.function()

    def _mean(self, e: TileEmitter, source: Buffer, mean: Buffer, first: Expr, rows: Expr) -> None:
        channels = self._sizes[1]

        def block(channel: Expr, lanes: int) -> None:
            total = e.scratch()
            with e.lanes(lanes) as lane:
                e.store(total, e.f32(0.0), lane)
            with e.loop(rows) as row:
                start = e.share((first + row) * e.i64(channels) + channel)
                with e.lanes(lanes) as lane:
                    e.store(total, total[lane] + source[start + lane], lane)
            scale = e.share(e.f32(1.0) / e.cast(rows, "float32"))
            with e.lanes(lanes) as lane:
                e.store(mean, total[lane] * scale, channel + lane)

        e.each_block(channels, block)

    def _squeeze(
        self, e: TileEmitter, buffers: list[Buffer], mean: Buffer, inner: Buffer, unit: Expr
    ) -> None:
        """Write one hidden unit's sum: whole vectors in parallel sums, then what is left."""
        channels = self._sizes[1]
        weight, bias = buffers[self.squeeze[0]], buffers[self.squeeze[1]]
        row = e.share(unit * e.i64(channels))
        sums = [e.scratch() for _ in range(_SUMS)]
        for total in sums:
            with e.vector(VECTOR) as lane:
                e.store(total, e.f32(0.0), lane)

        def add(total: Buffer, start: Expr, lanes: int) -> None:
            with e.lanes(lanes) as lane:
                product = weight[row + start + lane] * mean[start + lane]
                e.store(total, total[lane] + product, lane)

        wide = VECTOR * _SUMS
        with e.loop(e.i64(channels // wide)) as block:
            for number, total in enumerate(sums):
                add(total, e.share(block * e.i64(wide) + e.i64(number * VECTOR)), VECTOR)
        done = channels // wide * wide
        e.each_block(
            channels - done, lambda at, lanes: add(sums[0], e.share(at + e.i64(done)), lanes)
        )
        for total in sums[1:]:
            with e.vector(VECTOR) as lane:
                e.store(sums[0], sums[0][lane] + total[lane], lane)
        half = VECTOR // 2
        while half:
            with e.lanes(half) as lane:
                e.store(sums[0], sums[0][lane] + sums[0][lane + e.i64(half)], lane)
            half //= 2
        e.store(inner, sums[0][e.i64(0)] + bias[unit], unit)

    def _activate(self, e: TileEmitter, inner: Buffer, at: Expr, lanes: int) -> None:
        with e.lanes(lanes) as lane:
            e.store(inner, self.inner.write(e, inner[at + lane], []), at + lane)

    def _excite(
        self,
        e: TileEmitter,
        buffers: list[Buffer],
        inner: Buffer,
        output: Buffer,
        image: Expr,
        at: Expr,
        lanes: int,
    ) -> None:
        hidden, channels = self._sizes
        weight, bias = buffers[self.excite[0]], buffers[self.excite[1]]
        total = e.scratch()
        with e.lanes(lanes) as lane:
            e.store(total, bias[at + lane], lane)
        with e.loop(e.i64(hidden)) as unit:
            start = e.share(unit * e.i64(channels) + at)
            factor = e.share(inner[unit])
            with e.lanes(lanes) as lane:
                e.store(total, total[lane] + factor * weight[start + lane], lane)
        with e.lanes(lanes) as lane:
            place = image * e.i64(channels) + at + lane
            e.store(output, self.outer.write(e, total[lane], []), place)


def match(signature: RegionSignature) -> SqueezeExcite | Refused | None:
    """Return the region as squeeze-and-excite; None if it is something else."""
    body = Body(signature)
    pools, convs = body.nodes("GlobalAveragePool"), body.nodes("Conv")
    if len(pools) != 1 or len(convs) != 2 or len(signature.outputs) != 1:
        return None
    pool = pools[0]
    first, second = sorted(convs, key=lambda conv: conv.input[0] != pool.output[0])
    means = _means(body, pool.input[0])
    result = body.transposed(body.function.output[0], TO_NHWC)
    if means is None or result is None or first.input[0] != pool.output[0]:
        return Refused("squeeze-and-excite of something else than means over rows")
    numbers = [body.inputs.get(name) for name in (*first.input[1:], second.input[-1])]
    excite = body.input_through(second.input[1], (3, 2, 0, 1))
    if len(first.input) != 3 or len(second.input) != 3 or None in (*numbers, excite):
        return Refused("squeeze-and-excite with weights that are not the region's inputs")
    inner = read_epilogue(body, first.output[0], second.input[0])
    outer = read_epilogue(body, second.output[0], result)
    if isinstance(inner, Refused):
        return inner
    if isinstance(outer, Refused):
        return outer
    weight, bias1, bias2 = (number for number in numbers if number is not None)
    assert excite is not None
    found = SqueezeExcite(signature, means, (weight, bias1), (excite, bias2), inner, outer)
    return _misfit(found) or found


def _means(body: Body, name: str) -> int | None:
    """Return the input [N, rows, C] that `name` is in NCHW, with a width of 1."""
    shaped = body.producer(name, "Reshape")
    if shaped is None:
        return None
    shape = body.constant(shaped.input[1])
    if shape is None or [*shape.flat] != [0, 0, -1, 1]:
        return None
    return body.input_through(shaped.input[0], (0, 2, 1))


def _misfit(found: SqueezeExcite) -> Refused | None:
    inputs = found.signature.inputs
    weight, means = inputs[found.squeeze[0]].shape, inputs[found.means].shape
    if any(tensor.dtype != "float32" for tensor in (*inputs, *found.signature.outputs)):
        return Refused("squeeze-and-excite of another type than float32")
    hidden, channels = weight[:2] if len(weight) == 4 else ("", "")
    if not isinstance(hidden, int) or not isinstance(channels, int):
        return Refused("squeeze-and-excite with weights of unknown sizes")
    expected = {
        found.squeeze[0]: (hidden, channels, 1, 1),
        found.squeeze[1]: (hidden,),
        found.excite[0]: (1, 1, hidden, channels),
        found.excite[1]: (channels,),
        found.means: (*means[:2], channels),
    }
    if any(inputs[number].shape != shape for number, shape in expected.items()):
        return Refused("squeeze-and-excite with sizes that do not fit")
    if max(hidden, channels) > _MOST_CHANNELS:
        return Refused(f"squeeze-and-excite over more than {_MOST_CHANNELS} channels")
    if found.inner.extras or found.outer.extras:
        return Refused("squeeze-and-excite with further operands")
    return None

"""Squeeze-and-excite: from means over rows of pixels, through two layers, to a gate a channel."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused

from ...forms.squeeze_excite import SqueezeExciteForm, read_squeeze_excite
from ..tile.program import UnitKernel
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Both lie on the stack of whichever thread runs.
_MOST_CHANNELS = 8192
_SUMS = 4
_PICOSECONDS_PER_MULTIPLY = 30


@dataclass(frozen=True)
class SqueezeExcite(UnitKernel):
    """Both layers have a bias; all is float32."""

    form: SqueezeExciteForm

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.form.signature

    def launch(self, level: str) -> Launch:
        """Units are images."""
        del level
        form = self.form
        batch, work = extent_of(form.signature.outputs[0].shape[0]), form.hidden * form.channels
        return Launch((batch,), Extent(work), 2 * _PICOSECONDS_PER_MULTIPLY, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit the gate of an image."""
        (_, image), form = at, self.form
        hidden, channels = form.hidden, form.channels
        rows = e.extent(form.signature.inputs[form.means].shape[1])
        mean = e.scratch(ceil(channels / VECTOR) * VECTOR)
        self._mean(e, buffers[form.means], mean, image * rows, rows)
        inner = e.scratch(ceil(hidden / VECTOR) * VECTOR)
        with e.loop(e.i64(hidden)) as unit:
            self._squeeze(e, buffers, mean, inner, unit)
        e.each_block(hidden, lambda at, lanes: self._activate(e, inner, at, lanes))
        output = buffers[len(form.signature.inputs)]
        e.each_block(
            channels, lambda at, lanes: self._excite(e, buffers, inner, output, image, at, lanes)
        )

    def _mean(self, e: TileEmitter, source: Buffer, mean: Buffer, first: Expr, rows: Expr) -> None:
        channels = self.form.channels

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
        channels = self.form.channels
        weight, bias = (buffers[item or 0] for item in self.form.squeeze)
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
            e.store(inner, self.form.inner.write(e, inner[at + lane], []), at + lane)

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
        hidden, channels = self.form.hidden, self.form.channels
        weight, bias = (buffers[item or 0] for item in self.form.excite)
        total = e.scratch()
        with e.lanes(lanes) as lane:
            e.store(total, bias[at + lane], lane)
        with e.loop(e.i64(hidden)) as unit:
            start = e.share(unit * e.i64(channels) + at)
            factor = e.share(inner[unit])
            with e.lanes(lanes) as lane:
                e.store(total, total[lane] + factor * weight[start + lane], lane)
        with e.lanes(lanes) as lane:
            offset = image * e.i64(channels) + at + lane
            e.store(output, self.form.outer.write(e, total[lane], []), offset)


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return nanoseconds by elements that are pooled and multiplied, with changes of layout."""
    return 0.5 * sizes.given, 0.05 * sizes.given


ANCHOR = ImageAnchor(
    "squeeze_excite", (("", "GlobalAveragePool"), ("", "ReduceMean")),
    "ortkit.fusion.conv.gates:Gate", estimate, layers=2,
)  # fmt: skip


def match(signature: RegionSignature) -> SqueezeExcite | Refused | None:
    """Return the region as squeeze-and-excite; None if it is something else."""
    found = read_squeeze_excite(signature)
    if not isinstance(found, SqueezeExciteForm):
        return found
    if any(tensor.dtype != "float32" for tensor in (*signature.inputs, *signature.outputs)):
        return Refused("squeeze-and-excite of another type than float32")
    if None in (*found.squeeze, *found.excite):
        return Refused("squeeze-and-excite without a bias")
    if max(found.hidden, found.channels) > _MOST_CHANNELS:
        return Refused(f"squeeze-and-excite over more than {_MOST_CHANNELS} channels")
    return SqueezeExcite(found)

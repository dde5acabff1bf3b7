"""Largest values of windows of NHWC tensors: vectors of channels, of floats or bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.region.dtypes import load, memory_dtype
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, known, product
from ortkit.operators.window import Window
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import TO_NCHW, TO_NHWC, Body, integer
from ...forms.casts import BFLOAT16, source_of_cast, wide_input
from ...forms.conv import window_of
from ..tile.program import UnitKernel
from ..tile.registers import VECTOR
from .depthwise_row import row_taps

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

_PICOSECONDS_PER_TAP = 20
_MINUS_INFINITY = 0xFF800000
_HALF = 16


@dataclass(frozen=True)
class MaxPool(UnitKernel):
    """One pooling; what lies outside of the image is no part of a window.

    Args:
        signature: One input [N, H, W, C] and one output [N, OH, OW, C] of the same type, H, W and
            C known.
        window: How it moves.
    """

    signature: RegionSignature
    window: Window

    @property
    def _dtype(self) -> str:
        return self.signature.inputs[0].dtype

    @property
    def _image(self) -> tuple[int, int, int]:
        height, width, channels = known(self.signature.inputs[0].shape[1:])
        return height, width, channels

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, *row = self.signature.outputs[0].shape
        points = product(extent_of(size) for size in row)
        units = (extent_of(batch), extent_of(height))
        return Launch(units, points, self.window.taps * _PICOSECONDS_PER_TAP, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a row of the result."""
        (unit, image, row), (x, y), window = at, buffers, self.window
        columns, (height, width, channels) = self.signature.outputs[0].shape[2], self._image
        # Of one axis a row's taps inside of the image are found as another's.
        sides = Window(window.kernel[::-1], window.strides[::-1], window.dilations[::-1], (0,) * 4)
        top = e.share(row * e.i64(window.strides[0]) - e.i64(window.pads[0]))
        down = row_taps(e, window, top, e.i64(height))
        line = e.share((image * e.i64(height) + top) * e.i64(width))
        with e.loop(e.extent(columns)) as column:
            left = e.share(column * e.i64(window.strides[1]) - e.i64(window.pads[1]))
            across = row_taps(e, sides, left, e.i64(width))
            to = e.share((unit * e.extent(columns) + column) * e.i64(channels))
            start = e.share((line + left) * e.i64(channels))

            def block(at: Expr, lanes: int) -> None:
                self._block(e, (x, start + at), (y, to + at), lanes, (down, across))

            e.each_block(channels, block)

    def _block(
        self,
        e: TileEmitter,
        source: tuple[Buffer, Expr],
        sink: tuple[Buffer, Expr],
        lanes: int,
        taps: tuple[tuple[Expr, Expr], tuple[Expr, Expr]],
    ) -> None:
        """Write the largest of some channels.

        Args:
            e: The emitter that writes the statements.
            source: The image, and where the window's first pixel would lie in it.
            sink: The result, and where.
            lanes: How many channels.
            taps: Of rows and columns, the first one inside and the one after the last.
        """
        (x, start), (y, to), (down, across) = source, sink, taps
        _, width, channels = self._image
        steps = [e.i64(step) for step in self.window.dilations]
        is_bytes = self._dtype == "uint8"
        largest = e.local(VECTOR, "uint8" if is_bytes else "float32")
        with e.lanes(lanes) as lane:
            lowest = e.bitcast(e.constant(_MINUS_INFINITY, "uint32"), "float32")
            e.store(largest, e.u8(0) if is_bytes else lowest, lane)
        with e.loop(down[1] - down[0]) as number:
            line = e.share(start + (down[0] + number) * steps[0] * e.i64(width * channels))
            with e.loop(across[1] - across[0]) as other:
                offset = e.share(line + (across[0] + other) * steps[1] * e.i64(channels))
                with e.lanes(lanes) as lane:
                    known, value = largest[lane], x[offset + lane]
                    if is_bytes:
                        larger = e.tir.max(known, value)
                    else:
                        value = e.share(load(e, value, self._dtype))
                        # A NaN stays: it is not smaller.
                        is_larger = e.either(e.is_nan(value), known < value)
                        larger = e.select(is_larger, value, known)
                    e.store(largest, larger, lane)
        with e.lanes(lanes) as lane:
            value = largest[lane]
            if self._dtype == "bfloat16":
                # It is one of those that were read: nothing is rounded.
                bits = e.bitcast(value, "uint32") >> e.constant(_HALF, "uint32")
                value = e.cast(bits, memory_dtype(self._dtype))
            e.store(y, value, to + lane)


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return nanoseconds by numbers that windows look at, of an AVX-512 core (2026-11)."""
    return 0.1 * sizes.made * sizes.taps, 0.03 * sizes.made * sizes.taps


ANCHOR = ImageAnchor(
    "max_pool", (("", "MaxPool"),), "ortkit.fusion.conv.max_pool:MaxPool", estimate
)


@refusals
def match(signature: RegionSignature) -> MaxPool | Refused | None:
    """Return the region as a pooling of NHWC; None if it is something else."""
    body = Body(signature)
    pools = body.nodes("MaxPool")
    if len(pools) != 1:
        return None
    (pool,) = pools
    if len(signature.inputs) != 1 or len(signature.outputs) != 1:
        return None
    given, made = signature.inputs[0], signature.outputs[0]
    if given.dtype != made.dtype or given.dtype not in ("float32", "bfloat16", "uint8"):
        return None
    source = body.transposed(pool.input[0], TO_NCHW)
    if source is None or _read(body, source) is None or _result(body) != pool.output[0]:
        return None
    if len(pool.output) > 1 or integer(pool, "storage_order", 0):
        return Refused("a pooling that gives places too")
    window = needed(window_of(pool))
    if len(given.shape) != 4 or not all(isinstance(size, int) for size in given.shape[1:]):
        return Refused("a pooling of images whose size is not known")
    if 0 in (*given.shape, *made.shape) or min(*window.strides, *window.dilations) < 1:
        return Refused("a pooling of nothing")
    return MaxPool(signature, window)


def _read(body: Body, source: str) -> int | None:
    """Return the input that is pooled, widened if it is bfloat16."""
    return (
        body.inputs.get(source)
        if body.signature.inputs[0].dtype == "uint8"
        else wide_input(body, source)
    )


def _result(body: Body) -> str | None:
    """Return the value whose Transpose is the region's result, before it is rounded."""
    transposed = body.function.output[0]
    if body.signature.outputs[0].dtype == "bfloat16":
        transposed = source_of_cast(body, transposed, BFLOAT16) or ""
    return body.transposed(transposed, TO_NHWC)

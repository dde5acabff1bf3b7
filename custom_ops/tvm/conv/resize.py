"""Sums of Resizes of NHWC images: vectors of channels, linear or repeated, with an epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from ortkit.kernels.backend import Launch
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, known, product
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import TO_NCHW, TO_NHWC, Body
from ...forms.conv import unfit
from ...forms.epilogue import Epilogue, read_epilogue
from ..tile.program import UnitKernel

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

_PICOSECONDS_PER_PIXEL = 60
#: Nanoseconds of an element of one thread, by ONNX Runtime and by ours: of a Resize by its mode,
#: and of one pointwise node. An AVX-512 server core, ONNX Runtime 1.31.1 (2026-11).
_LINEAR, _NEAREST, _STEP = (2.0, 0.25), (0.5, 0.1), (0.5, 0.2)


@dataclass(frozen=True)
class Grid:
    """Where the pixels of a result lie along one axis of an image: at (step o + start) / parts.

    Args:
        size: Of the image.
        step: From a pixel of the result to the next one.
        start: Of the first one.
        parts: Of a pixel of the image.
        is_linear: Whether two pixels are mixed; else the one before is taken.
    """

    size: int
    step: int
    start: int
    parts: int
    is_linear: bool

    @staticmethod
    def of(mode: str, where: str, size: int, made: int) -> Grid | Refused:
        """Return the grid of a Resize from `size` to `made` pixels; see ONNX Resize-19."""
        if mode == "nearest":
            if made % size:
                return Refused("a Resize that repeats pixels unevenly")
            return Grid(size, size, 0, made, is_linear=False)
        if mode != "linear":
            return Refused(f"a Resize of mode {mode}")
        if where == "asymmetric":
            return Grid(size, size, 0, made, is_linear=True)
        if where == "align_corners":
            return Grid(size, size - 1, 0, max(1, made - 1), is_linear=True)
        if where == "pytorch_half_pixel" and made == 1:
            return Grid(size, 0, 0, 1, is_linear=True)
        if where in ("half_pixel", "pytorch_half_pixel"):
            return Grid(size, 2 * size, size - made, 2 * made, is_linear=True)
        return Refused(f"a Resize of pixels that lie {where}")

    def taps(self, e: TileEmitter, offset: Expr) -> list[tuple[Expr, Expr | None]]:
        """Return the pixels that one of the result is made of, and their weights."""
        most = e.i64((self.size - 1) * self.parts)
        at = offset * e.i64(self.step) + e.i64(self.start)
        at = e.share(e.minimum(e.tir.max(at, e.i64(0)), most))
        low = e.share(e.tir.floordiv(at, e.i64(self.parts)))
        if not self.is_linear:
            return [(low, None)]
        part = e.cast(at - low * e.i64(self.parts), "float32") * e.f32(1 / self.parts)
        # The last one is mixed with itself, so that no other is multiplied by 0.
        high = e.minimum(low + e.i64(1), e.i64(self.size - 1))
        weight = e.share(e.select(low < e.i64(self.size - 1), part, e.f32(0.5)))
        return [(low, e.share(e.f32(1.0) - weight)), (e.share(high), weight)]


@dataclass(frozen=True)
class Resized:
    """One image, the number of an input, and its grids of rows and of columns."""

    number: int
    rows: Grid
    columns: Grid


@dataclass(frozen=True)
class ResizeSum(UnitKernel):
    """epilogue(Resize(image), Resize(image), ...); numbers are the region's inputs.

    Args:
        signature: float32 images [N, h, w, C] and further operands and a result [N, H, W, C]; all
            sizes but N are known.
        images: The first one is what the epilogue reads, others are further operands of it.
        epilogue: What is computed on each result.
    """

    signature: RegionSignature
    images: tuple[Resized, ...]
    epilogue: Epilogue

    def launch(self, level: str) -> Launch:
        """Units are rows of the result."""
        del level
        batch, height, *row = self.signature.outputs[0].shape
        points = product(extent_of(size) for size in row)
        cost = len(self.images) * _PICOSECONDS_PER_PIXEL + self.epilogue.picoseconds
        return Launch((extent_of(batch), extent_of(height)), points, cost, ())

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit a row of the result."""
        (unit, image, row), (width, channels) = at, known(self.signature.outputs[0].shape[2:])
        lines = [self._lines(e, resized, image, row, channels) for resized in self.images]
        first = e.share(unit * e.i64(width * channels))
        with e.loop(e.i64(width)) as column:
            taps = [
                _pixels(e, item.columns.taps(e, column), rows, channels)
                for item, rows in zip(self.images, lines, strict=True)
            ]
            offset = e.share(first + column * e.i64(channels))

            def block(at: Expr, lanes: int) -> None:
                self._block(e, buffers, taps, e.share(offset + at), (at, lanes))

            e.each_block(channels, block)

    def _lines(
        self, e: TileEmitter, resized: Resized, image: Expr, row: Expr, channels: int
    ) -> list[tuple[Expr, Expr | None]]:
        """Return where the rows begin that a row of the result is made of, and their weights."""
        first = image * e.i64(resized.rows.size)
        pitch = e.i64(resized.columns.size * channels)
        return [
            (e.share((first + line) * pitch), weight) for line, weight in resized.rows.taps(e, row)
        ]

    def _block(
        self,
        e: TileEmitter,
        buffers: list[Buffer],
        taps: list[list[tuple[Expr, Expr | None]]],
        offset: Expr,
        part: tuple[Expr, int],
    ) -> None:
        """Write some channels of a pixel."""
        (at, lanes), numbers = part, [image.number for image in self.images]
        starts = [[e.share(start + at) for start, _ in each] for each in taps]
        with e.lanes(lanes) as lane:
            values = {}
            for number, each, begins in zip(numbers, taps, starts, strict=True):
                total = None
                for (_, weight), start in zip(each, begins, strict=True):
                    value = buffers[number][start + lane]
                    value = value if weight is None else value * weight
                    total = value if total is None else total + value
                values[number] = total
            extras = [
                values[extra] if extra in values else buffers[extra][offset + lane]
                for extra in self.epilogue.extras
            ]
            result = self.epilogue.write(e, values[numbers[0]], extras)
            e.store(buffers[len(self.signature.inputs)], result, offset + lane)


def _pixels(
    e: TileEmitter,
    columns: list[tuple[Expr, Expr | None]],
    lines: list[tuple[Expr, Expr | None]],
    channels: int,
) -> list[tuple[Expr, Expr | None]]:
    """Return where the pixels are that one of the result is made of, and their weights."""
    found: list[tuple[Expr, Expr | None]] = []
    for start, down in lines:
        for column, across in columns:
            weights = [weight for weight in (down, across) if weight is not None]
            weight = None
            if weights:
                weight = e.share(weights[0] if len(weights) == 1 else weights[0] * weights[1])
            found.append((e.share(start + column * e.i64(channels)), weight))
    return found


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return what Resizes take with what is done to their sum."""
    steps = sizes.nodes - len(sizes.modes)
    rates = [_LINEAR if mode == "linear" else _NEAREST for mode in sizes.modes]
    before, after = (
        sizes.made * (sum(each[side] for each in rates) + _STEP[side] * steps) for side in (0, 1)
    )
    return before, after


ANCHOR = ImageAnchor(
    "resize", (("", "Resize"),), "ortkit.fusion.conv.resizes:Resizes", estimate, alone="Resizes"
)


@refusals
def match(signature: RegionSignature) -> ResizeSum | Refused | None:
    """Return the region as a sum of Resizes of NHWC; None if it is something else."""
    body = Body(signature)
    nodes = body.nodes("Resize")
    if not nodes or len(signature.outputs) != 1:
        return None
    result = body.transposed(body.function.output[0], TO_NHWC)
    if result is None:
        return Refused("a Resize whose result is not NHWC")
    if refused := unfit(signature):
        return refused
    images = tuple(needed(_resized(body, node)) for node in nodes)
    numbers = [image.number for image in images]
    if len(set(numbers)) < len(numbers):
        return Refused("an image that is resized twice")
    start, *others = (str(node.output[0]) for node in nodes)
    made_of = dict(zip(others, numbers[1:], strict=True))
    epilogue = needed(read_epilogue(body, start, result, images=made_of))
    made = signature.outputs[0].shape
    plain = [extra for extra in epilogue.extras if extra not in numbers]
    if any(signature.inputs[extra].shape != made for extra in plain):
        return Refused("a further operand of another shape than the result")
    if not set(numbers[1:]) <= set(epilogue.extras) or numbers[0] in epilogue.extras:
        return Refused("a Resize that its result is not made of")
    return ResizeSum(signature, images, epilogue)


def _resized(body: Body, node: onnx.NodeProto) -> Resized | Refused:
    """Return the image of a Resize, and its grids."""
    number = body.input_through(node.input[0], TO_NCHW)
    if number is None:
        return Refused("a Resize of something that is computed in the region")
    given, made = body.signature.inputs[number].shape, body.signature.outputs[0].shape
    if len(given) != 4 or (given[0], given[3]) != (made[0], made[3]):
        return Refused("a Resize of other sizes than those of pixels")
    sizes = [size for size in (*given[1:3], *made[1:3]) if isinstance(size, int) and size > 0]
    if len(sizes) < 4:
        return Refused("a Resize of images whose size is not known")
    mode, where = (
        _text(node, "mode", "nearest"),
        _text(node, "coordinate_transformation_mode", "half_pixel"),
    )
    height, width, rows, columns = sizes
    grids = Grid.of(mode, where, height, rows), Grid.of(mode, where, width, columns)
    return Resized(number, needed(grids[0]), needed(grids[1]))


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    return next((each.s.decode() for each in node.attribute if each.name == name), default)

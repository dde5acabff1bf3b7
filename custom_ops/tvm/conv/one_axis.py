"""1-D convolutions of float32 [N, C, L] as they lie: sums over taps and channels of a group.

A tile is some channels of the result by some vectors of neighbouring places, in registers: a
number of the filter times a run of the signal. Nothing is transposed, gathered or packed. Where a
tile reaches beyond an end of the signal it is read through a row with zeros around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import onnx

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, known, product
from ortkit.refusal import Refused, RefusedError, needed, refusals

from ...forms.body import Body, integer, integers
from ...forms.epilogue import Epilogue, read_epilogue
from ..tile.gemm_tile import Destination, each_register, multiply_add, write_vector
from ..tile.program import PICOSECONDS_PER_MULTIPLY, Tuned, UnitKernel
from ..tile.registers import VECTOR, Tile, choose_tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Runs that the places are cut into, some of which may have none; vectors of places of a tile.
_RUNS, _MOST_VECTORS = 16, 6
# Of the signal under some tiles, that all channels of the result come to before the next ones.
_NEAR_BYTES = 512 * 1024
# Taps that are unrolled, and positions under a filter: a row is on the stack of a thread.
_UNROLLED_TAPS, _MOST_REACH = 8, 8192
# Multiply-adds a nanosecond of ONNX Runtime and of ours, by the channels of a group's result, at
# least: one thread of an EPYC with AVX-512 (Zen 4), onnxruntime 1.31.1, 2026-11-27. ONNX Runtime
# copies the places under each filter, for each group; in its blocked layout are only 2-D ones.
_RATES = (
    (96, 49.0, 49.0), (64, 44.0, 47.0), (32, 39.0, 48.0), (16, 32.0, 48.0), (8, 22.5, 48.0),
    (4, 14.6, 42.0), (2, 8.2, 36.0), (0, 6.4, 25.0),
)  # fmt: skip


@dataclass(frozen=True)
class OneAxisConv(Tuned, UnitKernel):
    """epilogue(Conv(x, weight) + bias), its window moving by one; numbers are the region's inputs.

    Args:
        signature: The region's.
        x: [N, C, L].
        weight: [M, C / groups, K].
        bias: [M]; None if there is none.
        groups: Of channels.
        dilation: Places from a tap to the next.
        pad: Zeros in front of the signal.
        epilogue: What is computed on each result.
    """

    signature: RegionSignature
    x: int
    weight: int
    bias: int | None
    groups: int
    dilation: int
    pad: int
    epilogue: Epilogue

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        return f"1-D convolution,{'depthwise' if self.filters[:2] == (1, 1) else 'dense'}"

    @property
    def filters(self) -> tuple[int, int, int]:
        """Of a group: channels of the result and of the signal; and taps."""
        columns, depth, taps = known(self.signature.inputs[self.weight].shape)
        return columns // self.groups, depth, taps

    @property
    def points_of_row(self) -> Extent:
        """Of a row of the result."""
        return extent_of(self.signature.outputs[0].shape[2])

    @property
    def reach(self) -> int:
        """Places under the filter in addition to the first one."""
        return (self.filters[2] - 1) * self.dilation

    def tile(self, level: str) -> Tile:
        """Return the tile: channels of the result by vectors of places."""
        static = self.points_of_row.static
        most = _MOST_VECTORS if static is None else max(1, min(_MOST_VECTORS, static // VECTOR))
        return choose_tile(self.filters[0], most, level, self.pixels, self.panel)

    def runs(self, level: str) -> int:
        """Return how many runs the places are cut into; some may have none."""
        static, width = self.points_of_row.static, self.tile(level).vectors * VECTOR
        return _RUNS if static is None else max(1, min(_RUNS, ceil(static / width)))

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of the convolution, ONNX Runtime's and ours."""
        del level
        columns, depth, taps = self.filters
        made = product(map(extent_of, self.signature.outputs[0].shape)).at(NOMINAL_SIZE)
        theirs, ours = next(rates for least, *rates in _RATES if columns >= least)
        return made * depth * taps / theirs, made * depth * taps / ours

    def launch(self, level: str) -> Launch:
        """Units are runs of places of all channels of a group."""
        (columns, depth, taps), runs = self.filters, self.runs(level)
        points = self.points_of_row * Extent(max(1, columns // runs))
        if self.points_of_row.static is not None:
            points = Extent(ceil(self.points_of_row.static * columns / runs))
        cost = depth * taps * PICOSECONDS_PER_MULTIPLY + self.epilogue.picoseconds
        batch = extent_of(self.signature.outputs[0].shape[0])
        return Launch((batch, Extent(self.groups), Extent(runs)), points, max(1, cost))

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit sizes and what lies on the stack; return what emits a unit."""
        work, units = _Writer(self, e, buffers), self.launch(e.processor).units
        return lambda unit: work.unit(*e.decode(unit, units))


class _Writer:
    """Writes the work of one unit."""

    def __init__(self, conv: OneAxisConv, e: TileEmitter, buffers: list[Buffer]) -> None:
        tile, runs = conv.tile(e.processor), conv.runs(e.processor)
        self.conv, self.e, self.buffers, self.vectors = conv, e, buffers, tile.vectors
        self.height, self.width = tile.rows, tile.vectors * VECTOR
        self.length = e.share(e.extent(conv.signature.inputs[conv.x].shape[2]))
        self.points_of_row = e.share(e.extent(conv.points_of_row))
        self.tiles = e.share(e.divide_up(self.points_of_row, self.width))
        self.of_run = e.share(e.divide_up(self.tiles, runs))
        self.row = e.scratch(self.width + conv.reach)
        output = buffers[len(conv.signature.inputs)]
        extras = [buffers[extra] for extra in conv.epilogue.extras]
        self.to = Destination(output, extras, 1, e.i64(0))

    def unit(self, image: Expr, group: Expr, run: Expr) -> None:
        """Compute a run of places, some tiles of all channels after the others."""
        e, (columns, depth, _) = self.e, self.conv.filters
        first = e.share(run * self.of_run)
        count = e.share(e.tir.max(e.minimum(self.of_run, self.tiles - first), e.i64(0)))
        near = max(1, _NEAR_BYTES // (depth * self.width * 4))
        panels, rest = ceil(columns / self.height), columns % self.height or self.height
        with e.loop(e.share(e.divide_up(count, near))) as number:
            start = e.share(first + number * e.i64(near))
            some = e.share(e.minimum(e.i64(near), first + count - start))
            with e.loop(e.i64(panels)) as panel:
                channel = e.share(group * e.i64(columns) + panel * e.i64(self.height))

                def emit(rows: int, channel: Expr = channel) -> None:
                    with e.loop(some) as index:
                        self._tile((image, group, channel), rows, start + index)

                e.peel_last(panel, panels, self.height, rest, emit)

    def _tile(self, at: tuple[Expr, Expr, Expr], rows: int, number: Expr) -> None:
        """Compute a tile of some channels; the last one of a row begins earlier, to be whole."""
        e, conv = self.e, self.conv
        last = e.tir.max(self.points_of_row - e.i64(self.width), e.i64(0))
        offset = e.share(e.minimum(number * e.i64(self.width), last))
        first = e.share(offset - e.i64(conv.pad))
        beyond = first + e.i64(self.width + conv.reach)
        blocks = []
        for is_edge in (False, True):
            with e.block() as block:
                registers = self._sums(at, rows, first, is_edge=is_edge)
                self._write(registers, at, offset, is_edge=is_edge)
            blocks.append(block)
        e.branch(e.both(first >= e.i64(0), beyond <= self.length), *blocks)

    def _sums(
        self, at: tuple[Expr, Expr, Expr], rows: int, first: Expr, *, is_edge: bool
    ) -> list[list[Buffer]]:
        """Return registers with the sums of a tile that reads from place `first` on."""
        e, conv, (image, group, channel) = self.e, self.conv, at
        (_, depth, taps), weight = conv.filters, self.buffers[conv.weight]
        registers = [[e.scratch() for _ in range(self.vectors)] for _ in range(rows)]
        for row, vectors in enumerate(registers):
            bias = e.f32(0.0)
            if conv.bias is not None:
                bias = e.share(self.buffers[conv.bias][channel + e.i64(row)])
            for register in vectors:
                with e.vector(VECTOR) as lane:
                    e.store(register, bias, lane)
        with e.loop(e.i64(depth)) as c:
            signal = (image * e.i64(conv.groups) + group) * e.i64(depth) + c
            source, start = self._signal(e.share(signal * self.length + first), first, is_edge)
            filters = e.share((channel * e.i64(depth) + c) * e.i64(taps))

            def add(tap: Expr) -> None:
                multiply_add(
                    e, registers,
                    lambda row: weight[filters + e.i64(row * depth * taps) + tap],
                    lambda vector, lane: source[
                        start + tap * e.i64(conv.dilation) + e.i64(vector * VECTOR) + lane
                    ],
                )  # fmt: skip

            if taps <= _UNROLLED_TAPS:
                for tap in range(taps):
                    add(e.i64(tap))
            else:
                with e.loop(e.i64(taps)) as tap:
                    add(tap)
        return registers

    def _signal(self, start: Expr, first: Expr, is_edge: bool) -> tuple[Buffer, Expr]:
        """Return what holds a row of the signal and where it begins: at an end, a padded copy."""
        e, x = self.e, self.buffers[self.conv.x]
        if not is_edge:
            return x, start
        with e.loop(e.i64(self.width + self.conv.reach)) as index:
            offset = e.share(first + index)
            inside = e.both(offset >= e.i64(0), offset < self.length)
            e.store(self.row, e.tir.if_then_else(inside, x[start + index], e.f32(0.0)), index)
        return self.row, e.i64(0)

    def _write(
        self, registers: list[list[Buffer]], at: tuple[Expr, Expr, Expr], start: Expr, *,
        is_edge: bool,
    ) -> None:  # fmt: skip
        """Finish and write a tile; of fewer places than it has, number by number."""
        e, conv, (image, _, channel) = self.e, self.conv, at
        scratch = e.scratch(len(registers) * self.width)
        for number, vector, register, lane in each_register(e, registers):
            e.store(scratch, register[lane], e.i64(number * self.width + vector * VECTOR) + lane)
        total = e.i64(conv.filters[0] * conv.groups)

        def write(count: Expr, width: int) -> None:
            with e.loop(e.i64(len(registers))) as row:
                source = e.share(row * e.i64(self.width))
                sink = e.share((image * total + channel + row) * self.points_of_row + start)
                with e.loop(count) as part:
                    offset = part * e.i64(width)
                    where = source + offset, sink + offset
                    write_vector(e, scratch, conv.epilogue, self.to, where, width)

        with e.block() as whole:
            write(e.i64(self.vectors), VECTOR)
        with e.block() as part:
            write(self.points_of_row, 1)
        is_whole = self.points_of_row >= e.i64(self.width) if is_edge else e.constant(1, "bool")
        e.branch(is_whole, whole, part)


@refusals
def match(signature: RegionSignature) -> OneAxisConv | Refused | None:
    """Return the region as a 1-D convolution; None if it is something else."""
    body, inputs = Body(signature), signature.inputs
    convs = body.nodes("Conv")
    if len(convs) != 1 or len(signature.outputs) != 1:
        return None
    (conv,) = convs
    x, weight = (body.inputs.get(name) for name in conv.input[:2])
    bias = body.inputs.get(conv.input[2]) if len(conv.input) > 2 else None
    if x is None or len(inputs[x].shape) != 3:
        return None
    if weight is None or (len(conv.input) > 2 and bias is None):
        return Refused("a 1-D convolution of a filter or a bias that is computed")
    if any(spec.dtype != "float32" for spec in (*inputs, *signature.outputs)):
        return Refused("a 1-D convolution that is not in float32")
    end = body.function.output[0]
    epilogue = needed(read_epilogue(body, conv.output[0], end, permutation=None))
    dilation, pad = _window(conv)
    groups = integer(conv, "group", 1)
    found = OneAxisConv(signature, x, weight, bias, groups, dilation, pad[0], epilogue)
    return _misfit(found, sum(pad)) or found


def _window(conv: onnx.NodeProto) -> tuple[int, tuple[int, ...]]:
    """Return the dilation and the pads of a convolution along one axis."""
    if integers(conv, "strides", (1,)) != (1,):
        raise RefusedError("a 1-D convolution whose window moves by more than one")
    if any(each.name == "auto_pad" and each.s != b"NOTSET" for each in conv.attribute):
        raise RefusedError("a 1-D convolution whose pads are not stated")
    return integers(conv, "dilations", (1,))[0], integers(conv, "pads", (0, 0))


def _misfit(conv: OneAxisConv, padded: int) -> Refused | None:
    inputs, made = conv.signature.inputs, conv.signature.outputs[0].shape
    given, filters = inputs[conv.x].shape, inputs[conv.weight].shape
    if len(filters) != 3 or len(made) != 3:
        return Refused("a 1-D convolution with a filter of another rank")
    if not all(isinstance(size, int) and size > 0 for size in (*filters, given[1])):
        return Refused("a 1-D convolution with a filter of unknown sizes")
    columns, depth, _ = known(filters)
    if conv.groups < 1 or columns % conv.groups or given[1] != depth * conv.groups:
        return Refused("a 1-D convolution of groups that do not fit its channels")
    if made[:2] != (given[0], columns) or not 0 <= conv.reach <= _MOST_REACH:
        return Refused("a 1-D convolution of other sizes than its result")
    length = extent_of(given[2]).static
    same = given[2] == made[2] and padded == conv.reach
    if not same and (length is None or made[2] != length + padded - conv.reach):
        return Refused("a 1-D convolution whose result is of a length that is not known")
    if conv.bias is not None and inputs[conv.bias].shape != (columns,):
        return Refused("a bias of another size than the number of channels")
    if any(inputs[extra].shape != made for extra in conv.epilogue.extras):
        return Refused("a further operand of another shape than the convolution's result")
    return None


#: Models of audio have such: vocoders, codecs, speech encoders.
ANCHOR = Anchor(
    "conv_1d", match, (("", "Conv"),), rank=3, weight="float32", longest=8, must_pay=True,
    weight_in_session=True,
)  # fmt: skip

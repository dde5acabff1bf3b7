"""Products of rows with a packed matrix, in float32, whose number of rows may not be known.

A region is `finish(X W + b)`: W in panels of a few vectors of columns, one panel after another,
`finish` a chain of pointwise operators. They may read other rows of the result's shape, or make
one value of the two halves of the columns, so that the product is never written. Panels are
computed for runs of rows; in a large product all panels of some runs come before the next runs, so
that these rows stay near. The columns of X may have factors for each image, `X diag(s) W`: then
these are multiplied into W on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import Anchor, PackedMatrix
from ortkit.kernels.backend import Launch
from ortkit.kernels.layouts.fp32_panels import gated_layout, layout
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, known, product
from ortkit.kernels.tvm.emit import NEAR, NEAREST
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import Body, integer
from ...forms.epilogue import SECOND_HALF, Epilogue, Value, read_steps
from ..tile.gemm_tile import multiply_add
from ..tile.program import PICOSECONDS_PER_MULTIPLY, Panel, Tuned, UnitKernel, open_panel
from ..tile.registers import VECTOR, Tile, choose_tile
from .fp32_rates import AVX2, estimate, packing

if TYPE_CHECKING:
    import onnx

    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

#: Of a number of rows that is not known, and at most of one that is.
RUNS = 16
# Of rows that are read once for each panel: a second level of cache.
_NEAR_BYTES = 2 << 20
# Steps of the depth that weights are asked for ahead, and those in one turn of a loop: of AVX2,
# whose tiles have one vector, and of other levels. Caches ask ahead only within a page.
_AVX2_STEPS, _STEPS = (8, 4), (32, 1)
# For whether regions are taken for alike by tuning.
_SMALL_M = 64
# Weights come at 15 GB/s, from beyond the second level of cache.
_PICOSECONDS_PER_BYTE = 66
_MOST_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Product(Tuned, UnitKernel):
    """epilogue(X diag(scale) W + bias); numbers are the region's inputs.

    Args:
        signature: The region's.
        x: float32 [..., depth].
        weight: float32 [panels, depth, width], columns of a panel next to each other.
        bias: float32 [columns]; None if there is none.
        epilogue: What is computed on each result. If it is gated, a panel has columns of both
            halves of the matrix, next to each other.
        scale: float32 [images, 1 ..., depth], or one row for all images; None if there is none.
    """

    signature: RegionSignature
    x: int
    weight: int
    bias: int | None
    epilogue: Epilogue
    scale: int | None = None

    @property
    def rows(self) -> Extent:
        """How many rows there are, or in each image if there are factors for it."""
        shape = self.signature.inputs[self.x].shape[:-1]
        return product(map(extent_of, shape if self.scale is None else shape[1:]))

    @property
    def images(self) -> Extent:
        """How many images there are; 1 without factors."""
        first = self.signature.inputs[self.x].shape[0]
        return Extent(1) if self.scale is None else extent_of(first)

    @property
    def columns(self) -> int:
        """How many columns the result has."""
        return known(self.signature.outputs[0].shape[-1:])[0]

    @property
    def packed(self) -> tuple[int, int, int]:
        """Panels, depth, and columns of a panel, of both halves if the columns have two."""
        return _panels(self.signature, self.weight)

    @property
    def halves(self) -> int:
        """In how many parts the columns are."""
        return 2 if self.epilogue.is_gated else 1

    def launch(self, level: str) -> Launch:
        """Units are runs of rows of one panel of columns."""
        panels, depth, width = self.packed
        runs = self.runs(level)
        cost = depth * PICOSECONDS_PER_MULTIPLY + self.epilogue.picoseconds
        points = self.rows * Extent(max(1, width // runs))
        if self.rows.static is not None:
            points = Extent(ceil(self.rows.static * width / runs))
        weight = min(panels * depth * width * 4 * _PICOSECONDS_PER_BYTE // 1000, _MOST_NANOSECONDS)
        images = () if self.scale is None else (self.images,)
        return Launch((*images, Extent(panels), Extent(runs)), points, max(1, cost), (), weight)

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        rows = self.rows.static
        known = "any" if rows is None else "few" if rows <= _SMALL_M else "many"
        return f"float32 product,{known} rows"

    def tile(self, level: str) -> Tile:
        """Return the tile: with its accumulators the registers are full."""
        vectors = self.packed[2] // VECTOR
        pitches = (4 * self.packed[1], 0)
        tile = choose_tile(
            self.rows.static, vectors, level, self.pixels, self.panel, pitches=pitches,
            scaled=self.scale is not None,
        )  # fmt: skip
        if tile.vectors % self.halves == 0:
            return tile
        # Of one vector, where registers are few, or of three.
        return Tile(max(1, tile.rows * tile.vectors // (tile.vectors + 1)), tile.vectors + 1)

    def runs(self, level: str) -> int:
        """Return how many runs the rows are cut into; some may have none."""
        rows = self.rows.static
        if rows is None:
            return RUNS
        return max(1, min(RUNS, ceil(rows / self.tile(level).rows)))

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit sizes; return what emits a unit."""
        work = _Writer(self, e, buffers)
        return lambda unit: work.unit(e.share(unit))


class _Writer:
    """Writes the work of one unit."""

    def __init__(self, product: Product, e: TileEmitter, buffers: list[Buffer]) -> None:
        tile, self.runs = product.tile(e.processor), product.runs(e.processor)
        self.product = product
        self.e = e
        self.buffers = buffers
        self.height = tile.rows
        self.vectors = tile.vectors
        self.image: tuple[Expr, Expr] | None = None
        """Of a unit whose image has factors: its number, and its first row."""
        self.width = product.packed[2] // product.halves
        self.rows = e.share(e.extent(product.rows))
        self.whole = e.share(e.divide_down(self.rows, tile.rows))
        self.rest = e.share(self.rows - self.whole * e.i64(tile.rows))
        self.tiles = e.share(e.divide_up(self.rows, tile.rows))
        self.of_run = e.share(e.divide_up(self.tiles, self.runs))
        self.together = e.share(self._together())
        self.ahead = e.share(self._ahead())
        self.near, self.steps = _AVX2_STEPS if e.processor == AVX2 else _STEPS

    def _together(self) -> Expr:
        """Return how many runs are computed for a panel before the next panel."""
        e, result = self.e, self.e.i64(1)
        bytes_of_run = self.of_run * e.i64(self.height * self.product.packed[1] * 4)
        for count in range(2, self.runs + 1):
            if self.runs % count == 0:
                fits = bytes_of_run * e.i64(count) <= e.i64(_NEAR_BYTES)
                result = e.select(fits, e.i64(count), result)
        return result

    def _ahead(self) -> Expr:
        """Return how many numbers of the next panel a step of the depth asks for.

        A panel comes from memory while the one before is computed, a part of it for each tile:
        else the first rows of a panel would wait for it.
        """
        e, width = self.e, self.product.packed[2]
        tiles = e.share(e.minimum(self.tiles, self.together * self.of_run))
        tiles = e.share(e.select(tiles > e.i64(1), tiles, e.i64(1)))
        return e.tir.floordiv(tiles + e.i64(width - 1), tiles)

    def unit(self, number: Expr) -> None:
        """Compute one run of rows for one panel."""
        e, panels = self.e, self.product.packed[0]
        if self.product.scale is not None:
            of_image = e.i64(panels * self.runs)
            image = e.share(e.divide_down(number, of_image))
            number = e.share(number - image * of_image)
            self.image = image, e.share(image * self.rows)
        group = e.share(self.together * e.i64(panels))
        block = e.share(e.divide_down(number, group))
        inside = e.share(number - block * group)
        panel = e.share(e.divide_down(inside, self.together))
        before = e.share(block * self.together * self.of_run)
        first = e.share(before + (inside - panel * self.together) * self.of_run)
        _, depth, width = self.product.packed
        part = (panel + e.i64(1)) * e.i64(depth * width) - before * e.i64(depth) * self.ahead
        self.next = e.share(part)
        with e.block() as some:
            self._panel(panel, first)
        e.when(first < self.tiles, some)

    def _panel(self, panel: Expr, first: Expr) -> None:
        """Compute the tiles from `first` on of whichever panel; the last may be narrower."""
        panels, width = self.product.packed[0], self.width
        left = self.product.columns - (panels - 1) * width
        self.e.peel_last(
            panel, panels, width, left, lambda columns: self._tiles(panel, first, columns)
        )

    def _tiles(self, panel: Expr, first: Expr, columns: int) -> None:
        """Compute a run of tiles of this many columns of a panel, a tile's width after another."""
        e, width = self.e, self.vectors // self.product.halves * VECTOR
        whole = columns // width
        if whole > 1:
            with e.loop(e.i64(whole)) as part:
                self._run(panel, e.share(part * e.i64(width)), first, width)
        elif whole:
            self._run(panel, e.i64(0), first, width)
        if columns % width:
            self._run(panel, e.i64(whole * width), first, columns % width)

    def _run(self, panel: Expr, begin: Expr, first: Expr, columns: int) -> None:
        """Compute a run of tiles of `columns` from column `begin` of a panel on."""
        e, product, height = self.e, self.product, self.height
        size = ceil(columns / VECTOR) * product.halves, columns % VECTOR or VECTOR
        _, depth, width = product.packed
        left = e.share(panel * e.i64(self.width) + begin)
        made = open_panel(e, self.buffers, product, left, size)
        start = e.share(panel * e.i64(depth * width) + begin)

        def tile(rows: int, row: Expr) -> None:
            number = e.divide_down(row, height)
            ahead = e.share(self.next + number * e.i64(depth) * self.ahead)
            row = row if self.image is None else row + self.image[1]
            self._tile(made, rows, e.share(row), (start, ahead))

        count = e.minimum(self.of_run, self.whole - first)
        with e.loop(count) as index:
            tile(height, (first + index) * e.i64(height))
        is_last = e.both(first + self.of_run >= self.tiles, self.rest > e.i64(0))
        known = product.rows.static
        with e.block() as tail:
            if known is not None:
                if known % height:
                    tile(known % height, self.whole * e.i64(height))
            else:
                self._parts(tile)
        if tail:
            e.when(is_last, tail)

    def _parts(self, tile: Callable[[int, Expr], None]) -> None:
        """Compute what is left after whole tiles, in tiles of powers of two."""
        e, size = self.e, 1
        while size * 2 < self.height:
            size *= 2
        while size:
            done = self.rest - e.tir.floormod(self.rest, e.i64(2 * size))
            with e.block() as part:
                tile(size, self.whole * e.i64(self.height) + done)
            e.when(e.tir.floormod(self.rest, e.i64(2 * size)) >= e.i64(size), part)
            size //= 2

    def _tile(self, panel: Panel, rows: int, row: Expr, weights: tuple[Expr, Expr]) -> None:
        """Compute a tile.

        Args:
            panel: That it is of.
            rows: How many it has.
            row: The first one.
            weights: Where those of its columns begin, and those that are asked for.
        """
        e, (_, depth, _) = self.e, self.product.packed
        first = e.share(row * e.i64(depth))
        whole = depth // self.steps * self.steps
        with panel.tile(rows, row, asks=False, is_shared=True) as registers:
            with e.loop(e.i64(depth // self.steps)) as turn:
                self._add(registers, first, weights, (turn * e.i64(self.steps), self.steps))
            if whole < depth:
                self._add(registers, first, weights, (e.i64(whole), depth - whole))

    def _add(
        self,
        registers: list[list[Buffer]],
        first: Expr,
        weights: tuple[Expr, Expr],
        steps: tuple[Expr, int],
    ) -> None:
        """Add some steps of the depth to a tile.

        Args:
            registers: Of the tile.
            first: Where its first row begins.
            weights: Where those of its columns begin, and those that are asked for.
            steps: The first one, and how many there are.
        """
        e, (_, depth, width) = self.e, self.product.packed
        offsets, scale = self._offsets(len(registers[0])), self._scale()
        x, weight = self.buffers[self.product.x], self.buffers[self.product.weight]
        for step in range(steps[1]):
            k = steps[0] + e.i64(step)
            at = weights[0] + k * e.i64(width)
            for offset in offsets:
                e.prefetch(weight, at + e.i64(self.near * width + offset), NEAREST)
            if not step:
                e.prefetch(weight, weights[1] + k * self.ahead, NEAR)

            def column(vector: int, lane: Expr, at: Expr = at, k: Expr = k) -> Expr:
                value = weight[at + e.i64(offsets[vector]) + lane]
                return value if scale is None else value * scale(k)

            def factor(row: int, k: Expr = k) -> Expr:
                return x[first + e.i64(row * depth) + k]

            multiply_add(e, registers, factor, column)

    def _scale(self) -> Callable[[Expr], Expr] | None:
        """Return what gives the factor of a step of the depth; None if there are no factors."""
        product, e = self.product, self.e
        if product.scale is None or self.image is None:
            return None
        scale, image = self.buffers[product.scale], self.image[0]
        if product.signature.inputs[product.scale].shape[0] == 1:
            image = e.i64(0)
        return lambda k: scale[image * e.i64(product.packed[1]) + k]

    def _offsets(self, vectors: int) -> list[int]:
        """Return where the vectors of a tile begin, from its first column on in a panel."""
        count = vectors // self.product.halves
        starts = range(0, self.product.halves * self.width, self.width)
        return [start + number * VECTOR for start in starts for number in range(count)]


@refusals
def match(signature: RegionSignature) -> Product | Refused | None:
    """Return the region as a product with a packed matrix; None if it is something else."""
    body = Body(signature)
    products = body.nodes("MatMul")
    if len(products) != 1 or len(signature.outputs) != 1:
        return None
    (node,) = products
    split = next(iter(body.nodes("Split")), None)
    columns = signature.outputs[0].shape[-1] if signature.outputs[0].shape else ""
    if isinstance(columns, str):
        return None
    columns *= 1 if split is None else 2
    weight = _packed(body, node.input[1], columns, split)
    if weight is None:
        return None
    x, scale = _rows(body, node.input[0])
    if x is None:
        return Refused("a product of something that is computed in the region")
    if refused := _misfit(signature, x, weight, columns):
        return refused
    start, bias = node.output[0], None
    for each in body.nodes("Add"):
        others = [name for name in each.input if name != start]
        number = body.inputs.get(others[0]) if len(others) == 1 else None
        if number is not None and signature.inputs[number].shape == (columns,):
            start, bias = each.output[0], number
            break
    epilogue = needed(_epilogue(body, start, split, columns))
    return Product(signature, x, weight, bias, epilogue, scale)


def _rows(body: Body, name: str) -> tuple[int | None, int | None]:
    """Return the input that a product's rows are, and that of the factors that they have.

    Neither is there if the rows are something else. Factors are one row for each image, or one
    for all.
    """
    if (number := body.inputs.get(name)) is not None:
        return number, None
    scaled = body.producer(name, "Mul")
    numbers = [] if scaled is None else [body.inputs.get(each) for each in scaled.input]
    for x, scale in (numbers, numbers[::-1]) if len(numbers) > 1 else ():
        if x is None or scale is None:
            continue
        rows, factors = (body.signature.inputs[each].shape for each in (x, scale))
        inner = (*(1 for _ in rows[1:-1]), *rows[-1:])
        if len(rows) > 2 and factors[1:] == inner and factors[0] in (1, rows[0]):
            return x, scale
    return None, None


@refusals
def _epilogue(
    body: Body, start: str, split: onnx.NodeProto | None, columns: int
) -> Epilogue | Refused:
    """Return what follows the product and its bias."""
    signature, end = body.signature, body.function.output[0]
    halves: list[str] = [start]
    if split is not None:
        if not _halves(body, split, start, columns):
            return Refused("a Split of something else than the columns, in two halves")
        halves = list(split.output)
    nodes = body.dependent(halves)
    made = {*halves, *(name for node in nodes for name in node.output)}
    extras = dict.fromkeys(halves[1:], SECOND_HALF)
    for name in (name for node in nodes for name in node.input):
        if name not in made and (number := body.inputs.get(name)) is not None:
            extras[name] = number
    shape = signature.outputs[0].shape
    if any(n != SECOND_HALF and signature.inputs[n].shape != shape for n in extras.values()):
        return Refused("an epilogue with an operand of another shape")
    values, epilogue = needed(read_steps(body, nodes, halves[0], extras))
    last = Value(len(epilogue.extras) + len(epilogue.steps)) if epilogue.steps else Value(0)
    if values.get(end) != last:
        return Refused("a result that is not the last step's")
    return epilogue


def _halves(body: Body, split: onnx.NodeProto, start: str, columns: int) -> bool:
    """Say whether a Split cuts what is summed up into its two halves of columns."""
    rank = len(body.signature.outputs[0].shape)
    is_last = integer(split, "axis", 0) in (-1, rank - 1)
    sizes = body.split_sizes(split, columns)
    return split.input[0] == start and is_last and sizes == [columns // 2] * 2


def _packed(body: Body, name: str, columns: int, split: onnx.NodeProto | None) -> int | None:
    """Return the input whose panels are the matrix `name`.

    They are [panels, depth, width], and [panels, depth, 2, width] of a product that is split.
    """
    for number, spec in enumerate(body.signature.inputs):
        sizes = [size for size in spec.shape if isinstance(size, int) and size > 0]
        if len(spec.shape) != len(sizes) or len(sizes) != (3 if split is None else 4):
            continue
        if split is None:
            packing = layout(sizes[1], columns, sizes[2])
        else:
            packing = gated_layout(sizes[1], columns)
        if body.packed(name, packing) == number:
            return number
    return None


def _panels(signature: RegionSignature, weight: int) -> tuple[int, int, int]:
    """Return panels, depth, and columns of a panel."""
    panels, depth, *widths = known(signature.inputs[weight].shape)
    return panels, depth, prod(widths)


def _misfit(signature: RegionSignature, x: int, weight: int, columns: int) -> Refused | None:
    given, made = signature.inputs[x], signature.outputs[0]
    panels, depth, width = _panels(signature, weight)
    if any(each.dtype != "float32" for each in (*signature.inputs, made)):
        return Refused("a product that is not in float32")
    if len(given.shape) < 2 or made.shape[:-1] != given.shape[:-1] or given.shape[-1] != depth:
        return Refused("a product of other rows than the result has")
    if width % VECTOR or not width or not depth or not (panels - 1) * width < columns:
        return Refused("a matrix that is packed in another way")
    return None


#: Products are predicted more exactly than other regions, so that less must be gained.
ANCHOR = Anchor(
    "product", operators=(("", "Gemm"), ("", "MatMul")), longest=8,
    level=(AVX2, "x86-64-v4"),
    regions="ortkit.fusion.regions.packed_regions:products", estimate=estimate,
    packed=PackedMatrix(packing, gated_layout, least_rows=16, least_side=32, least_gain=0.05),
)  # fmt: skip

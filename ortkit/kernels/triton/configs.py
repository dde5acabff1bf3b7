"""The variants of a kernel: tile sizes and warps, by an analytical model unless tuning chose.

The model: a GPU of some hundred multiprocessors wants a few blocks on each, and loads of 16 bytes
in each thread; a row that fits into the registers of a block is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.region.axes import extent_of_axes
from ortkit.kernels.region.dtypes import memory_bytes
from ortkit.kernels.region.program import Input, Lookup, Reduce
from ortkit.kernels.sizes import Extent, product
from ortkit.kernels.triton.choices import DEFAULTS, VALUES, Choices
from ortkit.kernels.triton.space import Space

#: Data that starts at such multiples, and rows of such multiples, are loaded in vectors.
MULTIPLE = 16
#: Positions stay below 2^31, those of points beyond the last one too.
NARROW_ELEMENTS = 2**31 - 2**17
_MULTIPROCESSORS = 132
_WARP = 32
#: Points of a thread: 16 bytes of float16.
_EACH = 8
_TILE = 1024
_LARGE_TENSOR = 4 << 20
#: Rows for each multiprocessor from which a block has four that are looked up. On an H200 16,384
#: rows of 768 take 18.2 us, with one row 20.7 (two warps) and 21.8 (four); 512 rows 2.7, 2.3, 2.3.
_MANY_ROWS = 32
#: Longer rows are read in a loop. Few values of a row fit twice as many points.
_LONGEST_ROW = 8192
_FEW_VALUES = 2
_LOOP_COLUMNS = 4096
#: Lengths up to which a row of unknown length is read at once.
_ROW_CLASSES = (256, 1024, 8192)
_MOST_WARPS = 16
#: Rows are split where this many times their blocks are fewer than multiprocessors, and a row has
#: this many tiles. Each reduction takes a block of scratch memory, and the shim has a bound on
#: them.
_FEW_BLOCKS = 4
_MANY_TILES = 8
_MOST_PARTS = 6
#: Parts of a row where its length, or how many rows there are, is known in a run only: their
#: tiles together have fewer columns than there are positions left beyond `NARROW_ELEMENTS`.
_PARTS = 32
#: The most points of a tile that is chosen: 32 for each thread of 16 warps.
_MOST_POINTS = 32 * 16 * _WARP
#: What a size that is not known is taken for, where one kernel has to do for all.
NOMINAL = 128
#: Sizes between which another kernel may be best: of a whole region, of its rows, of one row.
_POINT_CLASSES = (1 << 16, 1 << 20, 1 << 23)
_ROW_COUNT_CLASSES = (132, 2048)
_COLUMN_CLASSES = (128, 1024, 8192)


@dataclass(frozen=True)
class Config:
    """One variant.

    Args:
        rows: Of a tile, a power of two; 1 if it has one dim.
        columns: Of a tile, a power of two.
        warps: Of 32 threads.
        is_loop: Whether columns are worked through in a loop over tiles.
        is_wide: Whether positions have 64 bits.
        is_aligned: Whether all data starts at multiples of 16 bytes.
        multiples: Sizes that are multiples of `MULTIPLE`.
        conditions: When it may be used, but for `is_aligned`.
        parts: Between how many blocks each row is split.
        part_columns: Columns of a part, a multiple of a tile's; 0 if a run decides.
        stages: Turns of a loop that are loaded ahead; None: as many as Triton takes.
    """

    rows: int
    columns: int
    warps: int
    is_loop: bool = False
    is_wide: bool = False
    is_aligned: bool = False
    multiples: tuple[Extent, ...] = ()
    conditions: tuple[Condition, ...] = ()
    parts: int = 1
    part_columns: int = 0
    stages: int | None = None


def configs_of(space: Space, choices: Choices = DEFAULTS) -> tuple[Config, ...]:
    """Return the variants, the fastest first; one of them fits whatever the sizes are."""
    tensors = [extent_of_axes(space.axes.of(number)) for number in space.tensors]
    points = extent_of_axes((*space.outer, *space.rows, *space.columns))
    sizes = list(dict.fromkeys([*tensors, points]))
    bounds = tuple(
        Condition(size, at_most=NARROW_ELEMENTS) for size in sizes if size.static is None
    )
    must_be_wide = any((size.static or 0) > NARROW_ELEMENTS for size in sizes)
    multiples = _multiples(space)
    divisible = tuple(Condition(size, divisible_by=MULTIPLE) for size in multiples)
    chosen = (_chosen(space, shape, choices) for shape in _shapes(space))
    shapes = tuple(each for config in chosen for each in _split(space, config))
    found: list[Config] = []
    if not must_be_wide:
        found += [
            replace(
                item,
                is_aligned=True,
                multiples=multiples,
                conditions=(*divisible, *bounds, *item.conditions),
            )
            for item in shapes
        ]
        # Without vectors there is less to choose from.
        found += [
            replace(one, warps=_unaligned_warps(space, one), conditions=(*bounds, *one.conditions))
            for index, one in enumerate(shapes)
            if one.is_loop or index in (0, len(shapes) - 1)
        ]
    if must_be_wide or bounds:
        # Positions of 64 bits take twice the registers.
        is_free = shapes[-1].is_loop or space.kind != "rows"
        columns = shapes[-1].columns // (2 if is_free else 1)
        found.append(replace(shapes[-1], columns=max(1, columns), is_wide=True))
    if space.kind == "turned" and not (space.row_count.static and space.column_count.static):
        last = found[-1] if found[-1].is_wide else replace(shapes[-1], is_wide=True)
        found.append(replace(last, is_loop=True, parts=_PARTS))
    return tuple(_within_grid(space, one) for one in found)


def _unaligned_warps(space: Space, config: Config) -> int:
    """Return the warps of a variant without vectors.

    Each load has an address of its own then. Registers of twice the warps hold them, as long as
    each thread has a point. A row that is read once is reduced between its warps: they stay few.
    """
    if space.kind == "rows" and not config.is_loop:
        return config.warps
    points = config.rows * config.columns
    return max(config.warps, min(_MOST_WARPS, 2 * config.warps, points // _WARP))


def _shapes(space: Space) -> tuple[Config, ...]:
    """Return tile sizes; more than one where the length of a row is unknown, longer rows later."""
    match space.kind:
        case "flat":
            return (_flat(space.column_count),)
        case "turned":
            return (_transposed(space),)
    length = space.column_count.static
    if space.is_crosswise:
        return (_crosswise(space, length),)
    longest = _LONGEST_ROW * (2 if _full_inputs(space) <= _FEW_VALUES else 1)
    if length is not None:
        if length > longest:
            return (Config(1, _LOOP_COLUMNS, _LOOP_COLUMNS // (16 * _WARP), is_loop=True),)
        return (_row(space, length),)
    bounded = [
        replace(_row(space, most), conditions=(Condition(space.column_count, at_most=most),))
        for most in _ROW_CLASSES
    ]
    return (*bounded, Config(1, _LOOP_COLUMNS, _LOOP_COLUMNS // (16 * _WARP), is_loop=True))


def parameters_of(space: Space) -> Mapping[str, tuple[int, ...]]:
    """Return what can be chosen for a kernel: 0, the model's own, first, then others."""
    shapes = _shapes(space)
    columns = max(shape.columns for shape in shapes)
    is_loop = any(config.is_loop for config in shapes)
    most = _power_of_two(space.row_count.static)
    if space.kind == "rows" and not space.is_crosswise and len(shapes) == 1:
        most = min(most, max(1, _MOST_POINTS // columns))
    rows = tuple(value for value in VALUES["rows"] if value <= most)
    found = {"warps": VALUES["warps"]}
    if space.kind == "flat":
        points = _power_of_two(space.column_count.static)
        found["tile"] = tuple(item for item in VALUES["tile"] if item <= points)
    elif space.kind == "turned":
        found |= {"rows": rows, "tile": VALUES["tile"]}
    else:
        found |= {"rows": rows} if len(rows) > 2 else {}
        found |= {"tile": VALUES["tile"], "stages": VALUES["stages"]} if is_loop else {}
    return found


def kind_of(space: Space) -> str:
    """Return what tiles a kernel has and how many: what one choice of them depends on."""
    width = max(memory_bytes(space.program.values[number].dtype) for number in space.tensors)
    if space.kind != "rows":
        points = extent_of_axes((*space.outer, *space.rows, *space.columns)).at(NOMINAL)
        return f"{space.kind},{_class_of(points, _POINT_CLASSES)} points,{width} bytes"
    rows = _class_of(space.row_count.at(NOMINAL), _ROW_COUNT_CLASSES)
    columns = _class_of(space.column_count.at(NOMINAL), _COLUMN_CLASSES)
    across = "crosswise" if space.is_crosswise else "rows"
    return f"{across},{rows} rows of {columns},{width} bytes"


def _class_of(size: int, bounds: tuple[int, ...]) -> str:
    """Return the class of a size: up to the first bound that it does not exceed."""
    return next((f"<={bound}" for bound in bounds if size <= bound), f">{bounds[-1]}")


def _chosen(space: Space, config: Config, choices: Choices) -> Config:
    """Return what was chosen of a tile in the place of the model's, within what it may have."""
    if choices == DEFAULTS:
        return config
    rows, columns = config.rows, config.columns
    if space.kind != "flat" and choices.rows:
        rows = min(choices.rows, _power_of_two(space.row_count.static))
        area = config.rows * config.columns
        if space.kind == "turned":
            columns = max(1, area // rows)
    if space.kind == "flat":
        columns = choices.tile or columns
    elif choices.tile and (space.kind == "turned" or config.is_loop):
        columns = max(1, choices.tile // rows)
    if space.kind != "rows" or config.is_loop:
        columns = min(columns, _power_of_two(space.column_count.static))
    rows = max(1, min(rows, _MOST_POINTS // columns))
    points = rows * columns
    warps = config.warps
    if points != config.rows * config.columns:
        each = config.rows * config.columns // (config.warps * _WARP)
        warps = _warps(points, max(1, each))
    warps = min(choices.warps or warps, max(1, points // _WARP))
    stages = (choices.stages or None) if config.is_loop else None
    return replace(config, rows=rows, columns=columns, warps=warps, stages=stages)


def _flat(points: Extent) -> Config:
    size, count = _TILE, points.static
    if count is not None and count >= _LARGE_TENSOR:
        size *= 2
        return Config(1, size, 4)
    while count is not None and size > _WARP * _EACH and count < size * _MULTIPROCESSORS:
        size //= 2
    return Config(1, size, max(1, size // (_WARP * _EACH)))


def _transposed(space: Space) -> Config:
    width = max(memory_bytes(space.program.values[number].dtype) for number in space.tensors)
    area = 4096 if width <= 2 else 2048
    columns = min(64 if width <= 2 else 32, _power_of_two(space.column_count.static))
    rows = min(area // columns, _power_of_two(space.row_count.static), 256)
    columns = min(area // rows, _power_of_two(space.column_count.static), 256)
    return Config(rows, columns, _warps(rows * columns, 16))


def _row(space: Space, length: int) -> Config:
    columns, count = _power_of_two(length), space.row_count.static
    rows = max(1, _TILE // columns)
    if count is not None:
        rows = min(rows, _power_of_two(count))
        while rows > 1 and rows * columns > _WARP * _EACH and count < rows * _MULTIPROCESSORS:
            rows //= 2
    each = _EACH if rows * columns <= 2 * _TILE else 2 * _EACH
    if any(isinstance(value.node, Lookup) for value in space.program.values):
        # A row that is looked up waits for its index: more loads of a thread wait together.
        each = 2 * _EACH
        is_short = rows * columns <= _TILE
        if is_short and count is not None and count >= _MANY_ROWS * _MULTIPROCESSORS:
            rows, each = 4 * rows, 4 * _EACH
    return Config(rows, columns, _warps(rows * columns, each))


def _crosswise(space: Space, length: int | None) -> Config:
    rows = min(64, _power_of_two(space.row_count.static))
    columns = min(2 * _TILE // rows, _power_of_two(length))
    is_loop = length is None or length > columns
    return Config(rows, columns, _warps(rows * columns, _EACH), is_loop=is_loop)


def _split(space: Space, config: Config) -> tuple[Config, ...]:
    """Split rows between blocks where there are few rows and they are long.

    Returns:
        The configuration; where a run decides, what is taken for rows not so long, what is for
        few rows, and what is for all others.
    """
    rows, length = space.row_count.static, space.column_count.static
    reductions = sum(isinstance(value.node, Reduce) for value in space.program.values)
    if not config.is_loop or reductions > _MOST_PARTS:
        return (config,)
    short, few = config.columns * (_MANY_TILES - 1), _MULTIPROCESSORS // _FEW_BLOCKS * config.rows
    if (length is not None and length <= short) or (rows is not None and rows > few):
        return (config,)
    if rows is not None and length is not None:
        tiles = -(-length // config.columns)
        wanted = max(1, 2 * _MULTIPROCESSORS // max(1, -(-rows // config.rows)))
        each = -(-tiles // min(wanted, tiles))
        part_columns = each * config.columns
        return (replace(config, parts=-(-tiles // each), part_columns=part_columns),)
    not_long = Condition(space.column_count, at_most=short)
    are_few = Condition(space.row_count, at_most=few)
    return (
        *([replace(config, conditions=(not_long,))] if length is None else []),
        replace(config, parts=_PARTS, conditions=(are_few,) if rows is None else ()),
        *([config] if rows is None else []),
    )


def _warps(points: int, each: int) -> int:
    return min(max(1, points // (_WARP * each)), _MOST_WARPS)


def _power_of_two(size: int | None) -> int:
    """Return the smallest one that is not below `size`, a large one where that is unknown."""
    return 1 << 20 if size is None else 1 << max(0, size - 1).bit_length()


def _full_inputs(space: Space) -> int:
    columns = set(space.columns)
    return sum(
        isinstance(value.node, Input) and columns <= set(space.axes.of(number))
        for number, value in enumerate(space.program.values)
    )


def _multiples(space: Space) -> tuple[Extent, ...]:
    """Return the sizes of innermost dims that have to be multiples for loads in vectors."""
    found = []
    for number in space.tensors:
        owned = space.axes.of(number)
        if owned and owned[-1].extent.static is None and owned[-1].extent.factor % MULTIPLE:
            found.append(owned[-1].extent)
    if space.kind == "rows" and not space.column_count.static:
        found += [space.column_count] if space.column_count.factor % MULTIPLE else []
    return tuple(dict.fromkeys(found))


def grid_of(space: Space, config: Config) -> tuple[tuple[Extent, int], ...]:
    """Return for x, y and z what is divided by what, rounded up, to get the number of blocks."""
    one = (Extent(1), 1)
    match space.kind:
        case "flat":
            return ((space.column_count, config.columns), one, one)
        case "rows":
            return ((space.row_count, config.rows), one, one)
    outer = product(axis.extent for axis in space.outer)
    if config.is_loop:  # along x there is room for all
        return (space.row_count, config.rows), (outer, 1), (Extent(config.parts), 1)
    return (outer, 1), (space.row_count, config.rows), (space.column_count, config.columns)


def _within_grid(space: Space, config: Config) -> Config:
    """Add what keeps the grid within its bounds."""
    bounds = tuple(
        Condition(extent, at_most=most * divisor)
        for (extent, divisor), most in zip(grid_of(space, config), MAX_GRID, strict=True)
        if extent.static is None and (config.is_wide or most < MAX_GRID[0])
    )
    return replace(config, conditions=(*config.conditions, *bounds))

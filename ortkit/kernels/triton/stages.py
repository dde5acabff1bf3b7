"""The launches of a kernel and their statements.

One launch computes everything, unless rows are so few and long that a block for each would leave
most of the GPU idle. Then each level of reductions is a launch of its own, in which every block
reduces one part of a row, and a last launch makes the outputs. Whoever needs a reduction of an
earlier launch puts the parts together, always in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.region.dtypes import bits_of, compute_dtype
from ortkit.kernels.region.program import Reduce
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.body import Body
from ortkit.kernels.triton.configs import Config, grid_of
from ortkit.kernels.triton.expr import TYPES, Expr
from ortkit.kernels.triton.offsets import Group, Scope
from ortkit.kernels.triton.space import Space, reduction_levels

_ROWS, _COLUMNS = frozenset({0}), frozenset({1})


@dataclass(frozen=True)
class Stage:
    """One launch.

    Args:
        number: Index of the stage.
        level: The reductions that it computes; None for all that there is to compute.
        is_split: Whether blocks work on parts of rows.
    """

    number: int
    level: tuple[int, ...] | None
    is_split: bool

    def grid(self, space: Space, config: Config) -> tuple[tuple[Extent, int], ...]:
        """Return for x, y and z what is divided by what, rounded up."""
        x, y, z = grid_of(space, config)
        return (x, (Extent(config.parts), 1), z) if self.is_split else (x, y, z)


def stages_of(space: Space, config: Config) -> tuple[Stage, ...]:
    """Return the launches."""
    if not _splits_rows(space, config):
        return (Stage(0, None, is_split=False),)
    levels = reduction_levels(space.program)
    stages = [Stage(number, level, is_split=True) for number, level in enumerate(levels)]
    has_points = any(_is_of_points(space, index) for index in range(len(space.program.outputs)))
    return (*stages, Stage(len(levels), None, is_split=has_points))


def scratch_of(space: Space, config: Config) -> tuple[Extent, ...]:
    """Return the bytes of scratch memory for each reduction."""
    if not _splits_rows(space, config):
        return ()
    return tuple(
        space.row_count * Extent(config.parts * bits_of(_dtype(space, number)) // 8)
        for level in reduction_levels(space.program)
        for number in level
    )


def write_stage(body: Body, stage: Stage) -> None:
    """Write the statements of one launch."""
    if not _splits_rows(body.space, body.config):
        _write(body)
        return
    config, lines = body.config, body.e.lines
    wide = ".to(tl.int64)" if config.is_wide else ""
    _write_rows(body, "tl.program_id(0)")
    columns = f"tl.arange(0, {config.columns})[None, :]{wide}"
    group = Group(body.space.columns, "column", _COLUMNS)
    _add(body, group, body.space.column_count, config.columns, is_late=True)
    if stage.is_split:
        lines.append(f"part = tl.program_id(1){wide}")
        _loop_over_part(body)
    position = 0
    for level in reduction_levels(body.space.program):
        if level == stage.level:
            _reduce(body, level, columns)
            for index, number in enumerate(level, position):
                _store_part(body, index, number)
            return
        for index, number in enumerate(level, position):
            _load_parts(body, index, number)
        position += len(level)
    _finish(body, columns)


def _splits_rows(space: Space, config: Config) -> bool:
    """Say whether blocks reduce parts of rows; parts of transposed tensors are independent."""
    return config.parts > 1 and space.kind == "rows"


def _loop_over_part(body: Body) -> None:
    """Let loops run over the columns of this block's part; there may be none left for it."""
    config, count = body.config, body.parameters.size(body.space.column_count)
    size = str(config.part_columns)
    if not config.part_columns:
        size, together = "part_columns", config.parts * config.columns
        body.e.lines.append(
            f"{size} = ({count} + {together - 1}) // {together} * {config.columns}"
        )
    body.loop = (f"part * {size}", f"tl.minimum(part * {size} + {size}, {count})")


def _dtype(space: Space, number: int) -> str:
    return compute_dtype(space.program.values[number].dtype)


def _store_part(body: Body, index: int, number: int) -> None:
    value, name = body.results[number], body.parameters.scratch(index, _dtype(body.space, number))
    mask = body.mask(_ROWS)
    body.e.lines.append(
        f"tl.store({name} + row * {body.config.parts} + part, {value.text}"
        f"{f', mask={mask}' if mask else ''})"
    )


def _load_parts(body: Body, index: int, number: int) -> None:
    """Put the parts of a reduction together."""
    e, parts, dtype = body.e, body.config.parts, _dtype(body.space, number)
    node = body.space.program.values[number].node
    assert isinstance(node, Reduce)
    lanes = 1 << (parts - 1).bit_length()
    lane = f"tl.arange(0, {lanes})[None, :]"
    masks = (body.mask(_ROWS), f"({lane} < {parts})" if lanes > parts else "")
    mask = " & ".join(item for item in masks if item)
    name = body.parameters.scratch(index, dtype)
    text = f"tl.load({name} + row * {parts} + {lane}{f', mask={mask}, other=0' if mask else ''})"
    value = e.share(Expr(text, dtype))
    if lanes > parts:
        identity = body.identity(node.kind, dtype)
        value = e.share(Expr(f"tl.where({lane} < {parts}, {value.text}, {identity})", dtype))
    body.finish(number, value, node.kind)


def _is_of_points(space: Space, index: int) -> bool:
    return bool(set(space.axes.of(space.program.outputs[index])) & set(space.columns))


def _write(body: Body) -> None:
    space, config, lines = body.space, body.config, body.e.lines
    wide = ".to(tl.int64)" if config.is_wide else ""
    if space.kind == "flat":
        lines.append(
            f"point = tl.program_id(0){wide} * {config.columns} + tl.arange(0, {config.columns})"
        )
        _add(body, Group(space.columns, "point", _COLUMNS), space.column_count, config.columns)
        body.store(range(len(space.program.outputs)))
        return
    number = ["tl.program_id(0)", "tl.program_id(1)", "tl.program_id(2)"]
    if space.kind == "turned":
        lines.append(f"outer = {number.pop(1 if config.is_loop else 0)}{wide}")
        body.groups.append(Group(space.outer, "outer", frozenset()))
    _write_rows(body, number.pop(0))
    if config.parts > 1:
        lines.append(f"part = {number.pop(0)}{wide}")
        _loop_over_part(body)
    columns = f"tl.arange(0, {config.columns})[None, :]{wide}"
    if not config.is_loop:
        start = f"{number.pop(0)}{wide} * {config.columns} + " if space.kind == "turned" else ""
        lines.append(f"column = {start}{columns}")
        _add(body, Group(space.columns, "column", _COLUMNS), space.column_count, config.columns)
    else:
        _add(
            body, Group(space.columns, "column", _COLUMNS), space.column_count, config.columns,
            is_late=True,
        )  # fmt: skip
    for level in reduction_levels(space.program):
        _reduce(body, level, columns)
    _finish(body, columns)


def _write_rows(body: Body, number: str) -> None:
    config, space = body.config, body.space
    wide = ".to(tl.int64)" if config.is_wide else ""
    body.e.lines.append(
        f"row = {number}{wide} * {config.rows} + tl.arange(0, {config.rows})[:, None]"
    )
    _add(body, Group(space.rows, "row", _ROWS), space.row_count, config.rows)


def _add(body: Body, group: Group, count: Extent, block: int, *, is_late: bool = False) -> None:
    """Count points of a group, and mask those beyond the last one."""
    body.groups.append(group)
    (dim,) = group.dims
    if block > 1 and (count.static is None or count.static % block):
        mask = f"in_{group.name}s"
        if not is_late:
            body.e.lines.append(f"{mask} = {group.name} < {body.parameters.size(count)}")
        body.masks[dim] = mask


def _loop(body: Body, columns: str) -> Scope:
    """Begin a loop over the columns."""
    scope = Scope()
    scope.lines.append(f"column = start + {columns}")
    if 1 in body.masks:
        size = body.parameters.size(body.space.column_count)
        scope.lines.append(f"{body.masks[1]} = column < {size}")
    body.scopes.append(scope)
    return scope


def _end(body: Body) -> None:
    scope = body.scopes.pop()
    begin, end = body.loop or ("0", body.parameters.size(body.space.column_count))
    head = f"for start in range({begin}, {end}, {body.config.columns}):"
    body.e.lines += [head, *(f"    {line}" for line in scope.lines)]


def _reduce(body: Body, level: tuple[int, ...], columns: str) -> None:
    """Compute the reductions of one level."""
    program, config, e = body.space.program, body.config, body.e
    if config.is_loop:
        _loop(body, columns)
    tiles = []
    for number in level:
        node = program.values[number].node
        assert isinstance(node, Reduce)
        x = body.value(node.x)
        dims = body.dims_of(set(body.space.axes.of(node.x)))
        with body.at(_COLUMNS):
            tile, identity = body.reduced(node.kind, x, dims)
            if config.is_loop:
                total = e.name()
                shape = f"({config.rows}, {config.columns})"
                body.scopes[0].lines.append(
                    f"{total} = tl.full({shape}, {identity}, {TYPES[x.dtype]})"
                )
                e.lines.append(_step(total, tile.text, node.kind))
                tile = type(tile)(total, tile.dtype)
        tiles.append((number, tile, node.kind))
    if config.is_loop:
        _end(body)
    for number, tile, kind in tiles:
        body.finish(number, tile, kind)


def _step(total: str, tile: str, kind: str) -> str:
    if kind == "sum":
        return f"{total} += {tile}"
    return f"{total} = tl.where({tile} {'>' if kind == 'max' else '<'} {total}, {tile}, {total})"


def _finish(body: Body, columns: str) -> None:
    """Store the outputs: those of rows once, those of points in a loop if there is one."""
    indices = range(len(body.space.program.outputs))
    of_points = [index for index in indices if _is_of_points(body.space, index)]
    of_rows = [index for index in indices if index not in of_points]
    if not body.config.is_loop:
        body.store(indices)
        return
    if of_points:
        _loop(body, columns)
        body.store(of_points)
        _end(body)
    body.store(of_rows)  # by every part of a row alike

"""From a signature and a variant to the source of a Triton module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortkit.kernels.backend import Refused
from ortkit.kernels.cuda import CeilDiv, Step, Variant, rename_extent
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, symbols_of
from ortkit.kernels.triton.body import Body, Group, Scope
from ortkit.kernels.triton.configs import Config, configs_of, grid_of
from ortkit.kernels.triton.emit import TYPES
from ortkit.kernels.triton.helpers import Helpers
from ortkit.kernels.triton.parameters import Parameter, Parameters
from ortkit.kernels.triton.space import Space, reduction_levels, space_of
from ortkit.kernels.tvm.program import Reduce

_WARP = 32
_ROWS, _COLUMNS = frozenset({0}), frozenset({1})


@dataclass(frozen=True)
class StepSource:
    """One launch.

    Args:
        entry: The function's name.
        text: A whole module, in Python.
        parameters: Of the function, in order.
        grid: What is divided by what, rounded up, along x, y and z.
        warps: Of 32 threads.
    """

    entry: str
    text: str
    parameters: tuple[Parameter, ...]
    grid: tuple[tuple[Extent, int], ...]
    warps: int

    def step(self, shared_bytes: int, symbols: tuple[str, ...]) -> Step:
        """Return how it is launched."""
        x, y, z = (CeilDiv(rename_extent(size, symbols), by) for size, by in self.grid)
        return Step(
            self.entry,
            (x, y, z),
            self.warps * _WARP,
            shared_bytes,
            tuple(parameter.argument for parameter in self.parameters),
        )


@dataclass(frozen=True)
class VariantSource:
    """One variant of a kernel before it is compiled."""

    config: Config
    symbols: tuple[str, ...]
    steps: tuple[StepSource, ...]

    def variant(self, shared_bytes: Sequence[int]) -> Variant:
        """Return it as data; each step is told its shared memory."""
        conditions = tuple(
            replace(one, extent=rename_extent(one.extent, self.symbols))
            for one in self.config.conditions
        )
        steps = (
            step.step(size, self.symbols)
            for step, size in zip(self.steps, shared_bytes, strict=True)
        )
        return Variant(conditions, self.config.is_aligned, tuple(steps))


def sources_of(signature: RegionSignature) -> tuple[VariantSource, ...] | Refused:
    """Return the source of every variant of the region's kernel, or why there is none."""
    space = space_of(signature)
    if isinstance(space, Refused):
        return space
    return tuple(_variant(signature, space, config) for config in configs_of(space))


def _variant(signature: RegionSignature, space: Space, config: Config) -> VariantSource:
    tensors = (*signature.inputs, *signature.outputs)
    symbols = symbols_of(tensors)
    parameters = Parameters(config, symbols, [t.dtype for t in tensors], len(signature.inputs))
    body = Body(space, config, parameters, Helpers())
    _write(body)
    entry = f"ortkit_{signature.key}"
    text = _module(body, entry)
    step = StepSource(entry, text, parameters.all(), grid_of(space, config), config.warps)
    return VariantSource(config, symbols, (step,))


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
        lines.append(f"outer = {number.pop(0)}{wide}")
        body.groups.append(Group(space.outer, "outer", frozenset()))
    lines.append(
        f"row = {number.pop(0)}{wide} * {config.rows} + tl.arange(0, {config.rows})[:, None]"
    )
    _add(body, Group(space.rows, "row", _ROWS), space.row_count, config.rows)
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
    size = body.parameters.size(body.space.column_count)
    head = f"for start in range(0, {size}, {body.config.columns}):"
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
    space = body.space
    owned = [set(space.axes.of(number)) for number in space.program.outputs]
    of_points = [place for place, axes in enumerate(owned) if axes & set(space.columns)]
    of_rows = [place for place in range(len(owned)) if place not in of_points]
    if not body.config.is_loop:
        body.store(range(len(owned)))
        return
    if of_points:
        _loop(body, columns)
        body.store(of_points)
        _end(body)
    body.store(of_rows)


def _module(body: Body, entry: str) -> str:
    """Return the whole module."""
    sizes = [f"#   {name}: {extent}" for extent, name in body.parameters.sizes.items()]
    names = ", ".join(parameter.name for parameter in body.parameters.all())
    head = ["import triton", "import triton.language as tl", "", ""]
    helpers = [part for text in body.helpers.functions.values() for part in (text, "")]
    lines = [f"    {line}" for line in body.e.lines]
    return "\n".join(
        [*head, *helpers, *sizes, "@triton.jit", f"def {entry}({names}):", *lines, ""]
    )

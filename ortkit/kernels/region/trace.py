"""A walk through a program as its kernel will compute it: what is read where, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortkit.kernels.region.axes import Axes, Axis
from ortkit.kernels.region.dtypes import memory_bytes
from ortkit.kernels.region.indices import (
    HERE,
    Where,
    index_of,
    key_of,
    linear,
    loops_of,
    part_where,
    row_where,
    slice_where,
    starts_of,
)
from ortkit.kernels.region.program import (
    Concat,
    Input,
    Lookup,
    Point,
    Position,
    Program,
    Reduce,
    Slice,
    operands_of,
)
from ortkit.kernels.sizes import product
from ortkit.refusal import RefusedError

#: Loading lanes one by one, in simple vector operations.
_SCATTERED_LOAD = 40
#: Loading lanes by way of a tile that is transposed in registers.
_TILED_LOAD = 6
#: Lanes that are further apart than this many elements each touch a cache line of their own.
_LARGEST_STEP = 4


@dataclass
class Pass:
    """One run over the points: for one reduction, or for the outputs."""

    roots: tuple[int, ...]
    plain: set[int] = field(default_factory=set)
    """Values that are asked for at the loops' own position, and nowhere else."""
    operands: dict[int, tuple[int, ...]] = field(default_factory=dict)
    costs: dict[int, int] = field(default_factory=dict)


@dataclass
class Trace:
    """What the walk found.

    Args:
        breaks: Per axis, the positions where its loop must be cut: parts of a Concat meet there.
        flops: Simple operations a point.
        bytes: Memory traffic a point.
        only_here: Inputs that are read nowhere but at the loops' own position.
        far: Inputs in which neighbours along the vector axis lie far apart. They lie densely along
            `across`, and can be read in tiles.
    """

    passes: list[Pass] = field(default_factory=list)
    breaks: dict[Axis, tuple[int, ...]] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    only_here: set[int] = field(default_factory=set)
    far: set[int] = field(default_factory=set)
    across: Axis | None = None


def trace(program: Program, axes: Axes, loops: Sequence[Axis], vector: Axis | None) -> Trace:
    """Walk the program.

    Raises:
        RefusedError: Something would be read in a way that kernels do not have.
    """
    walk = _Walk(program, axes, frozenset(loops), vector)
    for value in program.values:
        if isinstance(value.node, Reduce):
            walk.run((value.node.x,))
            walk.found.flops += 1
    walk.run(program.outputs)
    for output in program.outputs:
        walk.check_lanes(output, HERE, is_store=True)
        walk.count_bytes(output)
    walk.found.only_here = walk.read_here - walk.read_elsewhere
    if not walk.found.far <= walk.found.only_here:
        raise RefusedError("an operand that is read in tiles and elsewhere")
    return walk.found


@dataclass
class _Walk:
    program: Program
    axes: Axes
    loops: frozenset[Axis]
    vector: Axis | None
    found: Trace = field(default_factory=Trace)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    read_here: set[int] = field(default_factory=set)
    read_elsewhere: set[int] = field(default_factory=set)

    def run(self, roots: tuple[int, ...]) -> None:
        current = Pass(roots)
        self.found.passes.append(current)
        elsewhere: set[int] = set()
        visited: set[tuple[object, ...]] = set()
        stack: list[tuple[int, Where]] = [(root, HERE) for root in roots]
        while stack:
            number, where = stack.pop()
            key = (number, key_of(self.axes, number, where))
            if key in visited:
                continue
            visited.add(key)
            if any(index is not None for index in key[1]):
                elsewhere.add(number)
            current.plain.add(number)
            stack += self.visit(current, number, where, is_new=key not in self.seen)
            self.seen.add(key)
        current.plain -= elsewhere

    def visit(
        self, current: Pass, number: int, where: Where, *, is_new: bool
    ) -> list[tuple[int, Where]]:
        loops = loops_of(self.axes, number, where)
        if not loops <= self.loops:
            raise RefusedError("a value over points that no output has")
        node = self.program.values[number].node
        current.operands[number] = operands_of(node)
        is_vector = self.vector is None or self.vector in loops
        if isinstance(node, Point) and is_vector:
            current.costs[number] = node.op.flops
            self.found.flops += node.op.flops if is_new else 0
        match node:
            case Input():
                self.read(number, where, is_new=is_new)
                return []
            case Reduce():
                if any(index is not None for index in key_of(self.axes, number, where)):
                    raise RefusedError("a reduction that is read from another row")
                return []
            case Position(dim=dim):
                linear(where, self.axes.dims[number][dim])
                return []
            case Slice(x=x):
                return [(x, slice_where(self.axes, number, node, where))]
            case Concat():
                return self.parts(number, node, where)
            case Lookup(x=x, indices=indices):
                return [(indices, where), (x, row_where(self.axes, node, where))]
        return [(operand, where) for operand in operands_of(node)]

    def parts(self, number: int, node: Concat, where: Where) -> list[tuple[int, Where]]:
        index = linear(where, self.axes.dims[number][node.dim])
        starts = starts_of(self.program, node)
        if len(index.terms) > 1:
            raise RefusedError("a Concat along a dim that a Reshape splits")
        for axis, factor in index.terms:
            extent = axis.extent.static
            if extent is None:
                raise RefusedError("a Concat along a size that may vary")
            cuts = {-((index.offset - start) // factor) for start in starts[1:-1]}
            cuts = {cut for cut in cuts if 0 < cut < extent}
            if cuts:
                self.found.breaks[axis] = tuple(sorted({*self.found.breaks.get(axis, ()), *cuts}))
        return [
            (part, part_where(self.axes, node, part, index, start, where))
            for part, start in zip(node.parts, starts, strict=False)
        ]

    def read(self, number: int, where: Where, *, is_new: bool) -> None:
        is_here = all(index is None for index in key_of(self.axes, number, where))
        (self.read_here if is_here else self.read_elsewhere).add(number)
        if is_new:
            self.check_lanes(number, where, is_store=False)
            self.count_bytes(number)

    def check_lanes(self, number: int, where: Where, *, is_store: bool) -> None:
        """Refuse what lies far apart for neighbouring lanes; count what lies apart."""
        step = 0
        owned = self.axes.of(number)
        for index, axis in enumerate(owned):
            factor = dict(index_of(where, axis).terms).get(self.vector, 0) if self.vector else 0
            if not factor:
                continue
            stride = product(inner.extent for inner in owned[index + 1 :]).static
            step += _LARGEST_STEP + 1 if stride is None else factor * stride
        if step > (1 if is_store else _LARGEST_STEP):
            if is_store or not self.take_tiles(number, where):
                raise RefusedError("neighbours along the innermost dim lie far apart")
            return
        if step > 1:
            self.found.flops += _SCATTERED_LOAD

    def take_tiles(self, number: int, where: Where) -> bool:
        """Read an input in tiles if that can be done: all such inputs along the same axis."""
        innermost = self.axes.of(number)[-1]
        if where or self.axes.reduced or self.found.across not in (None, innermost):
            return False
        self.found.far.add(number)
        self.found.across = innermost
        self.found.flops += _TILED_LOAD
        return True

    def count_bytes(self, number: int) -> None:
        """Count an element of memory traffic, but for tensors that stay in a cache."""
        owned = set(self.axes.of(number))
        outer = self.loops - ({self.vector} if self.vector else set())
        if (self.vector is None or self.vector in owned) and (not outer or owned & outer):
            self.found.bytes += memory_bytes(self.program.values[number].dtype)

"""A region's body as typed values over sizes: pointwise operators, views and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ortkit.kernels.region.ops import POINTWISE_OPS, Attributes, PointwiseOp
from ortkit.kernels.sizes import ONE, Extent, Shape, product
from ortkit.refusal import Refused, RefusedError


@dataclass(frozen=True)
class Input:
    """Tensor number `index` of the region."""

    index: int


@dataclass(frozen=True)
class Constant:
    """One number that is written into the code."""

    value: float | int | bool


@dataclass(frozen=True)
class Point:
    """A pointwise operator; None among the operands is an absent optional input."""

    op_type: str
    operands: tuple[int | None, ...]
    attributes: Attributes

    @property
    def op(self) -> PointwiseOp:
        """The operator's entry in the table."""
        return POINTWISE_OPS[self.op_type]


@dataclass(frozen=True)
class Broadcast:
    """`x` repeated along dims of size 1, and along new leading dims."""

    x: int


@dataclass(frozen=True)
class Transpose:
    """Dim i of the result is dim `perm[i]` of `x`."""

    x: int
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Reshape:
    """The same elements in the same order."""

    x: int


@dataclass(frozen=True)
class Slice:
    """Every `step`-th element of one dim from `start` on."""

    x: int
    dim: int
    start: int
    step: int


@dataclass(frozen=True)
class Concat:
    """Values one after the other along one dim, which has a known size in each."""

    parts: tuple[int, ...]
    dim: int


@dataclass(frozen=True)
class Lookup:
    """Rows of the input `x` along its first dim, at `indices`.

    An index below 0 counts from the end. A row that is not there holds zeros.
    """

    x: int
    indices: int


@dataclass(frozen=True)
class Reduce:
    """One number for each row: `kind` (see reductions.py) over `dims`, which become 1."""

    kind: str
    x: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Position:
    """The position along one dim of the result's shape, as an int64."""

    dim: int


@dataclass(frozen=True)
class Size:
    """A size as a number, for means."""

    extent: Extent


Node: TypeAlias = (
    Input
    | Constant
    | Size
    | Position
    | Point
    | Broadcast
    | Transpose
    | Reshape
    | Slice
    | Concat
    | Lookup
    | Reduce
)


@dataclass(frozen=True)
class Value:
    """One value of a region: what makes it, its ONNX element type and its shape."""

    node: Node
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Program:
    """All values of a region, each after what it is made of; the inputs come first.

    Args:
        values: By number.
        inputs: How many inputs there are.
        outputs: The number of each output's value.
    """

    values: tuple[Value, ...]
    inputs: int
    outputs: tuple[int, ...]


def operands_of(node: Node) -> tuple[int, ...]:
    """Return the numbers of the values that `node` is made of."""
    match node:
        case Point(operands=operands):
            return tuple(operand for operand in operands if operand is not None)
        case Concat(parts=parts):
            return parts
        case Lookup(x=x, indices=indices):
            return x, indices
        case Input() | Constant() | Size() | Position():
            return ()
    return (node.x,)


@dataclass
class Builder:
    """Values in the making. Its methods check their arguments and raise `RefusedError`."""

    values: list[Value] = field(default_factory=list)

    def add(self, node: Node, dtype: str, shape: Sequence[Extent]) -> int:
        """Append a value and return its number."""
        self.values.append(Value(node, dtype, tuple(shape)))
        return len(self.values) - 1

    def shape(self, x: int) -> Shape:
        """Return the shape of value `x`."""
        return self.values[x].shape

    def dtype(self, x: int) -> str:
        """Return the ONNX element type of value `x`."""
        return self.values[x].dtype

    def constant(self, value: float | int | bool, dtype: str, rank: int = 0) -> int:
        """Return a constant of shape [1, ...]."""
        return self.add(Constant(value), dtype, (ONE,) * rank)

    def point(
        self, op_type: str, *operands: int | None, attributes: Attributes | None = None
    ) -> int:
        """Apply a pointwise operator with numpy's broadcasting."""
        op = POINTWISE_OPS.get(op_type)
        if op is None:
            raise RefusedError(f"operator {op_type}")
        merged = {**op.attributes, **(attributes or {})}
        there = [operand for operand in operands if operand is not None]
        dtype = op.result([self.dtype(operand) for operand in there], merged)
        if isinstance(dtype, Refused):
            raise RefusedError(f"{op_type} with {dtype.reason}")
        shape = broadcast_shapes([self.shape(operand) for operand in there])
        return self.add(Point(op_type, operands, merged), dtype, shape)

    def broadcast(self, x: int, shape: Sequence[Extent]) -> int:
        """Return `x` as Expand to `shape` makes it."""
        result = broadcast_shapes([self.shape(x), tuple(shape)])
        return x if result == self.shape(x) else self.add(Broadcast(x), self.dtype(x), result)

    def transpose(self, x: int, perm: Sequence[int]) -> int:
        """Return `x` with its dims in another order."""
        shape = self.shape(x)
        if sorted(perm) != list(range(len(shape))):
            raise RefusedError(f"Transpose of rank {len(shape)} by {list(perm)}")
        return self.add(Transpose(x, tuple(perm)), self.dtype(x), [shape[dim] for dim in perm])

    def reshape(self, x: int, shape: Sequence[Extent]) -> int:
        """Return the elements of `x` in another shape."""
        if product(shape) != product(self.shape(x)):
            raise RefusedError(f"Reshape of {text(self.shape(x))} to {text(tuple(shape))}")
        return x if tuple(shape) == self.shape(x) else self.add(Reshape(x), self.dtype(x), shape)

    def slice(self, x: int, dim: int, start: int, stop: int, step: int = 1) -> int:
        """Return part of `x`; 0 <= start <= stop <= size, step >= 1."""
        shape = list(self.shape(x))
        shape[dim] = Extent((stop - start + step - 1) // step)
        if shape[dim] == self.shape(x)[dim]:
            return x
        if shape[dim] == ONE:
            step = 1
        return self.add(Slice(x, dim, start, step), self.dtype(x), shape)

    def concat(self, parts: Sequence[int], dim: int) -> int:
        """Return values one after the other along `dim`."""
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shape(parts[0]))
        total = 0
        for part in parts:
            size = self.shape(part)[dim].static
            if size is None:
                raise RefusedError(f"Concat of a size {self.shape(part)[dim]} that may vary")
            rest = [*self.shape(part)]
            rest[dim] = shape[dim]
            if rest != shape or self.dtype(part) != self.dtype(parts[0]):
                raise RefusedError("Concat of shapes that differ")
            total += size
        shape[dim] = Extent(total)
        return self.add(Concat(tuple(parts), dim), self.dtype(parts[0]), shape)

    def lookup(self, x: int, indices: int) -> int:
        """Return rows of `x` along its first dim, at each of `indices`."""
        if not isinstance(self.values[x].node, Input):
            raise RefusedError("Gather of what the kernel computes")
        size, *row = self.shape(x) or (ONE,)
        if size == ONE or self.dtype(indices) not in ("int32", "int64"):
            raise RefusedError("Gather of one row, or with indices of another type")
        return self.add(Lookup(x, indices), self.dtype(x), [*self.shape(indices), *row])

    def reduce(self, kind: str, x: int, dims: Sequence[int]) -> int:
        """Return the reduction of `x` over `dims`, which keep size 1."""
        shape = self.shape(x)
        over = tuple(dim for dim in sorted(dims) if shape[dim] != ONE)
        if not over:
            return x
        kept = [ONE if dim in over else size for dim, size in enumerate(shape)]
        return self.add(Reduce(kind, x, over), self.dtype(x), kept)

    def size(self, extent: Extent, dtype: str) -> int:
        """Return a size as a number of `dtype`."""
        if extent.static is not None:
            return self.constant(extent.static, dtype)
        return self.add(Size(extent), dtype, ())

    def position(self, shape: Sequence[Extent], dim: int) -> int:
        """Return the position along `dim` for every point of `shape`."""
        return self.add(Position(dim), "int64", shape)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return numpy's broadcast of shapes, where sizes are equal or not by what they say."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(ONE,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[Extent] = []
    for dims in zip(*padded, strict=True):
        sizes = set(dims) - {ONE}
        if len(sizes) > 1:
            found = ", ".join(sorted(map(str, sizes)))
            raise RefusedError(f"sizes {found} meet: equal or not is unknown")
        result.append(sizes.pop() if sizes else ONE)
    return tuple(result)


def text(shape: Shape) -> str:
    """Write a shape."""
    return f"[{','.join(map(str, shape))}]"

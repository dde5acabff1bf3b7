"""The sizes that the declared shapes of an op give its tensors in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ortkit.errors import UserError
from ortkit.extend.declare.tensor_types import Dim, TensorType


@dataclass
class Sizes:
    """What the names in declared shapes stand for; filled from the shapes of the inputs."""

    named: dict[str, int] = field(default_factory=dict)
    wildcard_axes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def learn(self, tensors: Sequence[tuple[str, TensorType, Sequence[int]]], where: str) -> None:
        """Read names off the shapes of tensors, and check that they agree.

        Args:
            tensors: The name, the declared type and the shape of each.
            where: The op, for messages.

        Raises:
            UserError: A shape does not fit.
        """
        pairs = [pair for name, kind, shape in tensors for pair in self._pairs(
            name, kind, shape, where)]  # fmt: skip
        for _ in range(2):  # a later shape may tell what an earlier one needs
            for _, dim, size in pairs:
                self._solve(dim, size)
        for name, dim, size in pairs:
            if (expected := self.size(dim)) != size:
                known = "unknown" if expected is None else str(expected)
                raise UserError(f"{name}: a size is {size}, and {dim} is {known}", where=where)

    def size(self, dim: Dim) -> int | None:
        """Return a size, None where a name is not known."""
        found = [self.named.get(name) for name in dim.names]
        return None if None in found else dim.factor * prod(item or 0 for item in found)

    def shape(self, kind: TensorType) -> tuple[int, ...] | None:
        """Return the whole shape, None where a name is not known."""
        shape: list[int] = []
        for dim in kind.dims:
            if dim.is_star:
                if dim.names[0] not in self.wildcard_axes:
                    return None
                shape.extend(self.wildcard_axes[dim.names[0]])
                continue
            size = self.size(dim)
            if size is None:
                return None
            shape.append(size)
        return tuple(shape)

    def _pairs(
        self, name: str, kind: TensorType, shape: Sequence[int], where: str
    ) -> list[tuple[str, Dim, int]]:
        star, rank = kind.star, len(kind.dims)
        if len(shape) != rank if star is None else len(shape) < rank - 1:
            least = "" if star is None else " or more"
            axes = rank if star is None else rank - 1
            raise UserError(
                f"{name} has {len(shape)} axes, and {kind} has {axes}{least}", where=where
            )
        if star is None:
            return [(name, dim, size) for dim, size in zip(kind.dims, shape, strict=True)]
        after = rank - 1 - star
        end = len(shape) - after
        word = kind.dims[star].names[0]
        run = tuple(shape[star:end])
        if self.wildcard_axes.setdefault(word, run) != run:
            raise UserError(
                f"{name}: *{word} is {list(run)}, and {list(self.wildcard_axes[word])} elsewhere",
                where=where,
            )
        dims = (*kind.dims[:star], *kind.dims[star + 1 :])
        sizes = (*shape[:star], *shape[end:])
        return [(name, dim, size) for dim, size in zip(dims, sizes, strict=True)]

    def _solve(self, dim: Dim, size: int) -> None:
        unknown = [name for name in dim.names if name not in self.named]
        if len(unknown) != 1:
            return
        rest = dim.factor * prod(self.named[name] for name in dim.names if name != unknown[0])
        if rest and size % rest == 0:
            self.named[unknown[0]] = size // rest


def known_names(inputs: Sequence[TensorType]) -> frozenset[str]:
    """Return the names that the inputs' shapes tell; `2*n` tells n, `m*n` nothing by itself."""
    known: set[str] = set()
    for _ in range(2):
        for kind in inputs:
            for dim in kind.dims:
                unknown = [name for name in dim.names if name not in known]
                if len(unknown) == 1 and dim.factor:
                    known.add(unknown[0])
    return frozenset(known)


def check_outputs(
    outputs: Mapping[str, TensorType], inputs: Sequence[TensorType], where: str
) -> None:
    """Raise unless the inputs' shapes tell the outputs'."""
    given = known_names(inputs)
    wildcard_axes = {kind.dims[kind.star].names[0] for kind in inputs if kind.star is not None}
    for name, kind in outputs.items():
        for dim in kind.dims:
            absent = [
                word for word in dim.names if word not in (wildcard_axes if dim.is_star else given)
            ]
            if absent:
                raise UserError(
                    f"no input that is always there tells the size {absent[0]!r} of {name}",
                    where=where,
                    fix="name it in an input's shape",
                )

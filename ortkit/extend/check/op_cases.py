"""Inputs to try an op on: sizes that kernels get wrong, and the values that they meet."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.kernel_options import expanded
from ortkit.extend.declare.op_schema import Attribute, Types
from ortkit.extend.declare.size_rules import SizeRule
from ortkit.extend.declare.sizes import Sizes

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: No two alike, none a multiple of a vector.
_ODD = (7, 5, 3, 11, 13, 2, 19, 23)
#: One size of a case at a time: around a vector, and beyond one slice of work.
_SINGLE = (0, 1, 2, 15, 16, 17, 33, 4099)
_STARS: tuple[tuple[int, ...], ...] = ((3,), (), (2, 3), (1,), (0,), (2, 1, 5), (257,))
#: A case with more elements in one tensor is made smaller.
_MOST_ELEMENTS = 1 << 20
#: Sizes that a kernel is for are tried as this many times what they must be multiples of.
_MULTIPLES = (1, 3, 5)


@dataclass(frozen=True)
class Case:
    """One call of an op."""

    text: str
    """Its types and sizes, for messages."""
    types: Types
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Attribute]
    sizes: Sizes

    @property
    def is_present(self) -> tuple[bool, ...]:
        return tuple(array is not None for array in self.inputs)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's type of this name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def cases_of(
    op: DeclaredOp,
    types: Types,
    there: Sequence[bool],
    seed: int = 0,
    rules: Sequence[SizeRule] = (),
    more: Sequence[Mapping[str, int]] = (),
) -> Iterator[Case]:
    """Yield calls with one set of element types and of inputs; equal seeds give equal values.

    Args:
        op: The op.
        types: Its element types.
        there: Which inputs there are, of a variadic one all.
        seed: Of the values.
        rules: What must hold of the sizes; more of them are then tried.
        more: Additional numbers for the named sizes to try.
    """
    schema = op.schema
    attributes = {
        name: attribute.default if attribute.default is not None else _some(attribute.kind)
        for name, attribute in schema.attributes.items()
    }
    formal = expanded(schema.inputs, there)
    for number, sizes in enumerate(_sizes(op, rules, more)):
        draw = np.random.default_rng([seed, number, zlib.crc32(op.id.encode())])
        arrays: list[Array | None] = []
        shapes = []
        for op_input, is_present in zip(formal, there, strict=True):
            shape = sizes.shape(op_input.type)
            assert shape is not None
            if not is_present:
                arrays.append(None)
                continue
            arrays.append(_values(draw, shape, types[op_input.type.kind], number))
            shapes.append(f"{op_input.name}{list(shape)}")
        words = " ".join(dict.fromkeys(types.values()))
        yield Case(f"{words} {' '.join(shapes)}", types, tuple(arrays), attributes, sizes)


def flat_sizes(sizes: Sizes) -> dict[str, int]:
    """Return the named sizes as kernels have them: any number of axes are one."""
    return {**sizes.named, **{word: prod(run) for word, run in sizes.wildcard_axes.items()}}


def _sizes(
    op: DeclaredOp, rules: Sequence[SizeRule], more: Sequence[Mapping[str, int]]
) -> Iterator[Sizes]:
    """Yield sizes: odd ones, then each name by itself, and the numbers of axes."""
    kinds = [op_input.type for op_input in op.schema.inputs]
    names = list(dict.fromkeys(
        name for kind in kinds for dim in kind.dims if not dim.is_star for name in dim.names
    ))  # fmt: skip
    wildcard_axes = list(dict.fromkeys(
        dim.names[0] for kind in kinds for dim in kind.dims if dim.is_star
    ))  # fmt: skip
    odd = {name: _ODD[index % len(_ODD)] for index, name in enumerate(names)}
    first = dict.fromkeys(wildcard_axes, _STARS[0])
    tried: list[Sizes] = [Sizes(dict(odd), dict(first))]
    tried += [
        Sizes(dict(odd), dict.fromkeys(wildcard_axes, star))
        for star in _STARS[1:]
        if wildcard_axes
    ]
    for name in names:
        tried += [Sizes({**odd, name: size}, dict(first)) for size in _SINGLE]
    tried.append(Sizes(dict.fromkeys(names, 1), dict.fromkeys(wildcard_axes, (1, 1))))
    tried.append(Sizes(dict.fromkeys(names, 64), dict.fromkeys(wildcard_axes, (64,))))
    for count in _MULTIPLES if rules else ():
        fit = {name: count * max(_divisors(name, rules)) for name in [*names, *wildcard_axes]}
        tried.append(
            Sizes(
                {name: fit[name] for name in names}, {star: (fit[star],) for star in wildcard_axes}
            )
        )
    for one in more:
        tried.append(
            Sizes(
                {name: one[name] for name in names}, {star: (one[star],) for star in wildcard_axes}
            )
        )
    for sizes in tried:
        if not all(rule.holds(flat_sizes(sizes)) for rule in rules):
            continue
        shapes = [sizes.shape(kind) for kind in kinds]
        if all(shape is not None and prod(shape) <= _MOST_ELEMENTS for shape in shapes):
            yield sizes


def _divisors(name: str, rules: Sequence[SizeRule]) -> list[int]:
    return [1, *(rule.divisible_by for rule in rules if name in rule.size.symbols)]


def _values(draw: np.random.Generator, shape: tuple[int, ...], dtype: str, number: int) -> Array:
    """Return values of size one; in every third case some are larger, zero or tiny, bytes any."""
    if dtype == "bool":
        return np.asarray(draw.integers(0, 2, shape), bool)
    kind = np.dtype(numpy_dtype(dtype))
    if kind.kind in "iu":
        low, high = (0, 100) if kind.kind == "u" else (-100, 100)
        if number % 3 == 2 and kind.itemsize == 1:  # all that there are
            low, high = np.iinfo(kind).min, np.iinfo(kind).max + 1
        return np.asarray(draw.integers(low, high, shape), kind)
    values = np.asarray(draw.standard_normal(shape))
    if number % 3 == 2:
        values = np.where(draw.random(shape) < 0.1, values * 4, values)
        values = np.where(draw.random(shape) < 0.1, 0.0, values)
        values = np.where(draw.random(shape) < 0.05, values * 1e-4, values)
    return np.asarray(values).astype(kind)


def _some(kind: object) -> Attribute:
    """Return a value for an attribute that has no default."""
    values: dict[object, Attribute] = {bool: True, int: 1, float: 0.5, str: "a"}
    return values.get(kind, ())

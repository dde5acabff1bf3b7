"""Annotations of ops that are defined in Python: `Float["*batch n"]` is a tensor's type and shape.

The text in brackets names sizes: a number is itself, a word is a size known in a run (equal words
are equal sizes), `2*n` a product, and `*batch` any number of axes. Empty text is a scalar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

from ortkit.errors import UserError

_WORD = re.compile(r"[A-Za-z_]\w*")
_PRODUCT = re.compile(r"\w+(\*\w+)+")


@dataclass(frozen=True)
class Dim:
    """A size: `factor` times the product of the sizes called `names`; or any number of axes."""

    factor: int
    names: tuple[str, ...] = ()
    is_star: bool = False
    """Whether it stands for any number of axes, which `names[0]` calls."""

    def __str__(self) -> str:
        if self.is_star:
            return f"*{self.names[0]}"
        parts = [] if self.factor == 1 and self.names else [str(self.factor)]
        return "*".join([*parts, *self.names])


@dataclass(frozen=True)
class TensorType:
    """The annotation of a tensor.

    Args:
        kind: The word that was written, such as "Float"; within one op equal words are equal
            element types.
        dtypes: numpy's names of the element types that it may have.
        dims: Its shape.
        is_optional: Whether it may be absent: `Float["n"] | None`.
    """

    kind: str
    dtypes: tuple[str, ...]
    dims: tuple[Dim, ...] = ()
    is_optional: bool = False

    def __or__(self, other: object) -> TensorType:
        if other is not None and other is not type(None):
            return NotImplemented
        return replace(self, is_optional=True)

    @property
    def star(self) -> int | None:
        """The axis that stands for any number of axes."""
        return next((axis for axis, dim in enumerate(self.dims) if dim.is_star), None)

    def __str__(self) -> str:
        return f"{self.kind}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class TensorKind:
    """What is subscripted with a shape: `Float`."""

    name: str
    dtypes: tuple[str, ...]

    def __getitem__(self, shape: str) -> TensorType:
        if not isinstance(shape, str):
            raise UserError(
                f"{shape!r} is no shape", where=self.name, fix=f'write it as {self.name}["n 3"]'
            )
        dims = tuple(_dim(word, f"{self.name}[{shape!r}]") for word in shape.split())
        if sum(dim.is_star for dim in dims) > 1:
            raise UserError(
                "one shape has two parts of any length", where=f"{self.name}[{shape!r}]"
            )
        return TensorType(self.name, self.dtypes, dims)


def _dim(word: str, where: str) -> Dim:
    if word.isdecimal():
        return Dim(int(word))
    if _WORD.fullmatch(word):
        return Dim(1, (word,))
    if word.startswith("*") and _WORD.fullmatch(word[1:]):
        return Dim(1, (word[1:],), is_star=True)
    parts = word.split("*")
    if _PRODUCT.fullmatch(word) and all(p.isdecimal() or _WORD.fullmatch(p) for p in parts):
        names = tuple(sorted(part for part in parts if not part.isdecimal()))
        return Dim(prod(int(part) for part in parts if part.isdecimal()), names)
    raise UserError(
        f"{word!r} is no size",
        where=where,
        fix="write numbers, names, products such as 2*n, and *name for any number of axes",
    )


#: Any of them; what two tensors of one op share.
Float = TensorKind("Float", ("float32", "float64", "float16", "bfloat16"))
Int = TensorKind("Int", ("int64", "int32", "int16", "int8"))
UInt = TensorKind("UInt", ("uint64", "uint32", "uint16", "uint8"))
Float16 = TensorKind("Float16", ("float16",))
BFloat16 = TensorKind("BFloat16", ("bfloat16",))
Float32 = TensorKind("Float32", ("float32",))
Float64 = TensorKind("Float64", ("float64",))
Int8 = TensorKind("Int8", ("int8",))
Int16 = TensorKind("Int16", ("int16",))
Int32 = TensorKind("Int32", ("int32",))
Int64 = TensorKind("Int64", ("int64",))
UInt8 = TensorKind("UInt8", ("uint8",))
UInt16 = TensorKind("UInt16", ("uint16",))
UInt32 = TensorKind("UInt32", ("uint32",))
UInt64 = TensorKind("UInt64", ("uint64",))
Bool = TensorKind("Bool", ("bool",))

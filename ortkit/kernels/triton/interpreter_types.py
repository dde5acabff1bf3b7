"""Types and shapes of Triton's interpreter, made once instead of in each operation.

The interpreter computes in numpy, but spends most of its time on types: each operation makes new
block types, tuples of constants for shapes, and a table of numpy's types. Here equal block types
are one object, which holds the shape of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any


@cache
def share_types() -> None:
    """Let the interpreter of this process use equal types and shapes again."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    _share_block_types(core)
    _share_shapes(core)
    _share_numpy_types(interpreter)

    unwrap = core._unwrap_if_constexpr

    def unwrapped(found: Any) -> Any:
        kind = type(found)
        if kind is core.constexpr:
            return found.value
        return unwrap(found) if kind in (list, tuple) or kind is core.tuple else found

    core._unwrap_if_constexpr = unwrapped
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def broadcast_where_needed(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    semantic.TritonSemantic.broadcast_impl_value = broadcast_where_needed


def _share_block_types(core: Any) -> None:
    """Let equal block types of plain elements be one object."""
    made: dict[tuple[object, ...], Any] = {}
    plain = core.block_type.__init__

    def new(cls: Any, element_ty: Any = None, shape: Iterable[Any] = ()) -> Any:
        if cls is not core.block_type or type(element_ty) is not core.dtype:
            return object.__new__(cls)  # also what is copied or unpickled
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in made:
            found = object.__new__(cls)
            plain(found, element_ty, shape)
            made[key] = found
        return made[key]

    def initialize(self: Any, element_ty: Any, shape: Iterable[Any]) -> None:
        if "numel" not in self.__dict__:
            plain(self, element_ty, shape)

    core.block_type.__new__ = new
    core.block_type.__init__ = initialize


def _share_shapes(core: Any) -> None:
    """Let tensors of equal sizes have one shape."""
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def shape_of(kind: Any) -> tuple[Any, Any]:
        sizes = tuple(kind.shape.values) if kind.is_block() else ()
        if sizes not in shapes:
            shape = core.tuple([core.constexpr(size) for size in sizes])
            shapes[sizes] = shape, core.constexpr(math.prod(sizes))
        return shapes[sizes]

    def initialize(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        facts = kind.__dict__.get("_ortkit_shape")
        if facts is None:
            facts = kind._ortkit_shape = shape_of(kind)
        self.shape, self.numel = facts

    core.tensor.__init__ = initialize


def _share_numpy_types(interpreter: Any) -> None:
    """Look numpy's types up by name: Triton makes a table of all in each call."""
    plain, known = interpreter._get_np_dtype, dict[str, Any]()

    def np_dtype(kind: Any) -> Any:
        if kind.scalar.is_ptr():
            return plain(kind)
        if kind.name not in known:
            known[kind.name] = plain(kind)
        return known[kind.name]

    interpreter._get_np_dtype = np_dtype

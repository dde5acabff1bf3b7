"""One kernel of several functions: those for known sizes, and the one for all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ortkit.kernels.signature import TensorSpec

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

# The C calling convention, as tvm::CallingConv numbers it.
_C_PACKED_FREE = 2


@dataclass(frozen=True)
class Special:
    """A function in the calling convention of kernels that is for known sizes.

    Args:
        symbol: Its name.
        sizes: All named sizes; of the one that work is split along, how many it computes at once.
    """

    symbol: str
    sizes: Mapping[str, int]


def dispatcher(
    symbol: str,
    tensors: Sequence[TensorSpec],
    sizes: Sequence[str],
    split: str,
    specials: Sequence[Special],
    general: str,
) -> Expr:
    """Return a kernel that calls the first of `specials` that is for the sizes, else `general`.

    Work that is split comes in blocks of what a special function computes at once. Whoever has
    the first row of a block in his part computes all of it, and what fills no block goes to the
    general function. Which function computes a row does not depend on how the work is cut.

    Args:
        symbol: Its name.
        tensors: In the order of the pointers.
        sizes: The names of the sizes, in the order of the parameters.
        split: The size that units are counted along, or empty.
        specials: In the order in which they are tried.
        general: The name of a function for all sizes.
    """
    import tvm
    from tvm import tirx

    int64 = "int64"
    pointers = [
        tirx.Var(f"p{index}", tvm.ir.PointerType(tvm.ir.PrimType(tensor.dtype)))
        for index, tensor in enumerate(tensors)
    ]
    given = {name: tirx.Var(f"{name}_size", int64) for name in sizes}
    begin, end = tirx.Var("begin", int64), tirx.Var("end", int64)

    def call(name: str, first: Expr, last: Expr) -> Expr:
        return tirx.Evaluate(
            tirx.call_extern("int32", name, *pointers, *given.values(), first, last)
        )

    def blocks(one: Special) -> Expr:
        if not split:
            return call(one.symbol, begin, end)
        rows, total = one.sizes[split], given[split]
        first, block = tirx.floordiv(begin + (rows - 1), rows), tirx.Var("block", int64)
        row = (first + block) * rows
        body = tirx.IfThenElse(
            row + rows <= total,
            call(one.symbol, row, row + rows),
            call(general, row, total),
        )
        count = tirx.floordiv(end + (rows - 1), rows) - first
        return tirx.For(block, tirx.const(0, int64), count, tirx.ForKind.SERIAL, body)

    body = call(general, begin, end)
    for special in reversed(specials):
        fits = [
            given[name] >= size if name == split else given[name] == size
            for name, size in special.sizes.items()
        ]
        body = tirx.IfThenElse(tirx.all(*fits), blocks(special), body) if fits else blocks(special)
    return tirx.PrimFunc(
        [*pointers, *given.values(), begin, end], body, tvm.ir.PrimType("int32")
    ).with_attrs({"global_symbol": symbol, "calling_conv": _C_PACKED_FREE})

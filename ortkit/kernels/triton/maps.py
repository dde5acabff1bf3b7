"""Maps of tensors for copies of boxes: what Triton calls them, and what CUDA has of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ortkit.kernels.cuda import Argument, TensorMap
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.parameters import Parameter

#: Bytes of a row of a box that are mixed, so that warps meet no bank twice: the most that fit.
_SWIZZLES = (128, 64, 32)


def tensor_map(
    tensor: int,
    dtype: str,
    dims: Sequence[Extent],
    strides: Sequence[Extent],
    box: Sequence[int],
    first: int,
) -> TensorMap:
    """Return a map by elements as one by bytes.

    Args:
        tensor: Index of the tensor.
        dtype: Of its elements, as Triton says it, such as "fp16".
        dims: Outermost first.
        strides: In elements, of all but the innermost.
        box: What the kernel copies at once; wide ones are several boxes of one row of the swizzle.
        first: The element where it begins.
    """
    size = element_bytes(dtype)
    swizzle = swizzle_of(box[-1] * size)
    innermost = min(box[-1], swizzle // size) if swizzle else box[-1]
    return TensorMap(
        tensor,
        tuple(dims),
        tuple(Extent(stride.factor * size, stride.symbols) for stride in strides),
        (*box[:-1], innermost),
        first * size,
        swizzle,
    )


def map_parameter(
    name: str, number: int, dtype: str, box: Sequence[int], *, is_gluon: bool
) -> Parameter:
    """Return the parameter that is a step's map by its number; see `tensor_map`."""
    type_ = descriptor_type(dtype, box, is_gluon=is_gluon)
    # The code does not look at sizes and strides, but has parameters for them.
    unread = (Argument("null"),) * (2 * len(box))
    return Parameter(name, type_, False, Argument("map", number), unread, tuple(box))


def descriptor_type(dtype: str, box: Sequence[int], *, is_gluon: bool) -> str:
    """Return the type of a parameter that is a map. In Gluon the layout is a part of it."""
    sizes = ", ".join(map(str, box))
    if not is_gluon:
        return f"tensordesc<{dtype}[{sizes}]>"
    size = element_bytes(dtype)
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width={swizzle_of(box[-1] * size)}, "
        f"element_bitwidth={8 * size}, rank={len(box)})"
    )
    return f"tensordesc<{dtype}[{sizes}],{layout}>"


def swizzle_of(row_bytes: int) -> int:
    """Return how many bytes of a row of a box are mixed."""
    return next((swizzle for swizzle in _SWIZZLES if row_bytes % swizzle == 0), 0)


def element_bytes(dtype: str) -> int:
    """Return the size of Triton's type, such as 2 for "fp16", and 1 for "fp8e4nv"."""
    found = re.search(r"\d+", dtype)
    assert found is not None
    return int(found[0]) // 8

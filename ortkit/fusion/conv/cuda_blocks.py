"""Blocks of convolution nets in half precision that kernels for CUDA compute.

Poolings of other blocks' results are such, too.
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.finder import BlockFinder
from ortkit.refusal import Refused


class CudaBlockFinder(BlockFinder):
    """What kernels for CUDA take."""

    dtypes = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
    other_dtype = "it is not in half precision"
    most_extras = 1
    begins_with_images = False

    def refusal(self, conv: ir.Node) -> Refused | None:
        """Say why no kernel for CUDA computes a convolution; None if one may."""
        if (refused := super().refusal(conv)) is not None:
            return refused
        (_, *image), filters = (self.sizes(value) for value in conv.inputs[:2])
        if not all(isinstance(size, int) for size in (*image, *filters)):
            return Refused("its image has no fixed size")
        return None

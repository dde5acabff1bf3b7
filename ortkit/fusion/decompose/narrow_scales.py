"""Scales of weights in few bits on CPUs: in bfloat16 where that changes none of them.

A token is bound by the bytes of weights and scales: with blocks of 32 in int4, 20 bytes a block
become 18. A quantizer that divides the largest weight of a block by a power of two makes such
scales of checkpoints in bfloat16, as that of onnxruntime-genai's builder does without zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.fusion.decompose.run import Decomposition
from ortkit.graph.io.file_tensors import read_once
from ortkit.kernels.prepack import Array
from ortkit.rewrite.site import Site

_SCALES = 2
#: Bits of a float32 that bfloat16 lacks.
_LOST = 0xFFFF


@dataclass(frozen=True)
class NarrowScales(Decomposition):
    """Let a product read its scales through a Cast of the same numbers in bfloat16.

    Before:
        y = MatMulNBits(x, w, s)
    After:
        y = MatMulNBits(x, w, Cast(s/bfloat16))

    Skips:
        * Scales of which one is no bfloat16: to round them is lowering.
    """

    name: ClassVar[str] = "narrow-scales"
    ops: ClassVar[Sequence[str]] = ("com.microsoft::MatMulNBits",)

    def rewrite(self, site: Site) -> None:
        scales = site.input(_SCALES)
        if scales is None or not site.scope.is_constant(scales) or scales.const_value is None:
            return
        if scales.const_value.dtype != ir.DataType.FLOAT:
            return
        array = np.asarray(read_once(scales.const_value))
        if not is_bfloat16(array) or not site.claim("scales"):
            return
        name = f"{scales.name}/bfloat16"
        narrow = site.scope.initializer(ir.tensor(array.astype(ml_dtypes.bfloat16)), name)
        kind = {"to": ir.DataType.FLOAT}
        site.set_input(_SCALES, site.op("Cast", [narrow], kind, name=f"{scales.name}/float"))


def is_bfloat16(array: Array) -> bool:
    """Say whether all numbers of a float32 array are finite, and the same in bfloat16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return not np.any(bits & _LOST) and bool(np.isfinite(array).all())

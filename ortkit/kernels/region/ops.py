"""The pointwise ONNX operators that kernels may contain, by name.

Nothing here imports tvm: an operator is written with the emitter it is given.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortkit.kernels.region.dtypes import DTYPES
from ortkit.kernels.region.ops_activations import ACTIVATIONS
from ortkit.kernels.region.ops_arithmetic import ARITHMETIC
from ortkit.kernels.region.ops_casts import CASTS
from ortkit.kernels.region.ops_functions import FUNCTIONS
from ortkit.kernels.region.pointwise import Attributes, PointwiseOp

__all__ = ["DTYPES", "POINTWISE_OPS", "Attributes", "PointwiseOp"]

POINTWISE_OPS: Mapping[str, PointwiseOp] = {**ARITHMETIC, **CASTS, **FUNCTIONS, **ACTIVATIONS}

"""Worked examples of ops that are defined in Python; docs/guides/custom-ops.md says how.

`ortkit ops test --from ortkit.custom_ops.examples` tests them all.
"""

from . import (
    flash_attention,
    layer_norm,
    matrix_product,
    quantized_product,
    softmax,
    squared_relu,
    vector_add,
)

__all__ = [
    "flash_attention",
    "layer_norm",
    "matrix_product",
    "quantized_product",
    "softmax",
    "squared_relu",
    "vector_add",
]

"""Products in bfloat16 as nodes of the standard, of which regions make kernels.

Before:
    y = Add(MatMul(x, W), b)
After:
    y = Add(MatMul(Cast(Cast(x, BFLOAT16), FLOAT), unpacked(W16)), b)

W16 is packed as `ortkit.kernels.layouts.bf16_blocks` says; the nodes that take it apart are folded
where there is no kernel. What several products multiply is rounded once, behind what makes it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.kernels.layouts.bf16_blocks import layout, pack_weight
from ortkit.precision.building import Builder
from ortkit.precision.products import Product
from ortkit.precision.unfused import PRODUCT

_FLOAT, _BF16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16


def rounded_once(build: Builder, x: ir.Value) -> ir.Value:
    """Make the node that rounds `x` for all products that multiply it."""
    name = f"{x.name}/bf16"
    made = build.one("Cast", [x], name, {"to": int(_BF16)}, dtype=_BF16)
    made.shape = x.shape
    return made


def emit_packed(build: Builder, product: Product, rounded: ir.Value) -> ir.Value:
    """Make a product of what is rounded and a packed weight, and add its bias.

    Args:
        build: Where to make it.
        product: No convolution.
        rounded: What it multiplies, in bfloat16.
    """
    weight, key = product.array(), product.key
    wide = widened(build, rounded, f"{key}/wide")
    shape = (weight.shape[0], weight.shape[1])
    matrix = unpacked_matrix(build, pack_weight(weight), shape, f"{product.weight.name}/bf16")
    value = build.one("MatMul", [wide, matrix], f"{key}{PRODUCT}")
    bias = product.bias_array()
    if bias is None or product.bias is None:
        return value
    row = product.bias
    if row.shape != (weight.shape[1],):
        row = build.constant(bias, f"{row.name}/row")
    return build.one("Add", [value, row], f"{key}/sum")


def widened(build: Builder, rounded: ir.Value, name: str) -> ir.Value:
    """Make the node that makes float32 of bfloat16."""
    wide = build.one("Cast", [rounded], name, {"to": int(_FLOAT)})
    wide.shape = rounded.shape
    return wide


def unpacked_matrix(
    build: Builder, packed: np.ndarray, shape: tuple[int, int], name: str
) -> ir.Value:
    """Make a packed weight and the nodes that take it apart into float32 of `shape`."""
    return layout(*shape).write(
        build.constant(packed, name),
        lambda role, op_type, inputs, attributes: build.one(
            op_type, [*inputs], f"{name}/{role}", {**attributes}
        ),
        lambda role, numbers: build.sizes([*numbers], f"{name}/{role}"),
    )

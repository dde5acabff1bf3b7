"""Products in bfloat16 as nodes of the standard, of which regions make kernels.

Before:
    y = Add(MatMul(x, W), b)
After:
    y = Add(MatMul(Cast(Cast(x, BFLOAT16), FLOAT), unpacked(W16)), b)

W16 is packed as `ortkit.kernels.bf16` says; the nodes that take it apart are folded where there is
no kernel. What several products multiply is rounded once, behind what makes it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.kernels.bf16 import pack_weight, packed_shape
from ortkit.precision.building import Builder
from ortkit.precision.products import Product

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
    depth, columns = weight.shape
    name = f"{product.weight.name}/bf16"
    wide = build.one("Cast", [rounded], f"{key}/wide", {"to": int(_FLOAT)})
    packed = build.constant(pack_weight(weight), name)
    unpacked = build.one("Cast", [packed], f"{name}/wide", {"to": int(_FLOAT)})
    turned = build.one("Transpose", [unpacked], f"{name}/rows", {"perm": [1, 3, 0, 2]})
    strips, pairs, width, _ = packed_shape(depth, columns)
    whole = [pairs * 2, strips * width]
    matrix = build.one("Reshape", [turned, _sizes(build, whole, f"{name}/shape")], f"{name}/whole")
    if whole != [depth, columns]:
        first = _sizes(build, [0, 0], f"{name}/first")
        last = _sizes(build, [depth, columns], f"{name}/last")
        matrix = build.one("Slice", [matrix, first, last], f"{name}/cut")
    value = build.one("MatMul", [wide, matrix], f"{key}/product")
    bias = product.bias_array()
    if bias is None or product.bias is None:
        return value
    row = product.bias
    if row.shape != (columns,):
        row = build.constant(bias, f"{row.name}/row")
    return build.one("Add", [value, row], f"{key}/sum")


def _sizes(build: Builder, numbers: list[int], name: str) -> ir.Value:
    return build.constant(np.array(numbers, np.int64), name)

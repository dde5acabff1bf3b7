"""QuantizeLinear and DequantizeLinear: which numbers stand for which values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.rewrite.site import Site

#: ONNX Runtime's own domain has them too, with the same inputs and attributes.
DOMAINS = ("", "com.microsoft")


def is_op(node: ir.Node | None, op_type: str) -> bool:
    """Say whether a node is QuantizeLinear or DequantizeLinear, as asked for."""
    return node is not None and node.op_type == op_type and node.domain in DOMAINS


def scale_of(site: Site, node: ir.Node) -> np.ndarray | None:
    """Return the constant scale, None where there is none."""
    return site.array(node.inputs[1]) if len(node.inputs) > 1 else None


def zero_of(site: Site, node: ir.Node, dtype: ir.DataType) -> np.ndarray | None:
    """Return the constant zero point, as given or by default; None where it is not known.

    Args:
        site: Where it is asked.
        node: QuantizeLinear or DequantizeLinear.
        dtype: Of the quantized numbers.
    """
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None:
        return site.array(value)
    scale = scale_of(site, node)
    return None if scale is None else np.zeros(scale.shape, dtype.numpy())


def quantized_axis(site: Site, node: ir.Node) -> tuple[int, int]:
    """Return along which axis there are several scales, and for how many elements one counts."""
    number = {name: node.attributes.get(name) for name in ("axis", "block_size")}
    axis = 1 if number["axis"] is None else number["axis"].as_int()
    block = 0 if number["block_size"] is None else number["block_size"].as_int()
    scale = scale_of(site, node)
    if scale is not None and scale.size == 1 and not block:
        return 0, 0
    rank = site.rank(node.inputs[0])
    return (axis + rank if rank is not None and axis < 0 else axis), block

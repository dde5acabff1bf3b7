"""Pointwise operators that may follow a product or a convolution in one kernel."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.operators import where
from ortkit.targets.cpu import CPU

#: Operators that our kernels on CPUs apply at their end; further operands are scalars or of the
#: result's shape. No kernel was tried with the activations that are left out.
EPILOGUE_OPS = (where(activation=True) - {"Celu", "Softsign", "ThresholdedRelu"}) | {
    "Add", "Mul", "Sub",
}  # fmt: skip
#: ONNX Runtime's own functions of one value.
_OWN = where(domain="com.microsoft", access="elementwise") - {"BiasGelu"}
#: Operators that ONNX Runtime's convolutions and products on CPUs apply at their end.
RUNTIME_APPLIES = CPU.fused_conv_activations | {"Add"}


def is_own_step(node: ir.Node) -> bool:
    """Say whether a node is a function of one value that ONNX Runtime adds to ONNX."""
    return node.domain == "com.microsoft" and node.op_type in _OWN and len(node.inputs) == 1

"""Pointwise operators that may follow a product or a convolution in one kernel."""

from __future__ import annotations

from ortkit.operators import where
from ortkit.targets.cpu import CPU

#: Operators that our kernels on CPUs apply at their end; further operands are scalars or of the
#: result's shape. No kernel was tried with the activations that are left out.
EPILOGUE_OPS = (where(activation=True) - {"Celu", "Softsign", "ThresholdedRelu"}) | {
    "Add", "Mul", "Sub",
}  # fmt: skip
#: Operators that ONNX Runtime's convolutions and products on CPUs apply at their end.
RUNTIME_APPLIES = CPU.fused_conv_activations | {"Add"}

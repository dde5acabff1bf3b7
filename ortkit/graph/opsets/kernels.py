"""Where ONNX Runtime's kernels end: a newer schema that it runs only elsewhere, or not at all.

A kernel that is registered without a last version is for the schema that it starts with, and for
no newer one (`KernelRegistry`). Source: for the CPU `get_all_opkernel_def` of onnxruntime 1.31.1,
for CUDA docs/OperatorKernels.md of ONNX Runtime as of Attention-24.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Key = tuple[str, int]
"""An operator and the version of its newer schema."""

#: What a provider runs in the version before, and in this one does not.
CPU_WITHOUT_KERNEL: frozenset[Key] = frozenset(
    {
        ("GlobalLpPool", 22), ("MaxRoiPool", 22), ("Multinomial", 22), ("RandomNormal", 22),
        ("RandomNormalLike", 22), ("RandomUniform", 22), ("RandomUniformLike", 22),
        ("RoiAlign", 22), ("Attention", 25),
        # Is a function of RandomUniformLike.
        ("Bernoulli", 22),
    }
)  # fmt: skip

#: Without Identity and Dropout, which no session keeps.
CUDA_WITHOUT_KERNEL: frozenset[Key] = CPU_WITHOUT_KERNEL | frozenset(
    {
        ("RoiAlign", 16), ("Pad", 19), ("Size", 19), ("ConstantOfShape", 20), ("Flatten", 21),
        ("If", 21), ("Loop", 21), ("Scan", 21), ("ConvTranspose", 22), ("Cos", 22), ("Elu", 22),
        ("EyeLike", 22), ("GRU", 22), ("GlobalAveragePool", 22), ("GlobalMaxPool", 22),
        ("InstanceNormalization", 22), ("LSTM", 22), ("MaxPool", 22), ("RNN", 22), ("Round", 22),
        ("Selu", 22), ("Sin", 22), ("Softplus", 22), ("Softsign", 22), ("ThresholdedRelu", 22),
        ("DequantizeLinear", 23), ("QuantizeLinear", 23), ("Cast", 24), ("Reshape", 24),
        ("Shape", 24), ("Squeeze", 24), ("TopK", 24), ("Transpose", 24), ("Unsqueeze", 24),
    }
)  # fmt: skip


#: Functions of ONNX without a kernel that ONNX Runtime 1.31.1 inlines up to this version of the
#: model only, although their schema is the same in newer ones.
LAST_INLINED: Mapping[str, int] = MappingProxyType({"Swish": 24})

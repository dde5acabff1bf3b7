"""What `scripts/bench cuda` measures of single kernels: pieces of networks in float16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from scripts.benches.kernel_cases import Writer

#: Rows and columns: BERT's and a llama's at 512 tokens, and two that fill the GPU.
SIZES = ((512, 768), (512, 3072), (512, 5632), (4096, 4096), (8192, 8192))
_ROOT_TWO = 2.0**0.5


@dataclass(frozen=True)
class CudaCase:
    """One piece at any size.

    Args:
        name: Of the table's rows.
        written: The model as exporters write it, from rows and columns.
        moved: How many tensors of that size a kernel reads and writes.
        fused: The model with ONNX Runtime's own operator in the place of those nodes, where it
            has one.
    """

    name: str
    written: Callable[[int, int], onnx.ModelProto]
    moved: int
    fused: Callable[[int, int], onnx.ModelProto] | None = None


def _writer(opset: int = 20) -> Writer:
    return Writer(np.float16, opset)


def _gelu(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    x = w.input("x", rows, columns)
    erf = w("Erf", w("Div", x, w.number(_ROOT_TWO)))
    return w.model(w("Mul", w("Mul", x, w("Add", erf, w.number(1.0))), w.number(0.5)))


def _gelu_fused(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    return w.model(w("Gelu", w.input("x", rows, columns)))


def _bias_gelu_residual(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    x = w("Gelu", w("Add", w.input("x", rows, columns), w.weight("bias", columns)))
    return w.model(w("Add", x, w.input("r", rows, columns)))


def _swiglu(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    gate, up = w.input("gate", rows, columns), w.input("up", rows, columns)
    return w.model(w("Mul", w("Mul", gate, w("Sigmoid", gate)), up))


def _layer_norm(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    x = w.input("x", rows, columns)
    deviation = w("Sub", x, w("ReduceMean", x, w.integers(-1)))
    variance = w("ReduceMean", w("Mul", deviation, deviation), w.integers(-1))
    normal = w("Div", deviation, w("Sqrt", w("Add", variance, w.number(1e-5))))
    scaled = w("Mul", normal, w.weight("scale", columns))
    return w.model(w("Add", scaled, w.weight("bias", columns)))


def _layer_norm_fused(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    weights = w.weight("scale", columns), w.weight("bias", columns)
    return w.model(w("LayerNormalization", w.input("x", rows, columns), *weights, axis=-1))


def _add_layer_norm(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    total = w("Add", w.input("x", rows, columns), w.input("r", rows, columns))
    weights = w.weight("scale", columns), w.weight("bias", columns)
    return w.model(w("LayerNormalization", total, *weights, axis=-1), total)


def _rms_norm(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    x = w.input("x", rows, columns)
    mean = w("ReduceMean", w("Mul", x, x), w.integers(-1))
    normal = w("Div", x, w("Sqrt", w("Add", mean, w.number(1e-5))))
    return w.model(w("Mul", normal, w.weight("scale", columns)))


def _rms_norm_fused(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer(opset=23)
    x, scale = w.input("x", rows, columns), w.weight("scale", columns)
    return w.model(w("RMSNormalization", x, scale, axis=-1))


def _softmax(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    x = w.input("x", rows, columns)
    raised = w("Exp", w("Sub", x, w("ReduceMax", x, w.integers(-1))))
    return w.model(w("Div", raised, w("ReduceSum", raised, w.integers(-1))))


def _softmax_fused(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    return w.model(w("Softmax", w.input("x", rows, columns), axis=-1))


def _masked_softmax(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    scores = w("Mul", w.input("x", rows, columns), w.number(0.125))
    return w.model(w("Softmax", w("Add", scores, w.input("mask", 1, columns)), axis=-1))


def _transpose(rows: int, columns: int) -> onnx.ModelProto:
    w = _writer()
    return w.model(w("Transpose", w("Neg", w.input("x", rows, columns)), perm=[1, 0]))


CASES = (
    CudaCase("erf-GELU", _gelu, 2, _gelu_fused),
    CudaCase("bias + GELU + residual", _bias_gelu_residual, 3),
    CudaCase("SwiGLU", _swiglu, 3),
    CudaCase("LayerNorm", _layer_norm, 2, _layer_norm_fused),
    CudaCase("Add + LayerNorm, 2 outputs", _add_layer_norm, 4),
    CudaCase("RMSNorm", _rms_norm, 2, _rms_norm_fused),
    CudaCase("Softmax", _softmax, 2, _softmax_fused),
    CudaCase("scaled, masked softmax", _masked_softmax, 2),
    CudaCase("Neg + Transpose", _transpose, 2),
)
